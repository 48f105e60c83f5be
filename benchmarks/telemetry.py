# SPDX-License-Identifier: MIT
"""What telemetry costs: drains of plain jobs, with none of it and with all of it, by turns.

    python -m benchmarks.telemetry [jobs] [rounds]

All of it: OpenTelemetry's SDK with batches of spans and metrics, every trace sampled, Sentry's SDK,
and log lines of every start and end, written to nowhere; counts by queue and task are always made.
Each turn has a store and a process of its own; jobs are submitted before the clock starts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from packhorse import Packhorse

JOBS: Final = 20_000
ROUNDS: Final = 3
WANTED: Final = 0.6


def main(jobs: int = JOBS, rounds: int = ROUNDS) -> None:
    rates: dict[str, list[float]] = {"none": [], "all": []}
    for number in range(rounds):
        for kind in sorted(rates, reverse=number % 2 == 0):  # each is the first of a round in turn
            rates[kind].append(_apart(kind, jobs))
            print(f"{kind:5} {rates[kind][-1]:8,.0f} jobs/s", flush=True)
    none, everything = (statistics.median(rates[kind]) for kind in ("none", "all"))
    share = everything / none
    print(f"medians: none {none:,.0f}, all {everything:,.0f}; {share:.2f} (wanted {WANTED})")


def _apart(kind: str, jobs: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks.telemetry", kind, str(jobs), folder],
            check=True,
            capture_output=True,
            text=True,
        )
    return float(json.loads(run.stdout.splitlines()[-1]))


def drained(kind: str, jobs: int, folder: str) -> float:
    """Jobs a second of one drain."""
    app = Packhorse(f"sqlite:///{folder}/jobs.db")

    @app.task(name="nothing")
    async def nothing(number: int) -> None:
        pass

    if kind == "all":
        _install(app)
    app.enqueue_many([nothing.call(number) for number in range(jobs)])
    begun = time.perf_counter()
    report = app.run(burst=True, concurrency=100)
    spent = time.perf_counter() - begun
    assert report.succeeded == jobs
    return jobs / spent


def _install(app: Packhorse) -> None:
    import sentry_sdk
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    from packhorse import logs
    from packhorse.telemetry import otel, sentry

    def export(_self: object, _spans: Any) -> Any:
        return SpanExportResult.SUCCESS

    exporter: Any = type("Nowhere", (SpanExporter,), {"export": export})
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(exporter()))
    meters = MeterProvider([InMemoryMetricReader()])
    otel.install(app, tracer_provider=tracers, meter_provider=meters)
    sentry_sdk.init(dsn="http://key@127.0.0.1:9/1")
    sentry.install(app)
    logs.configure("info", "json", stream=Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    logs.attach(app.bus)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("none", "all"):
        print(json.dumps(drained(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
    else:
        main(*map(int, sys.argv[1:]))
