# SPDX-License-Identifier: MIT
"""Keys, and single values sealed with them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from packhorse import ConfigError, Encryption, Packhorse
from packhorse.client.encryption import chosen_encryption, new_key
from packhorse.client.sealed_store import SealedStore, plain_store
from packhorse.core.policies.uniqueness import same_payload
from packhorse.core.sealing import is_sealed, key_of
from packhorse.stores.memory import MemoryStore

PLACE = "job\0one\0payload\0"


def test_a_value_opens_at_its_own_place_alone() -> None:
    keys = Encryption({"k1": new_key()})
    sealed = keys.seal(b"[1]", PLACE)

    assert key_of(sealed) == "k1"
    assert keys.open(sealed, PLACE) == b"[1]"
    assert keys.open(sealed, "job\0two\0payload\0") is None
    assert keys.open(sealed, "job\0one\0result\0") is None


def test_the_same_value_at_the_same_place_is_the_same_text() -> None:
    keys = Encryption({"k1": new_key()})

    assert keys.seal(b"[1]", PLACE) == keys.seal(b"[1]", PLACE)
    assert keys.seal(b"[1]", PLACE) != keys.seal(b"[1]", "job\0two\0payload\0")
    assert keys.seal(b"[1]", PLACE) != keys.seal(b"[2]", PLACE)
    loose = [keys.seal(b"[1]", "any", loose_for=job) for job in ("one", "two")]
    assert loose[0] != loose[1]
    assert [keys.open(text, PLACE, loose_place="any") for text in loose] == [b"[1]"] * 2


def test_another_key_of_the_same_id_opens_nothing() -> None:
    sealed = Encryption({"k1": new_key()}).seal(b"[1]", PLACE)

    assert Encryption({"k1": new_key()}).open(sealed, PLACE) is None
    assert Encryption({"k2": new_key()}).open(sealed, PLACE) is None
    assert Encryption({"k1": new_key()}).open(b"[1]", PLACE) == b"[1]"


@pytest.mark.parametrize(
    "text", ['{"$enc":"k1"}', '{"$enc":"k1:"}', '{"$enc":"k1:a b"}', '{"$enc":1}', "", "{}"]
)
def test_what_only_looks_like_it_is_plain(text: str) -> None:
    assert not is_sealed(text)
    assert not is_sealed(text.encode())


def test_a_digest_cannot_be_made_without_the_key_and_names_it() -> None:
    keys, others = Encryption({"k1": new_key()}), Encryption({"k2": new_key()})

    digest = keys.digest("2:abc")

    assert digest.startswith("2.k1:")
    assert keys.digest(digest) == digest
    assert not same_payload(digest, keys.digest("2:abd"))
    assert same_payload(digest, others.digest("2:abd"))  # they cannot be compared


@pytest.mark.parametrize(
    ("keys", "active", "said"),
    [
        ({}, None, "no key"),
        ({"k1": b"short"}, None, "'k1' is not 32 random bytes"),
        ({"k1": "not base64!"}, None, "'k1' is not 32 random bytes"),
        ({"k 1": new_key()}, None, "the id of a key"),
        ({"k1": new_key()}, "k2", "active key 'k2'"),
    ],
)
def test_keys_that_cannot_work_are_refused(
    keys: dict[str, bytes | str], active: str | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Encryption(keys, active)


def test_keys_are_never_shown() -> None:
    key = new_key()
    keys = Encryption({"k1": key, "k2": base64.urlsafe_b64decode(new_key())})

    assert repr(keys) == "Encryption(keys=['k1', 'k2'], active='k1')"
    for text in (f"k1:{key},k1:{key}", key, f"k1;{key}", f"{key}:k1"):
        with pytest.raises(ConfigError) as refused:
            Encryption.parse(text, "PACKHORSE_KEYS")
        assert key not in str(refused.value)


def test_keys_come_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = f"k2:{new_key()}, k1:{new_key()}"
    file = tmp_path / "keys"
    file.write_text(text.replace(", ", "\n") + "\n")

    assert chosen_encryption(None) is None
    monkeypatch.setenv("PACKHORSE_KEYS", text)
    named = chosen_encryption(None)
    assert named is not None
    assert (named.names, named.active) == (("k2", "k1"), "k2")
    app = Packhorse(store=MemoryStore())
    assert isinstance(app.store, SealedStore)
    assert isinstance(plain_store(app.store), MemoryStore)

    monkeypatch.setenv("PACKHORSE_KEYS_FILE", str(file))
    with pytest.raises(ConfigError, match="both set"):
        chosen_encryption(None)
    monkeypatch.delenv("PACKHORSE_KEYS")
    read = chosen_encryption(None)
    assert read is not None
    assert read.open(named.seal(b"[1]", PLACE), PLACE) == b"[1]"
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        Packhorse(store=MemoryStore())


def test_an_app_without_keys_has_its_store_as_it_is() -> None:
    store = MemoryStore()

    assert Packhorse(store=store).store is store
