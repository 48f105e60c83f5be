# SPDX-License-Identifier: MIT
"""`packhorse doctor`: show facts about the store and look for common mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from packhorse.cli.exits import ExitCode
from packhorse.cli.options import json_option, on_store
from packhorse.cli.output import print_fields, print_json, print_table, print_text

if TYPE_CHECKING:
    from packhorse.app import Packhorse


@click.command()
@json_option
@on_store
def doctor(app: Packhorse, *, as_json: bool) -> None:
    """Tell the facts about the store and look for common mistakes.

    Exit code 0 says that there is no problem, though there may be warnings; 6 that there is one.
    """
    import msgspec

    from packhorse.cli.doctor_checks import Severity, findings
    from packhorse.cli.doctor_survey import take_survey
    from packhorse.core.clock import SystemClock

    survey = take_survey(app, SystemClock())
    found = findings(survey)
    healthy = all(finding.level is not Severity.PROBLEM for finding in found)
    facts = {"packhorse": survey.version, **survey.facts, "encryption": _encryption(app)}
    if as_json:
        print_json({"ok": healthy, "facts": facts, "findings": msgspec.to_builtins(found)})
    else:
        print_fields(facts.items())
        print_text("")
        rows = [(one.check, one.level.value, one.message) for one in found]
        print_table(("CHECK", "LEVEL", "FINDING"), rows, wrapped=True)
    if not healthy:
        raise click.exceptions.Exit(ExitCode.UNHEALTHY)


def _encryption(app: Packhorse) -> str:
    from packhorse.client.sealed_store import SealedStore

    if not isinstance(app.store, SealedStore):
        return "off"
    keys = app.store.sealer.keys
    others = [name for name in keys.names if name != keys.active]
    return f"on, key {keys.active}" + (f"; also reads {', '.join(others)}" if others else "")
