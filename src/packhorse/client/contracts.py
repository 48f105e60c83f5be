# SPDX-License-Identifier: MIT
"""A task and its contract put together: what is checked, what is bounded, what is published."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from packhorse.contract import KEY_INPUT, Contract
from packhorse.core.codec import Signature
from packhorse.core.durations import span_text
from packhorse.core.job import Job, RetryRule, options_of
from packhorse.core.keys import shortened
from packhorse.core.options import rate_rule
from packhorse.core.schemas import SchemaCheck
from packhorse.core.versions import PayloadVersions
from packhorse.errors import ConfigError, ContractError


@dataclass(frozen=True, slots=True, eq=False)
class BoundContract:
    """A contract that was declared for one task, ready to be asked."""

    label: str  #: the function, for messages
    contract: Contract
    inputs: SchemaCheck | None
    outputs: SchemaCheck | None
    takes_key: bool  #: the idempotency key is one of the arguments
    describes_answer: bool  #: its outputs are the whole answer: `status` and `outputs`
    speaks_answers: bool  #: plain data that looks like an answer is one

    def versions(self) -> PayloadVersions | None:
        """Those of the payloads, which carry the contract's; None: it has none."""
        version = self.contract.version
        return None if version is None else PayloadVersions(self.label, version)

    def check_payload(self, payload: str | bytes) -> None:
        """Refuse arguments that break the contract; the error names the place."""
        if self.inputs is not None:
            self._require(self.inputs, payload, "argument")

    def check_result(self, result: str | bytes) -> None:
        """Refuse a result that breaks the contract."""
        if self.outputs is not None:
            self._require(self.outputs, result, "result")

    def admit(self, job: Job, payload: str | bytes) -> None:
        """Refuse a job that a producer stored who did not know the contract."""
        self.check_payload(payload)
        key = options_of(job.options).idempotency_key
        if self.needs_key and not self.takes_key and key is None:
            self._refuse_keyless("it was submitted")

    @property
    def needs_key(self) -> bool:
        """Whether a job is refused that has no idempotency key."""
        return self.contract.idempotency_key is not None

    @property
    def rates_tenants(self) -> bool:
        """Whether its rate limit is for each tenant, so that nothing else is a rate key."""
        return self.contract.rate_limit is not None

    def complete(self, fields: dict[str, Any], payload: bytes) -> None:
        """Add to what a caller chose for a job what the contract says, or refuse the call."""
        key = self._key(fields.get("idempotency_key"), payload)
        if key is not None:
            fields["idempotency_key"] = key
        elif self.needs_key and not self.takes_key:
            self._refuse_keyless("this call comes")
        self.limit(fields)

    def limit(self, fields: dict[str, Any]) -> None:
        """Refuse what a caller chose beyond the limits of the contract, and add its rate key."""
        timeout_us, limit_us = fields.get("timeout_us"), self.contract.timeout_us
        if timeout_us is not None and limit_us is not None and timeout_us > limit_us:
            self._refuse(f"a timeout of {span_text(timeout_us)} is above {span_text(limit_us)}")
        retry, most = fields.get("retry"), self.contract.max_attempts
        if retry is not None and most is not None and retry.max_retries >= most:
            self._refuse(f"max_retries of {retry.max_retries} is above max_attempts of {most} - 1")
        if self.rates_tenants:
            if fields.get("rate_key") is not None:
                self._refuse("its rate limit is for each tenant, so a call brings no rate_key")
            fields["rate_key"] = fields.get("tenant") or None

    def check_constraints(self, max_tokens: int | None, tools: Iterable[str] | None) -> None:
        """Refuse a request that asks for less than the contract, which one job cannot be given."""
        own = self.contract
        if max_tokens is not None and (own.max_tokens is None or own.max_tokens > max_tokens):
            self._refuse(f"max_tokens is {own.max_tokens}, and the request allows {max_tokens}")
        if tools is not None:
            more = [tool for tool in own.tools_allowed or ("any",) if tool not in tools]
            if more:
                self._refuse(f"it may use {', '.join(more)}, which the request does not allow")

    def _key(self, chosen: str | None, payload: bytes) -> str | None:
        if not self.takes_key:
            return chosen
        given = msgspec.json.decode(payload).get(KEY_INPUT)
        if not isinstance(given, str) or not given:
            return chosen
        given = shortened(given)
        if chosen not in (None, given):
            self._refuse(f"the argument {KEY_INPUT!r} is not the idempotency key of the call")
        return given

    def _require(self, check: SchemaCheck, data: str | bytes, what: str) -> None:
        found = check.problem(msgspec.json.decode(data))
        if found is not None:
            place, words = found
            about = f" {what} {place!r}" if place else f" the {what}{'s' * (what == 'argument')}"
            raise ContractError(
                f"{self.label}:{about} broke the contract of {self.name}: {words}", field=place
            )

    def _refuse_keyless(self, how: str) -> None:
        raise ContractError(
            f"{self.label}: the contract of {self.name} requires an idempotency key, and {how} "
            "without one; submit with using(idempotency_key=...)",
            field=KEY_INPUT,
        )

    def _refuse(self, problem: str) -> None:
        raise ContractError(f"{self.label}: the contract of {self.name} was broken: {problem}")

    @property
    def name(self) -> str:
        """The contract's own name, for messages."""
        return self.contract.worker_id or self.label


