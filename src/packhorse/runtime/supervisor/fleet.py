# SPDX-License-Identifier: MIT
"""Add up the figures of several supervisors under one parent, as `--autoscale` runs them.

A supervisor that was started with a pipe to its parent writes a line to it every second. The parent
keeps the newest line of each, and adds up those of supervisors that are gone, so that totals only
rise.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import msgspec

from packhorse.core.policies.series import added
from packhorse.runtime.supervisor.exposition import Figures
from packhorse.runtime.supervisor.link import COUNTING
from packhorse.runtime.supervisor.messages import COUNTS, Report
from packhorse.runtime.supervisor.supervisor import Supervisor

#: Names the pipe to the parent in a supervisor's environment.
_VARIABLE: Final = "PACKHORSE_FLEET"
_EVERY_S: Final = 1.0


class SupervisorReport(msgspec.Struct, frozen=True):
    """What all processes of one supervisor have done, and their state."""

    past: Report
    living: Report
    processes: int = 0
    restarts: int = 0


_READ: Final = msgspec.json.Decoder(SupervisorReport)


def _report(supervisor: Supervisor) -> SupervisorReport:
    living = [child.report for child in supervisor.children]
    return SupervisorReport(
        past=supervisor.past.after(supervisor.recovery.settled),
        living=_together(living),
        processes=len(supervisor.children),
        restarts=sum(slot.restarts for slot in supervisor.slots),
    )


def _together(reports: Sequence[Report]) -> Report:
    """Combine the reports of living workers into one."""
    slow = [each.p95_duration_ms for each in reports if each.p95_duration_ms is not None]
    names = (*COUNTS, "running", "ahead", "unsettled", "slots")
    sums = {name: sum(getattr(each, name) for each in reports) for name in names}
    return Report(
        **sums,
        p95_duration_ms=max(slow, default=None),
        trouble=next((each.trouble for each in reports if each.trouble), ""),
        lease=any(each.lease for each in reports),
        quiet=bool(reports) and all(each.quiet for each in reports),
        series=added(*(each.series for each in reports)),
    )


@contextlib.asynccontextmanager
async def reporting(supervisor: Supervisor, environment: Mapping[str, str]) -> AsyncIterator[None]:
    """While inside, write reports to the parent of this supervisor, if it reads them."""
    number = environment.get(_VARIABLE)
    if number is None:
        yield
        return
    descriptor = int(number)
    os.set_inheritable(descriptor, False)
    writing = asyncio.create_task(_write(supervisor, descriptor))
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await asyncio.to_thread(_write_one, descriptor, _report(supervisor))
        os.close(descriptor)


async def _write(supervisor: Supervisor, descriptor: int) -> None:
    before: SupervisorReport | None = None
    while True:
        report = _report(supervisor)
        if report != before:
            # Shielded: a line that is half written would spoil the last one.
            await asyncio.shield(asyncio.to_thread(_write_one, descriptor, report))
            before = report
        await asyncio.sleep(_EVERY_S)


def _write_one(descriptor: int, report: SupervisorReport) -> None:
    line = msgspec.json.encode(report) + b"\n"
    with contextlib.suppress(OSError):  # the parent has gone
        while line:
            line = line[os.write(descriptor, line) :]


class FleetFigures:
    """Start supervisors from their parent, and keep what they report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: dict[int, SupervisorReport] = {}
        self._past = Report()
        self._restarts = 0

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a supervisor in its own session, with a pipe to this parent."""
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(  # noqa: S603 - this program
                command,
                start_new_session=True,
                pass_fds=(writing,),
                env={**os.environ, _VARIABLE: str(writing), COUNTING: "1"},
            )
        finally:
            os.close(writing)
        name = f"packhorse-fleet-{process.pid}"
        threading.Thread(
            target=self._listen, args=(process.pid, reading), name=name, daemon=True
        ).start()
        return process

    def figures(self) -> Figures:
        """Return the figures of all supervisors together, without queues."""
        with self._lock:
            living, past, restarts = list(self._living.values()), self._past, self._restarts
        return Figures(
            past=(past, *(each.past for each in living)),
            living=[each.living for each in living],
            processes=sum(each.processes for each in living),
            restarts=restarts + sum(each.restarts for each in living),
        )

    def by_process(self) -> dict[int, SupervisorReport]:
        """Return the newest report of each supervisor, by its pid."""
        with self._lock:
            return dict(self._living)

    def _listen(self, pid: int, reading: int) -> None:
        """Keep the newest report of a supervisor until it ends; then add it to the past."""
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                with contextlib.suppress(msgspec.DecodeError), self._lock:
                    self._living[pid] = _READ.decode(line)
        with self._lock:
            last = self._living.pop(pid, None)
            if last is not None:
                self._past = last.living.after(last.past).after(self._past)
                self._restarts += last.restarts
