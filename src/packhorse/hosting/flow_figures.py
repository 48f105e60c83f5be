# SPDX-License-Identifier: MIT
"""Figures of hosted flows, in the text format of Prometheus.

Nodes and kinds of events are labels; traces, jobs and ids of node instances never are, since their
number has no bound.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from packhorse.runtime.supervisor.exposition import Samples, family, labels_text

_BOUNDS_S: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0)
#: Nodes with figures of their own; those beyond are counted as one.
_NODES_MAX: Final = 200
_OTHER: Final = "other"


class FlowFigures:
    """Count the events of nodes, and measure how long successful ones took."""

    def __init__(self) -> None:
        self._nodes: set[str] = set()
        self._events: Counter[tuple[str, str]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self.depth: dict[str, int] = {}  #: messages before and behind each node, as last reported
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
        """Write all figures, to be served to Prometheus beside others."""
        events = [
            (labels_text(node=node, event=event), number)
            for (node, event), number in sorted(self._events.items())
        ]
        depths = [(labels_text(node=node), depth) for node, depth in sorted(self.depth.items())]
        seconds = [sample for node in sorted(self._nodes) for sample in self._histogram(node)]
        lasted = "How long nodes took that ended well"
        gave_way = "Flows that gave way to a new one"
        lines = [
            *family("flow_events_total", "counter", "Events of nodes of hosted flows", events),
            *family("flow_node_seconds", "histogram", lasted, seconds),
            *family("flow_queue_depth", "gauge", "Messages before and behind a node", depths),
            *family("flow_rebuilds_total", "counter", gave_way, [("", self.rebuilds)]),
        ]
        return "\n".join(lines) + "\n"

    def _histogram(self, node: str) -> Samples:
        number = self._events[node, "node_success"]
        for bound in _BOUNDS_S:
            yield f"_bucket{labels_text(node=node, le=str(bound))}", self._buckets[node, bound]
        yield f"_bucket{labels_text(node=node, le='+Inf')}", number
        yield f"_sum{labels_text(node=node)}", round(float(self._seconds[node]), 6)
        yield f"_count{labels_text(node=node)}", number
