# SPDX-License-Identifier: MIT
"""Keys: taken from arguments by name or by a function, or given with the call."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from packhorse import Call, ConfigError, Packhorse, Unique
from packhorse.client.declarations import Declarations
from packhorse.client.registry import Registry
from packhorse.client.submission import new_job
from packhorse.core.clock import new_id
from packhorse.core.job import NewJob, OnConflict, UniqueRule, UniqueScope
from packhorse.core.keys import KEY_LENGTH_MAX, canonical
from packhorse.unique import payload_digest
from tests.unit.app_support import memory_app


@pytest.fixture
def app() -> Packhorse:
    return memory_app()


@dataclass(frozen=True)
class Account:
    number: int
    bank: str = "b"


class Marker:
    """What no JSON can say."""


def pay(account: Account, cents: int = 5, note: str | None = None) -> None: ...
def keyed(to: Any, marker: Any = Marker()) -> None: ...  # noqa: B008 - a default that cannot travel


def job_of(app: Packhorse, *args: Any, using: Any = None, **options: Any) -> NewJob:
    """The job of a call of a task that is declared with these options."""
    function = keyed if len(args) == 1 and not isinstance(args[0], Account) else pay
    task = app.task(**options)(function)
    chosen = task.using(**using) if using else task
    return new_job(chosen.call(*args), Declarations(Registry()), new_id())


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("user-1", "user-1"),
        (17, "17"),
        (1.5, "1.5"),
        (True, "true"),
        ({"b": 1, "a": [2]}, '{"a":[2],"b":1}'),
        (None, None),
        ("", None),
    ],
)
def test_an_argument_is_the_key_as_a_text_and_none_is_no_key(
    app: Packhorse, value: Any, key: str | None
) -> None:
    job = job_of(app, value, concurrency=1, concurrency_key="to", rate_key="to")

    assert (job.concurrency_key, job.rate_key) == (key, key)


def test_a_function_gets_the_arguments_it_names_as_the_handler_would(app: Packhorse) -> None:
    job = job_of(
        app,
        Account(17),
        concurrency=1,
        concurrency_key=lambda account: f"{account.bank}-{account.number}",
        rate_key=lambda **arguments: arguments["cents"] + 1,
    )

    assert (job.concurrency_key, job.rate_key) == ("b-17", "6")


def test_what_is_left_out_counts_with_its_default(app: Packhorse) -> None:
    job = job_of(app, Account(17), concurrency=1, concurrency_key="cents", rate_key="note")

    assert (job.concurrency_key, job.rate_key) == ("5", None)


def test_a_default_that_cannot_travel_is_no_key(app: Packhorse) -> None:
    assert job_of(app, "a", rate_key="marker").rate_key is None


def test_a_long_argument_becomes_a_short_key_that_stays_the_same(app: Packhorse) -> None:
    long = "x" * (KEY_LENGTH_MAX + 1)
    job = job_of(app, long, rate_key="to", name="one")
    same = job_of(app, long, rate_key="to", name="two")
    other = job_of(app, f"{long}y", rate_key="to", name="three")

    assert job.rate_key == same.rate_key != other.rate_key
    assert len(job.rate_key or "") <= KEY_LENGTH_MAX


def test_an_argument_with_a_nul_becomes_a_key_without(app: Packhorse) -> None:
    job = job_of(app, "a\0b", rate_key="to", name="one")
    other = job_of(app, "a\0c", rate_key="to", name="two")

    assert "\0" not in (job.rate_key or "\0")
    assert job.rate_key not in ("a", other.rate_key)


def test_a_function_whose_key_cannot_be_written_is_told_so(app: Packhorse) -> None:
    with pytest.raises(ConfigError, match=r"a key cannot be <.*Marker"):
        job_of(app, "a", rate_key=lambda to: Marker())


def test_keys_given_with_the_call_win_over_those_of_the_task(app: Packhorse) -> None:
    job = job_of(
        app,
        "a",
        concurrency=1,
        concurrency_key="to",
        rate_key="to",
        using={
            "concurrency_key": "c",
            "rate_key": "r",
            "ordering_key": "o",
            "weight": 3,
            "idempotency_key": "i",
            "idempotency_window": "1h",
        },
    )

    assert (job.concurrency_key, job.rate_key, job.ordering_key) == ("c", "r", "o")
    assert job.weight == 3
    assert job.idempotency is not None
    assert (job.idempotency.key, job.idempotency.window_us) == ("i", 3_600_000_000)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ordering_key": ""}, "keyed.using(): ordering_key is ''"),
        ({"rate_key": 5}, "rate_key is 5; give a text"),
        ({"concurrency_key": "x" * 257}, "has 257 characters, and 256 are allowed"),
        ({"weight": 0}, "keyed.using(): weight is 0; give a whole number from 1 to"),
        ({"weight": 10**30}, "weight is 1000000000000000000000000000000; give a whole number"),
        ({"weight": 1.5}, "weight is 1.5"),
        ({"idempotency_key": ""}, "idempotency_key is ''"),
        ({"idempotency_window": "1h"}, "an idempotency_window and no idempotency_key"),
        ({"idempotency_key": "k", "idempotency_window": "25h"}, "results are kept for 1d"),
        ({"unique": "to"}, "unique is 'to'; give a Unique(...)"),
        ({"unique": Unique("too")}, "unique: key takes argument 'too'"),
        ({"wait": "soon"}, "wait is 'soon'"),
    ],
)
def test_what_a_call_cannot_be_given_is_refused(app: Packhorse, options: Any, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        job_of(app, "a", using=options)

    assert words in str(raised.value)


# --------------------------------------------------------------------------------- uniqueness


def rule_of(app: Packhorse, unique: Unique, *args: Any, name: str = "one") -> UniqueRule:
    rule = job_of(app, *args, unique=unique, name=name).unique
    assert rule is not None
    return rule


def test_all_arguments_are_the_key_however_they_are_given(app: Packhorse) -> None:
    task = app.task(unique=Unique())(pay)
    calls = (
        task.call(Account(17), 5),
        task.call(cents=5, account=Account(17, "b")),
        task.call(Account(17)),
        task.call(Account(17), 6),
    )

    rules = [new_job(call, Declarations(Registry()), new_id()).unique for call in calls]

    keys = [None if rule is None else rule.key for rule in rules]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_a_key_may_be_some_arguments_or_a_function_of_them(app: Packhorse) -> None:
    one = rule_of(app, Unique("cents"), Account(17), 5)
    two = rule_of(app, Unique(("account", "cents")), Account(17), 5, name="two")
    made = rule_of(app, Unique(lambda cents: cents // 10), Account(17), 15, name="three")

    assert (one.key, made.key) == ("[5]", "[1]")
    assert two.key == '[{"bank":"b","number":17},5]'


def test_a_function_that_returns_none_makes_this_call_not_unique(app: Packhorse) -> None:
    job = job_of(app, "a", unique=Unique(lambda to: None))

    assert job.unique is None


def test_a_calls_own_rule_wins_over_the_tasks(app: Packhorse) -> None:
    own = Unique("to", scope="window", on_conflict="throttle", window="10m")

    job = job_of(app, "a", unique=Unique(), using={"unique": own})

    assert job.unique == UniqueRule('["a"]', UniqueScope.WINDOW, OnConflict.THROTTLE, 600_000_000)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scope": "forever"}, "unique: scope is 'forever'; give one of 'until_started'"),
        ({"on_conflict": "explode"}, "unique: on_conflict is 'explode'; give one of 'reject'"),
        ({"scope": "window"}, "scope is 'window' without a window"),
        ({"scope": "window", "window": 0}, "without a window longer than zero"),
        ({"window": "1m"}, "window is set and scope is 'until_finished'"),
        ({"on_conflict": "throttle"}, "on_conflict is 'throttle' and scope is 'until_finished'"),
        ({"key": 5}, "unique: key is 5; give the name of an argument"),
        ({"key": ()}, "unique: key is ()"),
        ({"window": "soon"}, "unique: window is 'soon'"),
    ],
)
def test_a_rule_that_contradicts_itself_is_refused_when_it_is_made(
    options: Any, words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        Unique(**options)

    assert words in str(raised.value)


def test_the_digest_of_a_payload_is_the_same_for_equal_arguments(app: Packhorse) -> None:
    def order(a: float, b: set[str], c: Decimal, d: datetime, e: Any = None) -> None: ...

    task = app.task(order)
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    east = noon.astimezone(timezone(timedelta(hours=2)))

    def digest_of(call: Call[None], name: str = "order") -> str:
        return payload_digest(name, task.definition, call.payload)

    one = digest_of(task.call(1, {"x", "y"}, Decimal("1.0"), noon))
    assert one == digest_of(task.call(1.0, {"y", "x"}, Decimal(1), east, None))
    assert one == digest_of(task.call(d=noon, c=Decimal("1.00"), b={"x", "y"}, a=1))
    assert one != digest_of(task.call(2, {"x", "y"}, Decimal(1), noon))
    assert one != digest_of(task.call(1, {"x", "y"}, Decimal(1), noon, e=0))
    assert one != digest_of(task.call(1, {"x", "y"}, Decimal(1), noon), "other")


class Tone(Enum):
    LOUD = "loud"


class Sized(msgspec.Struct, tag="sized"):
    sizes: frozenset[int]


class Model(BaseModel):
    words: set[str]


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ({3, 1, 2}, frozenset({2, 3, 1})),
        ({1, "a", None}, {None, "a", 1}),
        ({"k": [{"b", "a"}]}, {"k": ({"a", "b"},)}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: "x"}, {1.0: "x"}),
        (0.0, -0.0),
        (Tone.LOUD, "loud"),
        (Sized(frozenset({8, 16, 24})), Sized(frozenset({24, 16, 8}))),
        (Model(words={"a", "b", "c"}), Model(words={"c", "b", "a"})),
        (Account(17), Account(17, "b")),
        (Decimal(500), Decimal("5E2")),
        (uuid.UUID(int=1), uuid.UUID(int=1)),
    ],
)
def test_equal_values_are_one_text(one: Any, same: Any) -> None:
    assert canonical(one) == canonical(same)


_OF_A_PROCESS = """
import sys
from enum import Enum
from typing import Any
from packhorse import Packhorse, Unique

