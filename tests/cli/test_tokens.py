# SPDX-License-Identifier: MIT
"""`packhorse tokens`: make, list, revoke."""

from __future__ import annotations

import json

from packhorse import Packhorse
from packhorse.client.tokens import Tokens
from tests.cli.project import Project


def test_a_token_is_made_listed_without_its_secret_and_revoked(
    project: Project, app: Packhorse
) -> None:
    made = project.run("tokens", "create", "ci", "--scope", "jobs.submit", "--tenant", "acme")
    text = made.stdout.strip()
    found = Tokens(app.store).find(text)
    assert found is not None
    assert (found.name, found.scopes, found.tenant) == ("ci", ("jobs.submit",), "acme")

    listed = project.run("tokens", "list")
    as_json = json.loads(project.run("tokens", "list", "--json").stdout)
    assert found.id in listed.stdout
    assert text.rpartition("_")[2] not in listed.stdout
    assert [one["name"] for one in as_json["tokens"]] == ["ci"]

    assert project.run("tokens", "revoke", found.id[:6]).exit_code == 0
    assert project.run("tokens", "revoke", found.id).exit_code == 7
    assert Tokens(app.store).find(text) is None
    assert project.run("tokens", "list").stdout == ""


def test_an_unknown_scope_is_refused(project: Project) -> None:
    refused = project.run("tokens", "create", "ci", "--scope", "everything")

    assert refused.exit_code == 2
    assert "there is no scope 'everything'" in refused.stderr
