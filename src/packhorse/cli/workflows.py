# SPDX-License-Identifier: MIT
"""`packhorse workflows`: list, show, cancel, retry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from packhorse.cli.options import store_command, yes_option
from packhorse.cli.output import (
    confirm,
    print_answer,
    print_fields,
    print_list,
    print_struct,
    print_text,
    the_one,
)
from packhorse.core.text import short_id

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.workflows.handle import Workflow
    from packhorse.workflows.info import NodeInfo, WorkflowInfo

_NAME = click.argument("name", metavar="NAME")
_TENANT = click.option("--tenant", default="", help="Whose workflow; default: of no tenant.")
#: Characters of the id of a run that are shown.
_RUN_SHOWN = 8


@click.group()
def workflows() -> None:
    """List, show, cancel and retry workflows."""


@store_command(workflows, "list")
@click.option("--limit", type=click.IntRange(1, 100_000), default=1_000, help="How many; 1000.")
def list_workflows(app: Packhorse, *, limit: int, as_json: bool) -> None:
    """List workflows that run or are still kept."""
    found = app.workflows.all(limit=limit)
    headers = ("WORKFLOW", "RUN", "TENANT", "STATE", "NODES", "DONE", "FAILED", "CREATED")
    none = "No workflows. Start one with app.workflow(name).start()."
    print_list("workflows", found, headers, _row, none=none, as_json=as_json)


def _row(workflow: WorkflowInfo) -> tuple[object, ...]:
    name, _, run = workflow.id.partition("#")
    return (
        *(short_id(name), run[-_RUN_SHOWN:], workflow.tenant or "-", workflow.state),
        *(workflow.nodes, workflow.completed, workflow.failed),
        f"{workflow.created_at:%m-%d %H:%M}Z",
    )


def _found(app: Packhorse, name: str, tenant: str) -> Workflow:
    """Find a workflow by its name or id, or by a part that fits one alone."""
    from packhorse.group_errors import WorkflowNotFound

    try:
        return app.workflows.get(name, tenant=tenant)
    except WorkflowNotFound:
        ids = [each.id for each in app.workflows.all() if each.tenant == tenant]
        if (run := the_one(name, ids)) in ids:
            return app.workflows.get(run, tenant=tenant)
        whole = the_one(name, (each.partition("#")[0] for each in ids))
        if whole == name:
            raise
        return app.workflows.get(whole, tenant=tenant)


@store_command(workflows, "show")
@_NAME
@_TENANT
@click.option("--dot", is_flag=True, help="Print the graph for Graphviz.")
@click.option("--mermaid", is_flag=True, help="Print the graph for Mermaid.")
def show_workflow(
    app: Packhorse, *, name: str, tenant: str, dot: bool, mermaid: bool, as_json: bool
) -> None:
    """Show a workflow, by its name or id, and draw its graph."""
    from packhorse.client.documents import document_of

    workflow = _found(app, name, tenant)
    info, nodes = workflow.info(), workflow.nodes()
    if dot or mermaid:
        for line in _dot(nodes) if dot else _mermaid(nodes):
            print_text(line)
    elif as_json:
        print_struct(info, graph=[document_of(node) for node in nodes])
    else:
        print_fields(
            [
                ("workflow", info.id),
                ("tenant", info.tenant or None),
                ("state", info.state),
                ("nodes", f"{info.nodes}, {info.completed} completed, {info.failed} failed"),
            ]
        )
        for line in _drawn(nodes):
            print_text(line)


@store_command(workflows, "cancel")
@_NAME
@_TENANT
@yes_option
def cancel_workflow(app: Packhorse, *, name: str, tenant: str, yes: bool, as_json: bool) -> None:
    """Cancel the jobs of a workflow and what waits behind them."""
    workflow = _found(app, name, tenant)
    confirm(f"Cancel workflow {workflow.id}?", yes=yes)
    cancelled = workflow.cancel()
    state = "is cancelled" if cancelled else f"had ended: it is {workflow.status()}"
    text = f"Workflow {workflow.id} {state}."
    print_answer(text, as_json=as_json, workflow=workflow.id, cancelled=cancelled)


@store_command(workflows, "retry")
@_NAME
@_TENANT
def retry_workflow(app: Packhorse, *, name: str, tenant: str, as_json: bool) -> None:
    """Try dead and cancelled nodes of a workflow again, and what waits behind them."""
    workflow = _found(app, name, tenant)
    count = workflow.retry()
    text = f"{count} nodes of workflow {workflow.id} are tried again."
    print_answer(text, as_json=as_json, workflow=workflow.id, retried=count)


# ----------------------------------------------------------------------------------------- drawing


def _drawn(nodes: Sequence[NodeInfo]) -> Iterator[str]:
    """Draw the graph as lines: indent a node by its depth, and name its parents."""
    depth: dict[str, int] = {}
    for node in nodes:  # parents come first
        depth[node.name] = 1 + max((depth.get(name, 0) for name in node.parents), default=0)
    for node in nodes:
        indent = "  " * (depth[node.name] - 1 + node.key.count("."))
        behind = f" <- {', '.join(node.parents)}" if node.parents else ""
        reason = node.reason or (node.same_as and f"same as job {node.same_as}")
        why = f" ({reason})" if reason else ""
        waits = f"; behind it: {', '.join(node.behind)}" if node.behind else ""
        yield f"{indent}[{node.state}] {node.name}{behind}{why}{waits}"


def _dot(nodes: Sequence[NodeInfo]) -> Iterator[str]:
    yield "digraph workflow {"
    for node in nodes:
        yield f'  "{_quoted(node.name)}" [label="{_quoted(node.name)}\\n{node.state}"];'
        for parent in node.parents:
            yield f'  "{_quoted(parent)}" -> "{_quoted(node.name)}";'
    yield "}"


def _mermaid(nodes: Sequence[NodeInfo]) -> Iterator[str]:
    keys = {node.name: f"n{node.key.replace('.', '_')}" for node in nodes}
    yield "flowchart TD"
    for node in nodes:
        text = node.name.replace('"', "'")
        yield f'  {keys[node.name]}["{text}: {node.state}"]'
        for parent in node.parents:
            yield f"  {keys[parent]} --> {keys[node.name]}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
