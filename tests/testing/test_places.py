# SPDX-License-Identifier: MIT
"""A place of its own on a server: empty, apart from what others have there, and gone afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from packhorse import Packhorse
from packhorse.testing.places import own_place
from tests.servers.postgres import postgres_url
from tests.servers.redis import redis_url


def left_on_postgres(name: str) -> int:
    with psycopg.connect(postgres_url()) as connection:
        found = connection.execute("select 1 from pg_namespace where nspname = %s", [name])
        return len(found.fetchall())


def left_on_redis(name: str) -> int:
    with redis.Redis.from_url(redis_url()) as client:
        return len(list(client.scan_iter(f"{{{name}}}*")))


@pytest.mark.parametrize(
    ("server", "left", "options"),
    [
        (postgres_url, left_on_postgres, "schema=production&application_name=shop"),
        (redis_url, left_on_redis, "namespace=production&timeout=3"),
    ],
)
def test_a_place_on_a_server_is_made_and_removed(
    server: Any, left: Any, options: str, tmp_path: Path
) -> None:
    with own_place(f"{server()}?{options}", lambda: tmp_path) as url:
        app = Packhorse(url)
        app.task(name="note")(lambda: None).enqueue()
        name = url.rpartition("=")[2]
        assert left(name) > 0
        app.close()

    assert name.startswith("packhorse_test_")
    assert "production" not in url
    assert options.partition("&")[2] in url
    assert left(name) == 0


def test_a_place_in_a_file_is_a_file_of_the_test(tmp_path: Path) -> None:
    with own_place("sqlite:///production.db?synchronous=off", lambda: tmp_path) as url:
        assert url == f"sqlite:///{tmp_path}/jobs.db?synchronous=off"
