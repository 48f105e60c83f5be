# SPDX-License-Identifier: MIT
"""The stage of a store on a server: what both of them measure, and what each adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.bench import Bench
from benchmarks.measures import (
    blocked_work,
    drain,
    idle,
    limits,
    memory,
    pickup,
    saturated,
    scaling,
    server_claims,
    shapes,
    steady,
    steps,
    submit,
)
from benchmarks.stage import Bounds, Stage
from benchmarks.stores.lines import CHARTED, Lines
from packhorse.stores import open_store
from packhorse.stores.protocol import Store

_TURNS: Final = 8


@dataclass(frozen=True, slots=True)
class Databases:
    """Those of a server, one for each folder."""

    of: Callable[[Path], str]
    place: Callable[[Path], AbstractContextManager[None]]  #: an empty one
    counted: Callable[[Path, Callable[[Store], None]], float]  #: the work of an action
    unit: str  #: in which work is counted
    after_filling: Callable[[Path], None] = lambda _: None


def staged(
    name: str,
    title: str,
    lines: Lines,
    databases: Databases,
    *,
    once: Mapping[str, Callable[[Bench], None]],
    bounds: Bounds,
    method: str,
    facts: Mapping[str, str],
) -> Stage:
    """Everything ready to be measured; `once` is what only this store has."""
    ours = lines.ours()
    counted, unit = databases.counted, databases.unit
    return Stage(
        name=name,
        title=title,
        ours=ours,
        with_slots=lambda slots: lines.ours(slots=slots),
        drains=lines.drains(),
        submits=list(lines.submits()),
        turns=_TURNS,
        waiting=[ours],
        open_store=lambda folder: open_store(databases.of(folder)),
        server=databases.of,
        rounds=MappingProxyType(
            {
                "drain": drain.measure_round,
                "submit": submit.measure_round,
                "scaling": scaling.measure_round,
                "mixed": scaling.measure_mixed_round,
                "steps": steps.measure_round,
                "queues": shapes.measure_queues,
                "large": shapes.measure_large,
                "processes": shapes.measure_processes,
                "limits": limits.measure_round,
            }
        ),
        once=MappingProxyType(
            {
                "pickup": pickup.measure,
                "saturated": saturated.measure,
                "poisson": shapes.measure_poisson,
                "foreign": shapes.measure_foreign,
                "idle": idle.measure,
                "claims": partial(server_claims.measure, counted=counted, unit=unit),
                "blocked": partial(blocked_work.measure, counted=counted, unit=unit),
                **once,
                "memory": memory.measure,
                "steady": steady.measure,
            }
        ),
        bounds=bounds,
        charted=CHARTED,
        method=method,
        facts=facts,
        peers=lines.peers.notes,
        place=databases.place,
        after_filling=databases.after_filling,
    )
