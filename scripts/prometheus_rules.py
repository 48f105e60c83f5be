# SPDX-License-Identifier: MIT
"""The shipped dashboard and alert rules, asked of a real Prometheus that scrapes a real worker.

    python -m scripts.prometheus_rules

Prometheus is this machine's, or Debian's package, fetched into `.cache/prometheus` and kept there;
nothing is installed. Its own checker reads the rules, and each expression is run; those of the
dashboard, and the alerts on what happened here, must answer something.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from packhorse import JobHandle
from scripts.debian import unpack
from scripts.pytest_runs import ROOT
from tests.supervisor.shipped import RULES, expressions
from tests.supervisor.yard import JOBS, Yard, opened, probe_address, until

CACHE: Final = ROOT / ".cache" / "prometheus"
CONFIG: Final = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: packhorse
    static_configs: [{{targets: ["{target}"]}}]
"""
TASKS: Final = """
@app.task(timeout="50ms", retry=ONCE)
async def never_end() -> None:
    await asyncio.sleep(600)
"""
#: Alerts whose cause does not happen here: their answer is empty, as it should be.
QUIET: Final = frozenset(
    {
        *("PackhorseQueueBehind", "PackhorseNoWorker", "PackhorseSaturated"),
        *("PackhorseStuckHandlers", "PackhorseProcessesRestart", "PackhorseEndsNotStored"),
        *("PackhorseTimeouts", "PackhorseRetriesPerSuccess", "PackhorseFailures"),
        "PackhorseDeep",
    }
)
#: A deadline that has passed.
LONG_AGO: Final = datetime(2020, 1, 1, tzinfo=UTC)
#: Scrapes that a rate over a minute needs, and more.
LOOK_S: Final = 45.0


def main() -> int:
    """Run everything; 0 if all is well."""
    folder = _programs()
    checked = subprocess.run(  # noqa: S603 - Debian's program
        [folder / "promtool", "check", "rules", RULES], check=False
    )
    with (
        tempfile.TemporaryDirectory() as place,
        contextlib.chdir(place),
        opened(Path(place), JOBS + TASKS) as yard,
    ):
        parent = yard.worker("--http", "127.0.0.1:0")
        target = probe_address(yard, parent).removeprefix("http://")
        config = Path(place) / "prometheus.yml"
        config.write_text(CONFIG.format(rules=RULES, target=target), encoding="utf-8")
        server = subprocess.Popen(  # noqa: S603 - Debian's program
            [
                folder / "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={place}/data",
                "--web.listen-address=127.0.0.1:19090",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            failed = _asked(yard)
        finally:
            server.terminate()
            server.wait()
            yard.stop(parent)
    return 1 if failed or checked.returncode else 0


def _asked(yard: Yard) -> list[str]:
    until("Prometheus", lambda: _query("packhorse_processes"), LOOK_S)
    waiting: list[JobHandle[Any]] = []

    def work() -> bool:
        """Jobs of every end, until each expression that should answer does."""
        yard.app.tasks["add"].enqueue(1)
        yard.app.tasks["add"].using(deadline=LONG_AGO).enqueue(1)
        for job in waiting:
            job.cancel()  # it runs since the round before
        waiting[:] = [yard.app.tasks["wait_awaiting"].enqueue()]
        yard.app.tasks["fail_here"].enqueue()
        yard.app.tasks["never_end"].enqueue()
        return all(_query(each) for name, each in expressions() if name not in QUIET)

    try:
        until("answers to all", work, LOOK_S)
    except AssertionError as error:
        print(error)
    failed = []
    for name, expression in expressions():
        found = _query(expression)
        ok = found is not None and (bool(found) or name in QUIET)
        print(f"{'ok  ' if ok else 'FAIL'} {len(found or ()):3} answers  {name}")
        failed += [] if ok else [name]
    return failed


def _query(expression: str) -> list[Any] | None:
    """What Prometheus answers; None if it refuses."""
    asked = urllib.parse.urlencode({"query": expression})
    address = f"http://127.0.0.1:19090/api/v1/query?{asked}"
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            document = json.loads(answer.read())
    except OSError:
        return None
    found: list[Any] = document["data"]["result"]
    return found if document["status"] == "success" else None


def _programs() -> Path:
    """Where prometheus and promtool are."""
    if (installed := shutil.which("prometheus")) and shutil.which("promtool"):
        return Path(installed).parent
    folder = CACHE / "usr" / "bin"
    if not (folder / "prometheus").exists():
        unpack(("prometheus",), CACHE)
    return folder


if __name__ == "__main__":
    sys.exit(main())
