# SPDX-License-Identifier: MIT
"""Figures of hosted flows, in the text format of Prometheus.

Nodes and kinds of events are labels; traces, jobs and ids of node instances never are, since
there is no end to them.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

_BOUNDS_S: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0)
#: Nodes that are told apart; those beyond are counted as one.
_NODES_MAX: Final = 200
_OTHER: Final = "other"


class FlowFigures:
    """Counts the events of nodes, and how long those took that ended well."""

    def __init__(self) -> None:
        self._nodes: set[str] = set()
        self._events: Counter[tuple[str, str]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self.depth: dict[str, int] = {}  #: messages before and behind each node, as last told
        self.rebuilds = 0

    def count(self, node: str, event: str, latency_ms: float | None, depth: int) -> None:
        """Count one event of a node."""
        if node not in self._nodes and len(self._nodes) >= _NODES_MAX:
            node = _OTHER
        self._nodes.add(node)
        self._events[node, event] += 1
        self.depth[node] = depth
        if latency_ms is None or event != "node_success":
            return
        self._seconds[node] += latency_ms / 1000  # type: ignore[assignment]  # a float will do
        for bound in _BOUNDS_S:
            self._buckets[node, bound] += latency_ms / 1000 <= bound

    def text(self) -> str:
        """All of it, to be served to Prometheus beside other figures."""
        lines = ["# HELP packhorse_flow_events_total Events of nodes of hosted flows."]
        lines.append("# TYPE packhorse_flow_events_total counter")
        for (node, event), number in sorted(self._events.items()):
            labels = f'node="{_label(node)}",event="{event}"'
            lines.append(f"packhorse_flow_events_total{{{labels}}} {number}")
        lines.append("# HELP packhorse_flow_node_seconds How long nodes took that ended well.")
        lines.append("# TYPE packhorse_flow_node_seconds histogram")
        for node in sorted(self._nodes):
            lines += self._histogram(node)
        lines.append("# HELP packhorse_flow_queue_depth Messages before and behind a node.")
        lines.append("# TYPE packhorse_flow_queue_depth gauge")
        for node, depth in sorted(self.depth.items()):
            lines.append(f'packhorse_flow_queue_depth{{node="{_label(node)}"}} {depth}')
        lines.append("# HELP packhorse_flow_rebuilds_total Flows that gave way to a new one.")
        lines.append("# TYPE packhorse_flow_rebuilds_total counter")
        lines.append(f"packhorse_flow_rebuilds_total {self.rebuilds}")
        return "\n".join(lines) + "\n"

    def _histogram(self, node: str) -> list[str]:
        name, label = "packhorse_flow_node_seconds", f'node="{_label(node)}"'
        number = self._events[node, "node_success"]
        return [
            *(
                f'{name}_bucket{{{label},le="{bound}"}} {self._buckets[node, bound]}'
                for bound in _BOUNDS_S
            ),
            f'{name}_bucket{{{label},le="+Inf"}} {number}',
            f"{name}_sum{{{label}}} {float(self._seconds[node]):.6f}",
            f"{name}_count{{{label}}} {number}",
        ]


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
