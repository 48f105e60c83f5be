# SPDX-License-Identifier: MIT
"""Contracts as they are written, in Python and in files, and as they are derived and published."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
import yaml

from packhorse import ConfigError, Contract, RetryPolicy, Router
from packhorse.core.contract_files import as_yaml, read_contract, read_document
from packhorse.core.schemas import SchemaCheck, schema_of
from tests.unit.app_support import memory_app
from tests.unit.contract_support import INPUT_SCHEMA, OUTPUT_SCHEMA, QUEUE_BASED


def written(folder: Path, text: str, name: str = "contract.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.req("S0-7")
def test_a_file_of_the_shape_of_the_requirements_is_a_contract(tmp_path: Path) -> None:
    contract = read_contract(written(tmp_path, QUEUE_BASED))

    assert (contract.worker_id, contract.version) == ("queue-based-worker", "1.0")
    assert contract.inputs == INPUT_SCHEMA
    assert contract.outputs == OUTPUT_SCHEMA
    assert (contract.timeout, contract.max_attempts, contract.max_tokens) == (60, 2, 1500)
    assert contract.tools_allowed == ("language_model", "write_result_store")
    assert contract.rate_limit == "per-tenant (example: 10/min)"
    document = contract.document()
    assert document | yaml.safe_load(QUEUE_BASED) | {"version": "1.0"} == document


@pytest.mark.req("S0-7")
@pytest.mark.parametrize("ending", [".yaml", ".json"])
def test_what_is_published_reads_back_as_the_same_contract(tmp_path: Path, ending: str) -> None:
    contract = read_contract(written(tmp_path, QUEUE_BASED))

    document = contract.document()
    text = as_yaml(document) if ending == ".yaml" else msgspec.json.encode(document).decode()

    assert read_contract(written(tmp_path, text, f"again{ending}")) == contract


@pytest.mark.parametrize(
    "value",
    ["yes", "null", "1.0", "a: b", "- a", "", " x", "#", "a #b", "é", "line\nline", "it's", "{}"],
)
def test_a_text_is_written_so_that_yaml_reads_the_same(value: str) -> None:
    document = {"a": value, value or "b": [value, {"c": [value], "d": [], "e": {}}], "n": [1, None]}

    assert yaml.safe_load(as_yaml(document)) == document


def test_a_version_is_kept_as_it_is_written(tmp_path: Path) -> None:
    assert read_contract(written(tmp_path, "version: 1.10\n")).version == "1.10"
    assert read_contract(written(tmp_path, "version: '2'\n")).version == "2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("worker_id: a\nworker_id: b\n", "says 'worker_id' twice"),
        ("inputs:\n  - {a: object, a: string}\n", "says 'a' twice"),
        ("timeout: 60\n", "there is no 'timeout'"),
        ("constraints: {timeout: 60}\n", "constraints: there is no 'timeout'"),
        ("- a\n", "holds no names and values"),
        ("a: [\n", "is no YAML"),
        ("!!python/object/apply:os.system ['true']\n", "is no YAML"),
        ("inputs:\n  - message: thing\n", "'thing' is no type"),
        ("retries: {max_attempts: 0}\n", "max_attempts is 0; give a whole number from 1"),
        ("observability: {trace_id: optional}\n", "trace_id is 'optional'"),
        ("on_invalid_output: ignore\n", "on_invalid_output is 'ignore'; give one of retry, dead"),
    ],
)
def test_a_file_that_is_no_contract_is_refused_with_its_name(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        read_contract(written(tmp_path, text))


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="1048576 are allowed"):
        read_document(written(tmp_path, "#" * 2**20 + "#"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"worker_id": ""}, "worker_id is ''"),
        ({"inputs": "message"}, "inputs is 'message'; give names and types"),
        ({"inputs": [{"a": 1}]}, "give names and types"),
        ({"inputs": {"type": object()}}, "is no JSON Schema"),
        ({"timeout": 0}, "timeout is 0"),
        ({"max_attempts": True}, "max_attempts is True"),
        ({"tools_allowed": "search"}, "tools_allowed is 'search'; give a list of names"),
        ({"backoff": "random"}, "backoff is 'random'; give one of fixed, linear, exponential"),
        ({"idempotency_key": "optional"}, "idempotency_key is 'optional'; give one of required"),
    ],
)
def test_a_contract_that_cannot_work_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Contract(**fields)


@dataclass
class Line:
    text: str
    next: Line | None = None


class Model(pydantic.BaseModel):
    inner: dict[str, int]


def test_inputs_are_names_and_types_a_schema_or_a_python_type() -> None:
    short = Contract(inputs={"message": "object", "note?": "string | null"})
    same = Contract(inputs=[{"message": "object"}, {"note?": "string | null"}])

    assert short.inputs == same.inputs
    assert short.inputs["required"] == ["message"]
    assert short.inputs["properties"]["note"] == {"type": ["string", "null"]}
    assert Contract(outputs=dict[str, int]).outputs["additionalProperties"] == {"type": "integer"}
    assert Contract(outputs=INPUT_SCHEMA).outputs == INPUT_SCHEMA


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (Line, {"text": "a", "next": {"text": "b"}}, {"text": "a", "next": {"text": 1}}),
        (list[Model], [{"inner": {"a": 1}}], [{"inner": {"a": "b"}}]),
        (int | None, None, "a"),
        (object, ["anything"], ...),
    ],
)
def test_a_derived_schema_says_what_its_type_says(kind: Any, right: Any, wrong: Any) -> None:
    check = SchemaCheck(schema_of(kind), "it")

    assert check.problem(right) is None
    assert wrong is ... or check.problem(wrong) is not None


@pytest.mark.req("S0-7", "S0-8")
def test_a_task_without_a_contract_has_one_derived_from_its_signature() -> None:
    app = memory_app()

    @app.task(timeout="5s", retry=RetryPolicy(max_retries=1, backoff="fixed"))
    def resize(path: str, width: int = 100) -> dict[str, int]:
        """Make a picture smaller.

        And no more than that.
        """
        return {path: width}

    document = resize.contract.document()

    assert document["worker_id"] == "resize"
    assert document["purpose"] == "Make a picture smaller."
    assert document["inputs"] == [{"path": "string"}, {"width?": "integer"}]
    assert document["constraints"] == {"timeout_seconds": 5}
    assert document["retries"] == {"max_attempts": 2, "backoff": "fixed"}
    assert document["input_schema"]["additionalProperties"] is False
    assert document["output_schema"]["additionalProperties"] == {"type": "integer"}


def test_a_queues_retries_are_part_of_a_derived_contract_and_a_router_knows_none() -> None:
    app, router = memory_app(), Router()
    app.queue("mail", retry=RetryPolicy(max_retries=7))

    @app.task(queue="mail")
    def send() -> None: ...

    @router.task
    def alone() -> None: ...

    assert send.contract.max_attempts == 8
    assert alone.contract.max_attempts == 4


def test_a_declared_contract_is_filled_up_from_the_task() -> None:
    app = memory_app()

    @app.task(contract=Contract(worker_id="w", version="2", max_attempts=1))
    def work(a: int) -> None:
        """Do it."""

    contract = work.contract

    assert (contract.worker_id, contract.version, contract.purpose) == ("w", "2", "Do it.")
    assert contract.inputs["required"] == ["a"]


def test_a_path_is_looked_for_beside_the_code_and_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "worker_id: here\n", "some.yaml")
    monkeypatch.chdir(tmp_path)
    app = memory_app()

    @app.task(contract="some.yaml")
    def work() -> None: ...

    assert work.contract.worker_id == "here"
    for wrong in (5, {"worker_id": "a"}):
        with pytest.raises(ConfigError, match=r"give a Contract\(\.\.\.\), or the path"):
            app.task(contract=wrong, name="other")(lambda: None)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("contract", "options", "words"),
    [
        (Contract(inputs={"b": "string"}), {}, "requires the input 'b', which the function does"),
        (Contract(inputs={"b?": "string"}), {}, "the function needs 'a', which its contract"),
        (Contract(timeout="5s"), {"timeout": "6s"}, "timeout is 6s, and its contract allows 5s"),
        (Contract(max_attempts=2), {"retry": RetryPolicy(max_retries=2)}, "give at most 1"),
        (Contract(backoff="fixed"), {"retry": RetryPolicy()}, "backoff is 'exponential'"),
        (Contract(rate_limit="10/min"), {"rate_limit": "5/min"}, "say it once"),
        (Contract(rate_limit="often"), {}, "rate_limit is 'often'"),
        (Contract(inputs={"type": "thing"}), {}, "inputs is no JSON Schema"),
        (Contract(outputs={"$ref": "https://example.com/a.json"}), {}, "is no JSON Schema"),
    ],
)
def test_a_contract_that_contradicts_its_task_is_refused_where_it_is_declared(
    contract: Contract, options: dict[str, Any], words: str
) -> None:
    def work(a: int) -> None: ...

    with pytest.raises(ConfigError, match=words):
        memory_app().task(contract=contract, **options)(work)


@pytest.mark.parametrize(
    ("package", "code"),
    [
        ("jsonschema_rs", "app.task(contract=Contract(inputs={'a': 'string'}))(work)"),
        ("yaml", "app.task(contract='contract.yaml')(work)"),
    ],
)
def test_a_missing_extra_is_named_and_nothing_else_needs_it(
    tmp_path: Path, package: str, code: str
) -> None:
    written(tmp_path, "worker_id: a\n")
    program = f"""
import sys
sys.modules[{package!r}] = None
from packhorse import ConfigError, Contract, Packhorse
app = Packhorse("memory://")
def work(a: str) -> str: return a
assert app.task(contract=Contract(max_attempts=1), name="limited")(work).contract.inputs
try:
    {code}
except ConfigError as error:
    assert "packhorse[schema]" in str(error), error
else:
    raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
