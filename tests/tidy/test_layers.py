# SPDX-License-Identifier: MIT
"""Entry point, configuration, processing loop and handlers are units that can be told apart.

`make check` holds every module against the layers in `pyproject.toml`; this says what they are for.
"""

from __future__ import annotations

from typing import Final

import grimp
import pytest

#: Each unit, and those it must not reach by any chain of imports, not even for type checkers.
INDEPENDENT: Final = {
    "the configuration": ("core.config", ("cli", "runtime", "app", "task")),
    "the processing loop": ("runtime.worker", ("cli", "app")),
    "a handler": ("task", ("cli", "runtime", "app")),
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("packhorse", cache_dir=None)


@pytest.mark.req("S4-29")
@pytest.mark.parametrize("unit", INDEPENDENT)
def test_a_unit_does_not_reach_those_above_it(graph: grimp.ImportGraph, unit: str) -> None:
    name, others = INDEPENDENT[unit]

    chains = [_chain(graph, name, other) for other in others]

    assert [chain for chain in chains if chain] == []


@pytest.mark.req("S4-29")
def test_the_entry_point_reaches_the_loop(graph: grimp.ImportGraph) -> None:
    assert _chain(graph, "cli", "runtime.worker"), "or this would find no chain at all"


def _chain(graph: grimp.ImportGraph, importer: str, imported: str) -> tuple[str, ...] | None:
    return graph.find_shortest_chain(
        f"packhorse.{importer}", f"packhorse.{imported}", as_packages=True
    )
