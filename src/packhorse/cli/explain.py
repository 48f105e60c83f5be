# SPDX-License-Identifier: MIT
"""`packhorse explain`: what keeps a job from running."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from packhorse.cli.options import NAME, json_option, on_store
from packhorse.cli.output import one_line, print_json, print_text

if TYPE_CHECKING:
    from packhorse.app import Packhorse

__all__ = ["explain"]


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--tenant", type=NAME, help="As this tenant sees it: no other job is found or named.")
@json_option
@on_store
def explain(app: Packhorse, *, job_id: str, tenant: str | None, as_json: bool) -> None:
    """Tell why a job is not running, or what it does instead.

    All that holds it back is told, what has to change first first: not due, paused, behind another
    job of its line, a busy key, a rate limit and when it frees, no live worker, or its turn.
    """
    from packhorse.cli.selection import whole_id

    job_id = whole_id(app.store, job_id, tenant=tenant)
    view = app if tenant is None else app.tenant(tenant)
    explanation = view.explain(job_id)
    if as_json:
        from packhorse.cli.display import document_of

        print_json(document_of(explanation))
        return
    for line in str(explanation).splitlines():
        print_text(one_line(line))
