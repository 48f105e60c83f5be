# SPDX-License-Identifier: MIT
"""What people and programs did through the web, kept in records for a while.

Two kinds of records: what was done (`audit`), and answers to requests that carried an
`Idempotency-Key` (`kept_answer`), which are given again instead of doing it twice.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Final

import msgspec

from packhorse.core.clock import SystemClock, new_id, to_datetime
from packhorse.core.policies.records import DOCUMENT_BYTES_MAX, Put, Record, RecordId, Remove
from packhorse.stores.protocol import Store
from packhorse.stores.records import RecordPage

AUDIT_KIND: Final = "audit"
_ANSWER_KIND: Final = "kept_answer"
_DAY_US: Final = 24 * 3_600 * 1_000_000
#: How long it is known what was done, unless the web app is told otherwise.
KEPT_DAYS: Final = 90
#: Characters of what was before and after that are kept.
_VALUE_MAX: Final = 4_000
#: An answer that is still being made is waited for no longer than this.
_UNDERWAY_US: Final = 60 * 1_000_000


class AuditNote(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was done, or tried."""

    at: datetime
    who: str
    by: str  #: how they were known
    action: str  #: `POST /jobs/{id}/cancel`
    target: str  #: `/api/v1/jobs/0198…/cancel`
    source: str  #: the address that it came from
    status: int  #: how it was answered
    tenant: str = ""
    before: Any = None
    after: Any = None


class AuditPage(msgspec.Struct, frozen=True):
    """Some of what was done, the newest first."""

    notes: tuple[AuditNote, ...]
    after: str | None = None


class AuditLog:
    """What was done through the web."""

    def __init__(self, store: Store, *, keep_days: int = KEPT_DAYS) -> None:
        self._store = store
        self._clock = SystemClock()
        self._keep_us = keep_days * _DAY_US

    async def anote(self, **said: Any) -> None:
        """Keep what was done: the fields of an `AuditNote`, without `at`."""
        now_us = self._clock.now_us()
        said["before"], said["after"] = _short(said.get("before")), _short(said.get("after"))
        note = AuditNote(at=to_datetime(now_us), **said)
        put = Put(
            RecordId(AUDIT_KIND, note.tenant, new_id()),
            msgspec.json.encode(note),
            0,
            order=-now_us,  # so that the first page holds the newest
            keep_us=self._keep_us,
        )
        await self._store.arun(self._store.records.change((put,)))

    async def anotes(
        self, *, tenant: str | None = None, limit: int = 50, after: str | None = None
    ) -> AuditPage:
        """What was done, the newest first."""
        page: RecordPage = await self._store.arun(
            self._store.records.records(
                AUDIT_KIND, tenant=tenant, by_order=True, after=after, limit=limit
            )
        )
        return AuditPage(tuple(_NOTES.decode(one.document) for one in page.records), page.after)


_NOTES: Final = msgspec.json.Decoder(AuditNote)


def _short(value: Any) -> Any:
    if value is None or len(msgspec.json.encode(value)) <= _VALUE_MAX:
        return value
    return "too long to be kept"


class KeptAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a request was answered; status 0: it is still being worked on."""

    request: str  #: a digest of what was asked
    status: int = 0
    body: str = ""
    headers: dict[str, str] = {}


class KeptAnswers:
    """Answers by who asked and with which `Idempotency-Key`, for a day."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def abegin(self, who: str, key: str, request: str) -> KeptAnswer | None:
        """Note that a request is worked on; what is known of that key already, if something is."""
        named = _answer_id(who, key)
        begun = Put(named, msgspec.json.encode(KeptAnswer(request)), 0, keep_us=_UNDERWAY_US)
        changed = await self._store.arun(self._store.records.change((begun,)))
        if changed.applied:
            return None
        record: Record | None = await self._store.arun(self._store.records.record(named))
        return KeptAnswer(request) if record is None else _ANSWERS.decode(record.document)

    async def aend(self, who: str, key: str, answer: KeptAnswer | None) -> None:
        """Keep the answer; None: nothing was done, and the key may be used again."""
        named = _answer_id(who, key)
        text = b"" if answer is None else msgspec.json.encode(answer)
        if answer is None or len(text) > DOCUMENT_BYTES_MAX:
            await self._store.arun(self._store.records.change((Remove(named),)))
        else:
            put = Put(named, text, keep_us=_DAY_US)
            await self._store.arun(self._store.records.change((put,)))


_ANSWERS: Final = msgspec.json.Decoder(KeptAnswer)


def _answer_id(who: str, key: str) -> RecordId:
    return RecordId(_ANSWER_KIND, "", hashlib.sha256(f"{who}\0{key}".encode()).hexdigest())
