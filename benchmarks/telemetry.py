# SPDX-License-Identifier: MIT
"""What telemetry costs: drains of plain jobs, with none of it, parts of it and all of it, by turns.

    python -m benchmarks.telemetry [--store postgres] [--jobs 20000] [--rounds 5] [KIND ...]

`all` is OpenTelemetry's SDK with batches of spans and metrics, every trace sampled, and Sentry's
SDK; counts by queue and task are always made. `all+logs` adds a JSON line for every start and end.
What is exported goes nowhere: encoding and sending it is the exporter's own. Each turn has a store
and a process of its own; jobs are submitted before the clock starts, and carry a trace context
wherever submits are traced. Shares are of `none` in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

from packhorse import Packhorse

WANTED: Final = 0.6
#: Each kind, and what is on: s Sentry, m metrics of OpenTelemetry, l log lines; a number is the
#: share of traces that are sampled.
KINDS: Final = {
    "none": "",
    "sentry": "s",
    "metrics": "m",
    "spans": "1.0",
    "spans-10%": "0.1",
    "spans-0%": "0.0",
    "spans+sentry": "s1.0",
    "all": "sm1.0",
    "all-10%": "sm0.1",
    "all-0%": "sm0.0",
    "all+logs": "sml1.0",
}


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m benchmarks.telemetry")
    asked.add_argument("--store", choices=("sqlite", "postgres", "redis"), default="sqlite")
    asked.add_argument("--jobs", type=int, default=20_000)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("kinds", nargs="*", default=list(KINDS))
    chosen = asked.parse_args()
    kinds = list(dict.fromkeys(["none", *chosen.kinds]))
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for number in range(chosen.rounds):
        for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
            found[kind].append(_apart(kind, chosen.store, chosen.jobs))
    print(
        f"{chosen.store}, {chosen.jobs} jobs, medians of {chosen.rounds} rounds (wanted {WANTED})"
    )
    print("| | jobs/s | of none | lowest, highest | processor µs a job |")
    print("| --- | ---: | ---: | --- | ---: |")
    for kind in kinds:
        rates, spent = zip(*found[kind], strict=True)
        shares = sorted(a / b for (a, _), (b, _) in zip(found[kind], found["none"], strict=True))
        print(
            f"| {kind} | {statistics.median(rates):,.0f} | {statistics.median(shares):.2f} "
            f"| {shares[0]:.2f}, {shares[-1]:.2f} | {statistics.median(spent):.0f} |"
        )


def _apart(kind: str, store: str, jobs: int) -> tuple[float, float]:
    """Jobs a second, and processor time of each in µs, of a drain in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.telemetry",
                "--drain",
                kind,
                _url(store, folder),
                str(jobs),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
    rate, spent = json.loads(run.stdout.splitlines()[-1])
    return rate, spent


def _url(store: str, folder: str) -> str:
    if store == "postgres":
        from tests.servers.postgres import postgres_url

        return postgres_url()
    if store == "redis":
        from tests.servers.redis import redis_url

        return redis_url()
    return f"sqlite:///{folder}/jobs.db"


def drained(kind: str, url: str, jobs: int) -> tuple[float, float]:
    """Drain once."""
    app = Packhorse(url)

    @app.task(name="nothing")
    async def nothing(number: int) -> None:
        pass

    _install(app, KINDS[kind])
    app.enqueue_many([nothing.call(number) for number in range(jobs)])
    begun, used = time.perf_counter(), time.process_time()
    report = app.run(burst=True, concurrency=100)
    spent = time.perf_counter() - begun
    assert report.succeeded == jobs
    return jobs / spent, (time.process_time() - used) / jobs * 1_000_000


def _install(app: Packhorse, parts: str) -> None:
    sampled = parts.strip("sml")
    if sampled or "m" in parts:
        _install_otel(app, sampled, metrics="m" in parts)
    if "s" in parts:
        import sentry_sdk

        from packhorse.telemetry import sentry

        sentry_sdk.init(dsn="http://key@127.0.0.1:9/1")
        sentry.install(app)
    if "l" in parts:
        from packhorse import logs
        from packhorse.logs.lines import LineWriter

        nowhere = os.open(os.devnull, os.O_WRONLY)
        logs.configure("info", "json", lines=LineWriter(nowhere, lambda _: b""))
        logs.attach(app.bus)


def _install_otel(app: Packhorse, sampled: str, *, metrics: bool) -> None:
    from opentelemetry.metrics import NoOpMeterProvider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    from opentelemetry.trace import NoOpTracerProvider

    from packhorse.telemetry import otel

    def export(_self: object, _spans: Any) -> Any:
        return SpanExportResult.SUCCESS

    exporter: Any = type("Nowhere", (SpanExporter,), {"export": export})
    tracers: Any = NoOpTracerProvider()
    if sampled:
        tracers = TracerProvider(ParentBasedTraceIdRatio(float(sampled)))
        tracers.add_span_processor(BatchSpanProcessor(exporter()))
    meters = MeterProvider([InMemoryMetricReader()]) if metrics else NoOpMeterProvider()
    otel.install(app, tracer_provider=tracers, meter_provider=meters)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--drain"]:
        print(json.dumps(drained(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main()
