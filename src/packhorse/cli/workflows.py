# SPDX-License-Identifier: MIT
"""`packhorse workflows`: list, show, cancel, retry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from packhorse.cli.options import json_option, on_store
from packhorse.cli.output import note, print_fields, print_json, print_table, print_text

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.workflows.info import NodeInfo

__all__ = ["cancel_workflow", "list_workflows", "retry_workflow", "show_workflow", "workflows"]

_NAME = click.argument("name", metavar="NAME")


@click.group()
def workflows() -> None:
    """List, show, cancel and retry workflows."""


@workflows.command("list")
@click.option("--limit", type=click.IntRange(1, 100_000), default=1_000, help="How many; 1000.")
@json_option
@on_store
def list_workflows(app: Packhorse, *, limit: int, as_json: bool) -> None:
    """List workflows that run or are still kept."""
    from packhorse.client.documents import document_of

    found = app.workflows.all(limit=limit)
    if as_json:
        print_json({"workflows": [document_of(each) for each in found]})
    elif found:
        headers = ("WORKFLOW", "TENANT", "STATE", "NODES", "COMPLETED", "FAILED", "CREATED")
        rows = (
            (
                *(each.id, each.tenant or "-", each.state, each.nodes, each.completed),
                *(each.failed, f"{each.created_at:%Y-%m-%d %H:%M:%S}Z"),
            )
            for each in found
        )
        print_table(headers, rows)
    else:
        note("No workflows. Start one with app.workflow(name).start().")


@workflows.command("show")
@_NAME
@click.option("--tenant", default="", help="Whose workflow; default: of no tenant.")
@click.option("--dot", is_flag=True, help="Print the graph for Graphviz.")
@click.option("--mermaid", is_flag=True, help="Print the graph for Mermaid.")
@json_option
@on_store
def show_workflow(
    app: Packhorse, *, name: str, tenant: str, dot: bool, mermaid: bool, as_json: bool
) -> None:
    """Show a workflow, by its name or id, and draw its graph."""
    from packhorse.client.documents import document_of

    workflow = app.workflows.get(name, tenant=tenant)
    info, nodes = workflow.info(), workflow.nodes()
    if dot or mermaid:
        for line in _dot(nodes) if dot else _mermaid(nodes):
            print_text(line)
    elif as_json:
        print_json({**document_of(info), "graph": [document_of(node) for node in nodes]})
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


@workflows.command("cancel")
@_NAME
@click.option("--tenant", default="", help="Whose workflow; default: of no tenant.")
@json_option
@on_store
def cancel_workflow(app: Packhorse, *, name: str, tenant: str, as_json: bool) -> None:
    """Cancel the jobs of a workflow and what waits behind them."""
    workflow = app.workflows.get(name, tenant=tenant)
    cancelled = workflow.cancel()
    if as_json:
        print_json({"workflow": workflow.id, "cancelled": cancelled})
    else:
        said = "is cancelled" if cancelled else f"had ended: it is {workflow.status()}"
        print_text(f"Workflow {workflow.id} {said}.")


@workflows.command("retry")
@_NAME
@click.option("--tenant", default="", help="Whose workflow; default: of no tenant.")
@json_option
@on_store
def retry_workflow(app: Packhorse, *, name: str, tenant: str, as_json: bool) -> None:
    """Try dead and cancelled nodes of a workflow again, and what waits behind them."""
    workflow = app.workflows.get(name, tenant=tenant)
    count = workflow.retry()
    if as_json:
        print_json({"workflow": workflow.id, "retried": count})
    else:
        print_text(f"{count} nodes of workflow {workflow.id} are tried again.")


# ----------------------------------------------------------------------------------------- drawing


def _drawn(nodes: Sequence[NodeInfo]) -> Iterator[str]:
    """The graph as lines: deeper nodes further to the right, with those they wait for."""
    depth: dict[str, int] = {}
    for node in nodes:  # parents come first
        depth[node.name] = 1 + max((depth.get(name, 0) for name in node.parents), default=0)
    for node in nodes:
        indent = "  " * (depth[node.name] - 1 + node.key.count("."))
        behind = f" <- {', '.join(node.parents)}" if node.parents else ""
        told = node.reason or (node.same_as and f"same as job {node.same_as}")
        why = f" ({told})" if told else ""
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
