# SPDX-License-Identifier: MIT
"""The keys of an app, and how they seal and open what jobs consist of: AES-GCM, bound to its place.

The nonce is made from the key, the place and the value, so that the same job submitted again is the
same text and no nonce serves two values. A value is bound to its job and field as associated data:
put in another place, it does not open.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from packhorse.core.job import AttemptError, AttemptRecord, Job, JobRecord, NewJob
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.uniqueness import may_replace
from packhorse.core.sealing import KEY_NAME, LOOSE, is_sealed, sealed, token_of
from packhorse.core.settlement import Settlement
from packhorse.errors import ConfigError

KEYS_VARIABLE: Final = "PACKHORSE_KEYS"
KEYS_FILE_VARIABLE: Final = "PACKHORSE_KEYS_FILE"
KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_BETWEEN: Final = re.compile(r"[\s,]+")


class _Key:
    """One key: a cipher, and what nonces and digests are made with."""

    def __init__(self, secret: bytes) -> None:
        self.cipher = _aes_gcm()(_derived(secret, b"packhorse encrypt 1"))
        self.nonces = _derived(secret, b"packhorse nonce 1")
        self.digests = _derived(secret, b"packhorse digest 1")


class Encryption:
    """The keys that values are encrypted with where they are stored, by their ids.

    A key is 32 random bytes, or these in base64, as `packhorse keys generate` prints them. All are
    tried for reading; `active` names the one that writes, by default the first.
    """

    def __init__(self, keys: Mapping[str, bytes | str], active: str | None = None) -> None:
        if not keys:
            raise ConfigError(
                "encryption was given no key; make one with 'packhorse keys generate'"
            )
        self._keys = {name: _Key(_secret(name, key)) for name, key in keys.items()}
        self.active = next(iter(self._keys)) if active is None else active
        if self.active not in self._keys:
            raise ConfigError(
                f"the active key {self.active!r} is not among those given: {', '.join(self._keys)}"
            )

    def __repr__(self) -> str:
        return f"Encryption(keys={list(self._keys)!r}, active={self.active!r})"

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of its keys."""
        return tuple(self._keys)

    @classmethod
    def parse(cls, text: str, source: str) -> Encryption:
        """Keys written as `ID:BASE64`, with commas or line breaks between; the first one writes."""
        keys: dict[str, bytes | str] = {}
        for number, part in enumerate(filter(None, _BETWEEN.split(text)), 1):
            name, colon, secret = part.partition(":")
            if not colon or name in keys:  # what stands there may be a secret, so it is not shown
                problem = "names a key twice" if colon else "has no colon"
                raise ConfigError(
                    f"{source}: entry {number} {problem}; write each key as ID:BASE64, the one "
                    "that writes first, with commas or line breaks between"
                )
            keys[name] = secret
        return cls(keys)

    def seal(self, value: bytes, place: str, *, loose_for: str | None = None) -> str:
        """A value as it is stored at its place; what is sealed already stays as it is.

        A loose one may move to another job later; it is given that job's id for its nonce alone.
        """
        if token_of(value) is not None:
            return value.decode()
        key, bound = self._keys[self.active], place.encode()
        salt = b"" if loose_for is None else loose_for.encode()
        parts = b"".join(len(part).to_bytes(8) + part for part in (bound, salt, value))
        nonce = hmac.digest(key.nonces, parts, hashlib.sha256)[:_NONCE_BYTES]
        data = base64.urlsafe_b64encode(nonce + key.cipher.encrypt(nonce, value, bound)).decode()
        return sealed(f"{self.active}{'' if loose_for is None else LOOSE}:{data}")

    def open(
        self, text: str | bytes, place: str, *, loose_place: str | None = None
    ) -> bytes | None:
        """What was sealed for this place, or was never sealed; None: no key here opens it."""
        found = token_of(text)
        if found is None:
            return text if isinstance(text, bytes) else text.encode()
        key, bound = self._keys.get(found["key"]), loose_place if found["loose"] else place
        if key is None or bound is None:
            return None
        try:
            data = base64.urlsafe_b64decode(found["data"])
            opened: bytes = key.cipher.decrypt(
                data[:_NONCE_BYTES], data[_NONCE_BYTES:], bound.encode()
            )
        except (_invalid_tag(), ValueError):  # other bytes under this id, or another place
            return None
        return opened

    def digest(self, digest: str) -> str:
        """A digest of arguments that cannot be guessed without the key, and says which it was."""
        way, _, value = digest.rpartition(":")
        if "." in way:
            return digest
        made = hmac.new(self._keys[self.active].digests, value.encode(), hashlib.sha256)
        return f"{way}.{self.active}:{made.hexdigest()}"


def new_key() -> str:
    """A new key, as text."""
    return base64.urlsafe_b64encode(_aes_gcm().generate_key(bit_length=8 * KEY_BYTES)).decode()


def chosen_encryption(given: Encryption | None) -> Encryption | None:
    """The keys given, else those of the environment, if there are any."""
    if given is not None and not isinstance(given, Encryption):
        raise ConfigError("encryption is given as Encryption(keys={id: key}, active=id)")
    text, path = os.environ.get(KEYS_VARIABLE), os.environ.get(KEYS_FILE_VARIABLE)
    if given is not None or (text is None and path is None):
        return given
    if text is not None and path is not None:
        raise ConfigError(
            f"{KEYS_VARIABLE} and {KEYS_FILE_VARIABLE} are both set; keep one of them"
        )
    if path is None:
        return Encryption.parse(text or "", KEYS_VARIABLE)
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
            return Encryption.parse(file.read(), f"the file that {KEYS_FILE_VARIABLE} names")
    except (OSError, UnicodeDecodeError):  # the path may be a key that was meant for the other one
        raise ConfigError(f"the file that {KEYS_FILE_VARIABLE} names cannot be read") from None