def bind_contract(
    given: object, function: Callable[..., Any], signature: Signature, where: str
) -> BoundContract | None:
    """A contract, or the path of one, checked against the function that it is for."""
    if given is None:
        return None
    contract = _read(given, function, where)
    schema, outputs = contract.inputs, contract.outputs
    properties = {} if schema is None else schema.get("properties", {})
    results = {} if outputs is None else outputs.get("properties", {})
    describes_answer = {"status", "outputs"} <= results.keys()
    if schema is not None and not signature.whole:
        _check_names(signature, schema, where)
    return BoundContract(
        label=signature.label,
        contract=contract,
        inputs=None if schema is None else SchemaCheck(schema, f"{where}contract: inputs"),
        outputs=None if outputs is None else SchemaCheck(outputs, f"{where}contract: outputs"),
        takes_key=KEY_INPUT in properties,
        describes_answer=describes_answer,
        speaks_answers=describes_answer or "status" not in results,
    )


def _read(given: object, function: Callable[..., Any], where: str) -> Contract:
    if isinstance(given, Contract):
        return given
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(
            f"{where}contract is {given!r}; give a Contract(...), or the path of a file with one"
        )
    from pathlib import Path  # noqa: PLC0415 - slow to import, and few have a file

    from packhorse.core.contract_files import read_contract  # noqa: PLC0415 - as above

    code = getattr(inspect.unwrap(function), "__code__", None)
    beside = Path(code.co_filename).parent / given if code is not None else Path(given)
    return read_contract(beside if beside.exists() else Path(given))


def _check_names(signature: Signature, schema: Mapping[str, Any], where: str) -> None:
    """Refuse a contract and a function of which no call could satisfy both."""
    for name in schema.get("required", ()):
        if name not in signature.names:
            raise ConfigError(
                f"{where}its contract requires the input {name!r}, which the function does not "
                "take; add the parameter, or leave the input out"
            )
    if schema.get("additionalProperties", True) is not False:
        return
    for name in signature.names:
        if name not in signature.optional and name not in schema.get("properties", {}):
            raise ConfigError(
                f"{where}the function needs {name!r}, which its contract does not allow; add it to "
                "the contract's inputs, or give the parameter a default"
            )


def contract_limits(
    bound: BoundContract | None, limits: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """The limits of a task as its options and its contract say; the contract's are ceilings."""
    found = dict(limits)
    if bound is None:
        return found
    contract, timeout_us = bound.contract, limits.get("timeout_us")
    limit_us = contract.timeout_us
    if limit_us is not None and timeout_us is not None and timeout_us > limit_us:
        raise ConfigError(
            f"{where}timeout is {span_text(timeout_us)}, and its contract allows "
            f"{span_text(limit_us)}; say it once, or give a shorter one"
        )
    found["timeout_us"] = limit_us if timeout_us is None else timeout_us
    found["retry"] = _retry(contract, limits.get("retry"), where)
    if contract.max_attempts is not None:
        found.setdefault("max_crashes", 0)  # every start counts, also one that was lost
    if contract.rate_limit is not None:
        if "rate" in limits:
            raise ConfigError(f"{where}rate_limit is set, and its contract has one; say it once")
        found["rate"] = rate_rule(contract.rate_limit, f"{where}contract: rate_limit")
    return found


def _retry(contract: Contract, chosen: RetryRule | None, where: str) -> RetryRule | None:
    most, backoff = contract.max_attempts, contract.backoff
    if chosen is None:
        if most is None and backoff is None:
            return None
        rule = RetryRule() if most is None else RetryRule(max_retries=most - 1)
        return rule if backoff is None else msgspec.structs.replace(rule, backoff=backoff)
    if most is not None and chosen.max_retries >= most:
        raise ConfigError(
            f"{where}max_retries is {chosen.max_retries}, and its contract allows {most} attempts "
            f"in total, the first one too; give at most {most - 1}"
        )
    if backoff not in (None, chosen.backoff):
        raise ConfigError(
            f"{where}backoff is {chosen.backoff!r}, and its contract says {backoff!r}; say it once"
        )
    return chosen
