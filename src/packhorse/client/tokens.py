# SPDX-License-Identifier: MIT
"""Tokens for the web API: made once, kept as digests in records, looked up with every request.

    packhorse tokens create deploy --scope operator --tenant acme --expires 30d

A token reads `ph_<id>_<secret>`. The store knows the digest of the secret alone; the secret has
256 random bits, so that a plain SHA-256 is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

import msgspec

from packhorse.core.access import permissions_of
from packhorse.core.clock import SystemClock, new_secret
from packhorse.core.durations import Duration, positive_microseconds
from packhorse.core.generators import adrive, awaited, blocking, drive
from packhorse.core.job_info import shown
from packhorse.core.options import name_text
from packhorse.core.policies.records import Put, Record, RecordId, Remove
from packhorse.errors import ConfigError
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, all_records

T = TypeVar("T")

_KIND: Final = "token"
_ATTEMPT_KIND: Final = "token_attempt"
_TOKEN: Final = re.compile(r"ph_([0-9a-f]{16})_([0-9a-f]{64})")
_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32
#: Wrong tokens from one address within the window; from then on none is looked at.
_ATTEMPTS_MAX: Final = 20
_WINDOW_US: Final = 300 * 1_000_000


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    tenant: str | None  #: it sees and does only what is this tenant's
    created_at: datetime
    expires_at: datetime | None


class MadeToken(NamedTuple):
    """A new token; its text is kept nowhere."""

    text: str
    info: TokenInfo


class _TokenDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    digest: str
    scopes: tuple[str, ...]
    created_us: int
    tenant: str | None = None
    expires_us: int | None = None


class _Attempts(msgspec.Struct, frozen=True):
    count: int
    since_us: int


class Tokens:
    """The tokens that a store holds. Every verb has an a-twin."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock = SystemClock()

    @blocking
    def create(
        self,
        name: str,
        *,
        scopes: Iterable[str],
        tenant: str | None = None,
        expires: Duration | None = None,
    ) -> Asking[MadeToken]:
        """Make a token; what it answers is the only place where its text is ever seen."""
        where = f"token {name_text(name, 'the name of a token')!r}"
        granted = tuple(scopes)
        permissions_of(granted, where)
        if tenant is not None:
            name_text(tenant, f"{where}: tenant")
        keep_us = None
        if expires is not None:
            keep_us = positive_microseconds(expires, setting=f"{where}: expires")
        now_us = self._clock.now_us()
        token_id, secret = new_secret(_ID_BYTES), new_secret(_SECRET_BYTES)
        document = _TokenDocument(
            *(name, _digest(secret), granted, now_us, tenant),
            expires_us=None if keep_us is None else now_us + keep_us,
        )
        put = Put(_named(token_id), msgspec.json.encode(document), 0, keep_us=keep_us)
        changed: Changed = yield self._store.records.change((put,))
        if not changed.applied:
            raise ConfigError(f"{where} was not made; try again")
        return MadeToken(f"ph_{token_id}_{secret}", _info(token_id, document))

    acreate = awaited(create)

    @blocking
    def all(self) -> Asking[list[TokenInfo]]:
        """All that have not expired, by id."""
        page = yield from all_records(self._store.records, _KIND)
        return [_info(record.id.key, _read(record)) for record in page.records]

    aall = awaited(all)  # noqa: A003 - the verb above

    @blocking
    def revoke(self, token_id: str) -> Asking[bool]:
        """Let a token count no more, from now on; says whether there was one."""
        record = yield self._store.records.record(_named(token_id))
        if record is None:
            return False
        yield self._store.records.change((Remove(_named(token_id)),))
        return True

    arevoke = awaited(revoke)

    @blocking
    def find(self, text: str) -> Asking[TokenInfo | None]:
        """The token of this text; None: there is none, or it has expired."""
        parts = _TOKEN.fullmatch(text)
        if parts is None:
            return None
        record: Record | None = yield self._store.records.record(_named(parts[1]))
        if record is None:
            return None
        document = _read(record)
        if not hmac.compare_digest(document.digest, _digest(parts[2])):
            return None
        return _info(parts[1], document)

    afind = awaited(find)

    async def ablocked(self, address: str) -> bool:
        """Whether so many wrong tokens came from an address that none is looked at any more."""
        return (await self._attempts(_attempts_of(address)))[0].count >= _ATTEMPTS_MAX

    async def anote_wrong(self, address: str) -> None:
        """Count a wrong token that came from an address."""
        named = _attempts_of(address)
        before, version = await self._attempts(named)
        after = _Attempts(before.count + 1, before.since_us)
        left_us = max(1, before.since_us + _WINDOW_US - self._clock.now_us())
        put = Put(named, msgspec.json.encode(after), version, keep_us=left_us)
        # Of attempts at the very same instant one may count for two: that is near enough.
        await self._store.arun(self._store.records.change((put,)))

    async def _attempts(self, named: RecordId) -> tuple[_Attempts, int]:
        """Return the wrong tokens that were counted, and the version of their record."""
        record: Record | None = await self._store.arun(self._store.records.record(named))
        if record is None:
            return _Attempts(0, self._clock.now_us()), 0
        return _ATTEMPTS.decode(record.document), record.version

    def _drive(self, work: Asking[T]) -> T:
        return drive(work, self._store.run)

    async def _adrive(self, work: Asking[T]) -> T:
        return await adrive(work, self._store.arun)


_DOCUMENTS: Final = msgspec.json.Decoder(_TokenDocument)
_ATTEMPTS: Final = msgspec.json.Decoder(_Attempts)


def _named(token_id: str) -> RecordId:
    return RecordId(_KIND, "", token_id)


def _attempts_of(address: str) -> RecordId:
    return RecordId(_ATTEMPT_KIND, "", hashlib.sha256(address.encode()).hexdigest())


def _read(record: Record) -> _TokenDocument:
    return _DOCUMENTS.decode(record.document)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _info(token_id: str, document: _TokenDocument) -> TokenInfo:
    return shown(TokenInfo, document, id=token_id)
