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
from typing import Final, NamedTuple

import msgspec

from packhorse.core.access import permissions_of
from packhorse.core.clock import Clock, SystemClock, new_secret, to_datetime
from packhorse.core.driving import adrive, drive
from packhorse.core.durations import Duration, positive_microseconds
from packhorse.core.options import name_text
from packhorse.core.policies.records import Put, Record, RecordId, Remove
from packhorse.errors import ConfigError
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, all_records

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

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()

    def create(
        self,
        name: str,
        *,
        scopes: Iterable[str],
        tenant: str | None = None,
        expires: Duration | None = None,
    ) -> MadeToken:
        """Make a token; what it answers is the only place where its text is ever seen."""
        return drive(self._create(name, tuple(scopes), tenant, expires), self._store.run)

    async def acreate(
        self,
        name: str,
        *,
        scopes: Iterable[str],
        tenant: str | None = None,
        expires: Duration | None = None,
    ) -> MadeToken:
        """As `create`, without blocking the event loop."""
        making = self._create(name, tuple(scopes), tenant, expires)
        return await adrive(making, self._store.arun)

    def all(self) -> list[TokenInfo]:
        """All that have not expired, by id."""
        return drive(self._all(), self._store.run)

    async def aall(self) -> list[TokenInfo]:
        """As `all`, without blocking the event loop."""
        return await adrive(self._all(), self._store.arun)

    def revoke(self, token_id: str) -> bool:
        """Let a token count no more, from now on; says whether there was one."""
        return drive(self._revoke(token_id), self._store.run)

    async def arevoke(self, token_id: str) -> bool:
        """As `revoke`, without blocking the event loop."""
        return await adrive(self._revoke(token_id), self._store.arun)

    def find(self, text: str) -> TokenInfo | None:
        """The token of this text; None: there is none, or it has expired."""
        return drive(self._find(text), self._store.run)

    async def afind(self, text: str) -> TokenInfo | None:
        """As `find`, without blocking the event loop."""
        return await adrive(self._find(text), self._store.arun)

    async def ablocked(self, address: str) -> bool:
        """Whether so many wrong tokens came from an address that none is looked at any more."""
        return await adrive(self._blocked(address), self._store.arun)

    async def anote_wrong(self, address: str) -> None:
        """Count a wrong token that came from an address."""
        await adrive(self._note_wrong(address), self._store.arun)

    # ------------------------------------------------------------------------------------ asking

    def _create(
        self, name: str, scopes: tuple[str, ...], tenant: str | None, expires: Duration | None
    ) -> Asking[MadeToken]:
        where = f"token {name_text(name, 'the name of a token')!r}"
        permissions_of(scopes, where)
        if tenant is not None:
            name_text(tenant, f"{where}: tenant")
        keep_us = None
        if expires is not None:
            keep_us = positive_microseconds(expires, setting=f"{where}: expires")
        now_us = self._clock.now_us()
        token_id, secret = new_secret(_ID_BYTES), new_secret(_SECRET_BYTES)
        document = _TokenDocument(
            *(name, _digest(secret), scopes, now_us, tenant),
            expires_us=None if keep_us is None else now_us + keep_us,
        )
        put = Put(_named(token_id), msgspec.json.encode(document), 0, keep_us=keep_us)
        changed: Changed = yield self._store.records.change((put,))
        if not changed.applied:
            raise ConfigError(f"{where} was not made; try again")
        return MadeToken(f"ph_{token_id}_{secret}", _info(token_id, document))

    def _all(self) -> Asking[list[TokenInfo]]:
        page = yield from all_records(self._store.records, _KIND)
        return [_info(record.id.key, _read(record)) for record in page.records]

    def _revoke(self, token_id: str) -> Asking[bool]:
        record = yield self._store.records.record(_named(token_id))
        if record is None:
            return False
        yield self._store.records.change((Remove(_named(token_id)),))
        return True

    def _find(self, text: str) -> Asking[TokenInfo | None]:
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

    def _blocked(self, address: str) -> Asking[bool]:
        record: Record | None = yield self._store.records.record(_attempts_of(address))
        return record is not None and _ATTEMPTS.decode(record.document).count >= _ATTEMPTS_MAX

    def _note_wrong(self, address: str) -> Asking[None]:
        named, now_us = _attempts_of(address), self._clock.now_us()
        record: Record | None = yield self._store.records.record(named)
        before = _Attempts(0, now_us) if record is None else _ATTEMPTS.decode(record.document)
        after = _Attempts(before.count + 1, before.since_us)
        left_us = max(1, before.since_us + _WINDOW_US - now_us)
        expected = 0 if record is None else record.version
        put = Put(named, msgspec.json.encode(after), expected, keep_us=left_us)
        # Of attempts at the very same instant one may count for two: that is near enough.
        yield self._store.records.change((put,))


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
    expires_us = document.expires_us
    return TokenInfo(
        id=token_id,
        name=document.name,
        scopes=document.scopes,
        tenant=document.tenant,
        created_at=to_datetime(document.created_us),
        expires_at=None if expires_us is None else to_datetime(expires_us),
    )
