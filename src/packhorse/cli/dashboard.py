# SPDX-License-Identifier: MIT
"""`packhorse dashboard`: serve the API and the pages of an app."""

from __future__ import annotations

import ipaddress
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import click

from packhorse.cli.options import NAME, app_argument, own_url_option
from packhorse.cli.output import note
from packhorse.errors import ConfigError

if TYPE_CHECKING:
    from packhorse.app import Packhorse


@click.command()
@app_argument
@own_url_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8_000, show_default=True, help="The port."
)
@click.option("--root-path", default="", help="The path that a proxy serves it under.")
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    type=NAME,
    help="An address or network of proxies whose word about the user counts; may be repeated.",
)
@click.option(
    "--proxy-header",
    default="X-Forwarded-User",
    show_default=True,
    help="The header in which they name the user.",
)
@click.option(
    "--proxy-role",
    type=click.Choice(["viewer", "operator", "admin"]),
    default="viewer",
    show_default=True,
    help="The role of users that they name.",
)
@click.option(
    "--trace-url", type=NAME, help="Where traces are shown: https://traces.example/{trace_id}"
)
def dashboard(*, app_name: str | None, **flags: Any) -> None:
    """Serve the API and the dashboard of APP, at 127.0.0.1:8000.

    Who comes from this machine is an admin as long as it listens at a loopback address.
    Elsewhere everybody needs a token, or a proxy that names them.
    """
    from packhorse.cli.discovery import found_app

    with closing(found_app(app_name, url=flags["url"]).app) as app:
        _serve(app, flags)


def _serve(app: Packhorse, flags: dict[str, Any]) -> None:
    try:
        import uvicorn

        from packhorse.web import web_app
    except ImportError as error:
        raise ConfigError(
            f"{error.name} is not installed: install packhorse[web] to serve the dashboard"
        ) from error
    loopback = _is_loopback(flags["host"])
    _require_some_way_in(app, flags, loopback=loopback)
    served = web_app(
        app,
        proxies=flags["proxies"],
        proxy_header=flags["proxy_header"],
        proxy_role=flags["proxy_role"] if flags["proxies"] else None,
        loopback=loopback,
        trace_url=flags["trace_url"],
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[Any] | None = None) -> None:
            await super().startup(sockets)  # exits if the port is taken
            if self.started:
                where = f"http://{flags['host']}:{flags['port']}{flags['root_path']}/"
                note(f"Serving {app!r} at {where}")

    config = uvicorn.Config(
        served,
        host=flags["host"],
        port=flags["port"],
        root_path=flags["root_path"],
        proxy_headers=False,  # whose word counts is decided per request
        server_header=False,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=5,
    )
    server = Server(config)
    with suppress(KeyboardInterrupt, SystemExit):  # it has logged why it did not start
        server.run()
    if not server.started:
        sys.exit(2)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _require_some_way_in(app: Packhorse, flags: dict[str, Any], *, loopback: bool) -> None:
    """Beyond this machine nothing is shown without authentication, so there must be a way."""
    from packhorse.client.tokens import Tokens

    if loopback or flags["proxies"] or Tokens(app.store).all():
        return
    raise ConfigError(
        f"at {flags['host']} no one could sign in: there is no token; make one with 'packhorse "
        "tokens create NAME --scope viewer', or name your proxy with --proxy"
    )