def _secret(name: object, key: bytes | str) -> bytes:
    if not isinstance(name, str) or not KEY_NAME.fullmatch(name):
        raise ConfigError(
            "the id of a key has 1 to 64 letters, digits, dots, dashes or underscores; the first "
            "wrong one is not shown, as it may be a key"
        )
    if isinstance(key, str):
        try:
            key = base64.b64decode(key.replace("-", "+").replace("_", "/"), validate=True)
        except (binascii.Error, ValueError):
            key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"key {name!r} is not {KEY_BYTES} random bytes, or these in base64; make one with "
            "'packhorse keys generate'"
        )
    return bytes(key)


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, purpose, hashlib.sha256)


def _aes_gcm() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError(
            "encryption needs the package cryptography: pip install 'packhorse[encryption]'"
        ) from None
    return AESGCM


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - as above

    return InvalidTag


class Sealer:
    """Seals and opens what jobs consist of."""

    def __init__(self, keys: Encryption) -> None:
        self.keys = keys

    def seal_jobs(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """New jobs as they are stored."""
        return [self.seal_job(job) for job in jobs]

    def seal_job(self, job: NewJob, *, keeper: str = "") -> NewJob:
        """A new job as it is stored; `keeper`: the record from which jobs of any id are made."""
        if is_sealed(job.payload):  # it comes from a record, which keeps it that way
            return job
        rule = job.idempotency
        if rule is not None:
            rule = msgspec.structs.replace(rule, digest=self.keys.digest(rule.digest))
        if keeper or may_replace(job.unique):  # its arguments may become those of another job
            loose = loose_place(job.task, job.tenant)
            payload = self.keys.seal(job.payload, loose, loose_for=keeper or job.id)
        else:
            payload = self.keys.seal(job.payload, place(job.id, "payload"))
        return msgspec.structs.replace(job, payload=payload.encode(), idempotency=rule)

    def open_jobs(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Stored jobs as they were submitted, where a key opens them."""
        pairs = [(job, self.open_payload(job)) for job in jobs]
        return [
            job if payload is None else msgspec.structs.replace(job, payload=payload)
            for job, payload in pairs
        ]

    def open_payload(self, job: Job | JobRecord | NewJob) -> bytes | None:
        """The arguments of a job; None: no key opens them."""
        loose = loose_place(job.task, job.tenant)
        return self.keys.open(job.payload, place(job.id, "payload"), loose_place=loose)

    def open_job(self, job: Job) -> Job:
        """A claimed job."""
        payload = self.open_payload(job)
        return job if payload is None else msgspec.structs.replace(job, payload=payload.decode())

    def open_record(self, record: JobRecord) -> JobRecord:
        """What a store knows of a job."""
        payload, result = self.open_payload(record), record.result
        return msgspec.structs.replace(
            record,
            payload=record.payload if payload is None else payload,
            result=None if result is None else self._open(result, place(record.id, "result")),
            error=self.open_error(record.id, record.error),
        )

    def seal_settlement(self, settlement: Settlement) -> Settlement:
        """What an attempt came to."""
        result, error = settlement.result, settlement.error
        if result is None and error is None:
            return settlement
        if result is not None:
            result = self.keys.seal(result.encode(), place(settlement.job_id, "result"))
        if error is not None:
            error = self.seal_error(settlement.job_id, error)
        return msgspec.structs.replace(settlement, result=result, error=error)

    def seal_error(self, job_id: str, error: AttemptError) -> AttemptError:
        """An error: its texts are one value, in the place of the message."""
        texts = msgspec.json.encode((error.message, error.stack, error.outputs))
        message = self.keys.seal(texts, place(job_id, "error"))
        return msgspec.structs.replace(error, message=message, stack=None, outputs=None)

    def open_error(self, job_id: str, error: AttemptError | None) -> AttemptError | None:
        """An error with its texts, if a key opens them."""
        if error is None or not error.message.startswith('{"$enc"'):
            return error
        texts = self.keys.open(error.message, place(job_id, "error"))
        if texts is None:
            return error
        message, stack, outputs = msgspec.json.decode(texts)
        return msgspec.structs.replace(error, message=message, stack=stack, outputs=outputs)

    def open_attempt(self, job_id: str, line: AttemptRecord) -> AttemptRecord:
        """A line of history."""
        if line.error is None:
            return line
        return msgspec.structs.replace(line, error=self.open_error(job_id, line.error))

    def open_attached(self, job_id: str, kept: Attachments) -> Attachments:
        """What is kept with a job."""
        return msgspec.structs.replace(
            kept,
            values={
                name: self._open(value, place(job_id, "step", name))
                for name, value in kept.values.items()
            },
            signals={
                name: tuple(self._open(value, place(job_id, "signal", name)) for value in came)
                for name, came in kept.signals.items()
            },
        )

    def _open(self, value: bytes, where: str) -> bytes:
        opened = self.keys.open(value, where)
        return value if opened is None else opened


def place(job_id: str, field: str, name: str = "") -> str:
    """Where a value belongs; it opens nowhere else. No id or name has U+0000."""
    return f"job\0{job_id}\0{field}\0{name}"


def loose_place(task: str, tenant: str) -> str:
    """Where arguments belong that may become those of another job."""
    return f"any\0{task}\0{tenant}\0payload"