class Colour(Enum):
    RED = "red"
    BLUE = "blue"

app = Packhorse(sys.argv[1])

@app.task(unique=Unique())
def count(words: set[str], colours: set[Colour], any_words: Any = None) -> None: ...

@app.task
def pay(words: Any, cents: int = 5) -> None: ...

words = {f"word {number}" for number in range(40)}
job = count.enqueue(words, set(Colour), {"deep": [words]})
paid = pay.using(idempotency_key="k").enqueue(words, *map(int, sys.argv[2:]))
named = pay.using(job_id="named").enqueue(words)
print(job.id, paid.id, named.id)
"""


def test_equal_arguments_are_equal_in_every_process(tmp_path: Path) -> None:
    said = set()
    for seed, more in (("1", []), ("2", ["5"]), ("3", [])):
        done = subprocess.run(
            [sys.executable, "-c", _OF_A_PROCESS, f"sqlite:///{tmp_path}/jobs.db", *more],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said.add(done.stdout)

    assert len(said) == 1


def test_a_wire_task_has_the_keys_of_its_declared_task(app: Packhorse) -> None:
    app.task(name="pay", unique=Unique("to"), concurrency=1, concurrency_key="to")(keyed)
    task = {"id": "t1", "type": "pay", "payload": {"to": "a"}}

    first = app.submit(task)
    again = app.submit({**task, "id": "t2"})

    assert (again.id, again.deduplicated) == (first.id, True)
    assert first.info().concurrency_key == "a"
