# SPDX-License-Identifier: MIT
"""`packhorse tokens`: make, list and revoke tokens for the web API."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from packhorse.cli.exits import NothingMatched
from packhorse.cli.options import NAME, duration, on_store, store_command
from packhorse.cli.output import note, print_list, print_struct, print_text, the_one

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.client.tokens import TokenInfo


@click.group()
def tokens() -> None:
    """Make, list and revoke tokens for the web API and the dashboard."""


@store_command(tokens, "create")
@click.argument("name", type=NAME)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=NAME,
    help="A role (viewer, operator, admin) or a permission such as jobs.submit; may be repeated.",
)
@click.option("--tenant", type=NAME, help="It sees and does only what is this tenant's.")
@click.option("--expires", type=duration, help="It counts for so long, such as 30d.")
def create_token(
    app: Packhorse,
    *,
    name: str,
    scopes: tuple[str, ...],
    tenant: str | None,
    expires: str | None,
    as_json: bool,
) -> None:
    """Make a token and print it. It is kept nowhere: the store knows a digest of it."""
    from packhorse.client.tokens import Tokens

    made = Tokens(app.store).create(name, scopes=scopes, tenant=tenant, expires=expires)
    if as_json:
        print_struct(made.info, token=made.text)
        return
    note(f"Token {made.info.id} was made for {name}; it is not shown again.")
    print_text(made.text)


@store_command(tokens, "list")
def list_tokens(app: Packhorse, *, as_json: bool) -> None:
    """List the tokens that count."""
    from packhorse.client.tokens import Tokens

    headers = ("ID", "NAME", "SCOPES", "TENANT", "CREATED", "EXPIRES")
    none = "No tokens. Make one with 'packhorse tokens create NAME --scope viewer'."
    print_list("tokens", Tokens(app.store).all(), headers, _row, none=none, as_json=as_json)


def _row(token: TokenInfo) -> tuple[object, ...]:
    days = map(_day, (token.created_at, token.expires_at))
    return (token.id, token.name, token.scopes, token.tenant, *days)


@tokens.command("revoke")
@click.argument("token_id", metavar="ID", type=NAME)
@on_store
def revoke_token(app: Packhorse, *, token_id: str) -> None:
    """Let a token count no more, at once."""
    from packhorse.client.tokens import Tokens

    kept = Tokens(app.store)
    token_id = the_one(token_id, (one.id for one in kept.all()))
    if not kept.revoke(token_id):
        raise NothingMatched(f"there is no token {token_id}; see 'packhorse tokens list'")
    print_text(f"Token {token_id} counts no more.")


def _day(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment:%Y-%m-%d}"
