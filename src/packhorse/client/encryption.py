# SPDX-License-Identifier: MIT
"""The keys of an app, and how they seal and open single values: AES-GCM, bound to job and field.

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
from collections.abc import Mapping
from typing import Any, Final

from packhorse.core.sealing import KEY_NAME, LOOSE, sealed, token_of
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
