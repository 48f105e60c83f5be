# SPDX-License-Identifier: MIT
"""`packhorse keys`, and what other commands say of encrypted jobs."""

from __future__ import annotations

import pytest

from packhorse.client.encryption import Encryption, new_key
from tests.cli.project import Project

URL = ("--url", "sqlite:///jobs.db")


def test_a_new_key_is_ready_to_be_used(project: Project) -> None:
    first, second = (project.run("keys", "generate", *name).stdout for name in ((), ("k-2.b",)))

    assert Encryption.parse(first, "stdout").active == "k1"
    assert Encryption.parse(f"{second},{first}", "stdout").names == ("k-2.b", "k1")
    refused = project.run("keys", "generate", "k 1")
    assert refused.exit_code == 2
    assert "the id of a key" in refused.stderr


def test_rotating_tells_what_was_done_and_what_cannot_be_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    k1, k2 = f"k1:{new_key()}", f"k2:{new_key()}"
    monkeypatch.setenv("PACKHORSE_KEYS", k1)
    project.run("enqueue", "greet", "ada")

    monkeypatch.setenv("PACKHORSE_KEYS", k2)
    missing = project.run("keys", "rotate", *URL)
    monkeypatch.setenv("PACKHORSE_KEYS", f"{k2},{k1}")
    done = project.run("keys", "rotate", *URL)

    assert missing.exit_code == 1
    assert "1 value cannot be read: key 'k1' is not here" in missing.stderr
    assert done.stdout == "Looked at 1 job and 0 records: 1 value now encrypted with 'k2'.\n"
    assert project.document("keys", "rotate", *URL) == {
        "jobs": 1,
        "records": 0,
        "values": 0,
        "active": "k2",
        "unreadable": {},
    }


def test_commands_read_with_the_keys_of_the_environment(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKHORSE_KEYS", f"k1:{new_key()}")
    job = project.run("enqueue", "greet", "ada").stdout.strip()

    assert project.document("jobs", "show", job, *URL)["payload"] == {"name": "ada"}
    assert "on, key k1" in project.run("doctor", *URL).stdout
    assert project.run("keys", "rotate", *URL).exit_code == 0

    monkeypatch.delenv("PACKHORSE_KEYS")
    shown = project.run("jobs", "show", job, *URL)
    assert shown.exit_code == 0
    assert "ada" not in shown.stdout
    found = project.run("doctor", *URL)
    assert found.exit_code == 6
    assert "key 'k1' is not here" in found.stdout.replace("\n", " ").replace("  ", " ")
    refused = project.run("keys", "rotate", *URL)
    assert refused.exit_code == 2
    assert "there are no keys here" in refused.stderr
