# SPDX-License-Identifier: MIT
"""Which server a URL means, what is refused, and what is never shown."""

from __future__ import annotations

import pytest

from packhorse.errors import ConfigError
from packhorse.stores import open_store
from packhorse.stores.redis.settings import Address, RedisSettings, Tls
from tests.support.children import python


@pytest.mark.parametrize(
    ("url", "address", "database"),
    [
        ("redis://example.org", Address("example.org", 6379), 0),
        ("redis://example.org:7000/3", Address("example.org", 7000), 3),
        ("redis://[::1]:7000/", Address("::1", 7000), 0),
        ("redis://[::1]", Address("::1", 6379), 0),
        ("redis://example.org?db=4", Address("example.org", 6379), 4),
        ("unix:///run/redis.sock", Address("/run/redis.sock", 0), 0),
        ("unix:///run/my%20redis.sock?db=2", Address("/run/my redis.sock", 0), 2),
    ],
)
def test_a_url_names_a_server_and_a_database(url: str, address: Address, database: int) -> None:
    settings = RedisSettings.from_url(url)

    assert settings.addresses == (address,)
    assert settings.database == database


def test_a_url_names_a_user_and_a_password() -> None:
    settings = RedisSettings.from_url("redis://an%40na:p%3Ass%2F@example.org")

    assert (settings.username, settings.password) == ("an@na", "p:ss/")
    assert RedisSettings.from_url("redis://:secret@example.org").username is None


def test_what_is_not_said_has_a_default_and_what_is_said_holds() -> None:
    plain = RedisSettings.from_url("redis://h")
    told = RedisSettings.from_url(
        "redis://h?namespace=shop&timeout=500ms&connect_timeout=1s&connections=3"
    )

    assert (plain.namespace, plain.tag) == ("packhorse", "{packhorse}")
    assert (told.namespace, told.tag) == ("shop", "{shop}")
    assert (told.timeout_s, told.connect_timeout_s, told.connections) == (0.5, 1.0, 3)


def test_several_nodes_of_a_cluster_may_be_named() -> None:
    settings = RedisSettings.from_url("redis://a:7000,b:7001?cluster=true")

    assert settings.cluster
    assert settings.addresses == (Address("a", 7000), Address("b", 7001))


def test_a_rediss_url_is_encrypted_and_says_what_it_trusts() -> None:
    settings = RedisSettings.from_url("rediss://h?tls_ca=ca.pem&tls_cert=me.pem&tls_key=me.key")

    assert settings.tls == Tls("ca.pem", "me.pem", "me.key", verify=True)
    assert RedisSettings.from_url("redis://h").tls is None


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("redis://", "host and port"),
        ("redis://h:port", "host and port"),
        ("redis://h:70000", "host and port"),
        ("redis://h/mail", "number of a Redis database"),
        ("redis://h#1", "%23"),
        ("unix://host/path", "names no socket"),
        ("unix://", "names no socket"),
        ("redis://h?colour=red", "'colour' is not an option"),
        ("redis://h?namespace=a{b}", "namespace"),
        ("redis://h?namespace=", "namespace"),
        ("redis://h?timeout=soon", "timeout"),
        ("redis://h?timeout=0", "timeout"),
        ("redis://h?connections=0", "connections"),
        ("redis://h?cluster=perhaps", "neither true nor false"),
        ("redis://h/1?cluster=true", "database 0"),
        ("redis://a,b", "cluster=true"),
        ("unix:///s?cluster=true", "hosts and ports"),
        ("redis://h?tls_ca=x", "rediss://"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_what_to_write(url: str, part: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_store(url)

    assert part in str(refused.value)


def test_a_password_is_shown_nowhere() -> None:
    url = "redis://anna:hunter2@127.0.0.1:1/0?namespace=shop"
    settings = RedisSettings.from_url(url)
    store = open_store(url)

    assert store.label == "redis://anna:***@127.0.0.1:1/0?namespace=shop"
    assert "hunter2" not in repr(settings)
    with pytest.raises(ConfigError) as refused:
        RedisSettings.from_url("redis://anna:hunter2@h:port")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cr/et@h",
        "redis://:s3cr/et@h/0",
        "redis://:12/s3cret@h/0",
        "redis://:s3cr?et@h/0",
        "redis://:12?s3cret=x@h/0",
        "redis://:s3cr#et@h/0",
        "redis://anna:s3cret",
        "redis://:s3cret",
        "redis://anna:s3cret@[h/0",
        "redis://anna:s3cr\u2100et@h/0",
        "redis://h?s3cret/",
        "unix://anna:s3cr/et@/run/redis.sock",
        "rediss://:s3cr/et@h",
    ],
)
def test_a_wrong_url_is_told_without_any_part_of_its_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_store(url)

    assert refused.value.__context__ is None
    assert "s3cr" not in str(refused.value)
    assert "et@" not in str(refused.value)


def test_a_password_may_hold_an_at_sign() -> None:
    assert RedisSettings.from_url("redis://:p@ss@h").password == "p@ss"


def test_labels_name_what_tells_stores_apart() -> None:
    labels = [
        RedisSettings.from_url(url).label
        for url in ("unix:///s?db=2", "rediss://h", "redis://a:1,b:2?cluster=1", "redis://[::1]")
    ]

    assert labels == [
        "unix:///s?db=2",
        "rediss://h:6379/0",
        "redis://a:1,b:2/0?cluster=true",
        "redis://[::1]:6379/0",
    ]


@pytest.mark.parametrize("missing", ["redis", "hiredis"])
def test_a_missing_package_is_told_with_the_extra_to_install(missing: str) -> None:
    program = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name={missing!r})

sys.meta_path.insert(0, Blocked())
from packhorse import ConfigError
from packhorse.stores import open_store
try:
    open_store("redis://127.0.0.1")
except ConfigError as error:
    print(error)
"""
    answer = python(program)

    assert answer.returncode == 0, answer.stderr
    assert "pip install 'packhorse[redis]'" in answer.stdout


def test_importing_packhorse_and_reading_a_url_imports_no_driver() -> None:
    program = """
import sys
import packhorse
from packhorse.stores.redis.settings import RedisSettings
RedisSettings.from_url("redis://h")
print({"redis", "hiredis"} & set(sys.modules))
"""
    assert python(program).stdout.strip() == "set()"
