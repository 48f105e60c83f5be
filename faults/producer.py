# SPDX-License-Identifier: MIT
"""One of the rig's producers: python -m faults.producer SEED [again].

Submits whatever fits, by chance of its seed, until it is told that this is enough; cancels some;
writes down each request and its answer. It begins with some of every kind, so that each limit is
met however slow the machine is; one that comes `again`, for another that died, does not. While the
store is away it asks again with the same ids. Each submit is written down before it is asked for.

SIGUSR1 lets it die in its next submit: at any moment of it, and at the latest when the store has
answered and no caller was told.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from faults.calls import COUNTS, KINDS, Made, Maker, queue_of
from faults.records import RECORDS_VARIABLE, machine_us
from faults.tasks import LIMITS, create_app, record
from packhorse import Call, JobHandle, Packhorse, QueueFull, StoreUnavailable
from packhorse.core.clock import new_id
from packhorse.core.policies.records import Add, Put, RecordId

#: The record in which all producers count their submits.
TALLY: Final = RecordId("tally", "", "submits")
#: A file of this name beside the records tells producers to stop.
ENOUGH: Final = "enough"
#: How long a producer runs at most if it is not told to stop.
SECONDS_MAX: Final = 3_600.0
#: No more is submitted to a queue with so many waiting: it is to be drained when time is up.
DEPTH_MAX: Final = 25
#: The signals that a doomed producer may die of: of the first before it is ready.
DEATHS: Final = frozenset({-signal.SIGUSR1, -signal.SIGALRM, -signal.SIGKILL})
#: How far into its last submit a doomed one gets at most.
_DEATH_S: Final = 0.02
#: How long one request is made again while the store is away, and how long between.
AGAIN_S: Final = 60.0
WAIT_S: Final = 0.1


class Answer(msgspec.Struct, frozen=True):
    """What is written down of a submit, beside the job it came to."""

    task: str
    asked_us: int
    key: str = ""
    deduplicated: bool = False
    count: int = 1  #: how many were refused together


class Producer:
    """Submits and cancels through one app."""

    def __init__(self, app: Packhorse, seed: int, enough: Path) -> None:
        self._app = app
        self._maker = Maker(app, seed)
        self._enough = enough
        self._name = str(seed)
        self._counted = 0
        self._doomed = False

    def doom(self, _number: int, _frame: object) -> None:
        """Let it die in its next submit."""
        self._doomed = True

    def run(self, *, again: bool) -> None:
        """Submit until that is enough."""
        if not again:
            self._open()
        until = time.monotonic() + SECONDS_MAX
        while time.monotonic() < until and not self._enough.exists():
            self._one()
            time.sleep(self._maker.pause_s())

    def _open(self) -> None:
        """Some of every kind; of the narrow one more than may ever wait, which is refused."""
        for kind in KINDS:
            count = LIMITS.max_depth[kind] + 1 if kind == "narrow" else COUNTS[-1]
            self.submit(kind, [self._maker.make(kind) for _ in range(count)])
        self.submit("called", [self._maker.refused() for _ in range(COUNTS[-1])])

    def _one(self) -> None:
        kind = self._maker.kind()
        try:
            full = self._app.depth(queue_of(kind)) >= DEPTH_MAX
        except StoreUnavailable:
            return
        if kind == "narrow" or not full:
            self.submit(kind, [self._maker.make(kind) for _ in range(self._maker.count(kind))])

    def submit(self, task: str, made: list[Made]) -> None:
        """Submit until it is answered; what was not, and may be there, is written down first."""
        asked_us = machine_us()
        ids = [new_id() for _ in made]
        calls = [call.using(job_id=job_id) for (call, _), job_id in zip(made, ids, strict=True)]
        self._note_asking(task, made, ids, asked_us)
        until = time.monotonic() + AGAIN_S
        while time.monotonic() < until:
            try:
                jobs = self._ask(calls)
            except QueueFull:
                answer = Answer(task, asked_us, count=len(made))
                record.write_line("full", "", note=_note(answer))
                _note_not_stored(ids)
                return
            except StoreUnavailable as error:
                word = "unsure" if error.maybe_stored else "refused"
                for job_id in ids:
                    record.write_line(word, job_id, note=str(error))
                time.sleep(WAIT_S)
            else:
                for job, own, (_, key) in zip(jobs, ids, made, strict=True):
                    # Asked a second time, a job that is there already is its own holder.
                    known = bool(job.deduplicated) and job.id != own
                    answer = Answer(task, asked_us, key, known)
                    record.write_line("submitted", job.id, note=_note(answer))
                    _note_not_stored([own] * known)
                self._cancel_some(task, ids)
                self._count()
                if task == "slow":
                    self._signal(ids[0])
                return

    @staticmethod
    def _note_asking(task: str, made: list[Made], ids: list[str], asked_us: int) -> None:
        for job_id, (_, key) in zip(ids, made, strict=True):
            record.write_line("asking", job_id, note=_note(Answer(task, asked_us, key)))

    def _ask(self, calls: list[Call[Any]]) -> list[JobHandle[Any]]:
        """Submit; a doomed one does not live to tell what came of it."""
        if not self._doomed:
            return self._app.enqueue_many(calls)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, _DEATH_S))  # kills at once
        try:
            return self._app.enqueue_many(calls)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    def _count(self) -> None:
        """Count in a record, and ask again until it is answered: it must count once."""
        self._counted += 1
        name = f"{self._name}-{self._counted}"
        record.write_line("counting", "", note=name)
        add = Add(TALLY, {"submits": 1}, writer=self._name, number=self._counted)
        store, until = self._app.store, time.monotonic() + AGAIN_S
        while time.monotonic() < until:
            try:
                if store.run(store.records.change([add])).applied:
                    record.write_line("counted", "", note=name)
                    return
                store.run(store.records.change([Put(TALLY, b"", expected=0)]))  # it is the first
            except StoreUnavailable:
                time.sleep(WAIT_S)

    def _signal(self, job_id: str) -> None:
        """Ask once: a signal that is sent again comes twice."""
        store, value = self._app.store, f"{self._name}-{self._counted}"
        try:
            told = store.run(store.attachments.deliver(job_id, "signal", value.encode()))
        except StoreUnavailable:
            record.write_line("signal unsure", job_id, note=value)
        else:
            record.write_line(f"signal {told}", job_id, note=value)

    def _cancel_some(self, task: str, ids: list[str]) -> None:
        for job_id in ids:
            if task == "patient" and self._maker.cancels():
                self._cancel(job_id)

    def _cancel(self, job_id: str) -> None:
        """Ask once, a little later; without an answer the outcome is unknown."""
        time.sleep(self._maker.pause_s())
        try:
            told = self._app.job(job_id).cancel()
        except StoreUnavailable:
            record.write_line("cancel unsure", job_id)
        else:
            record.write_line("cancel heard" if told else "cancel late", job_id)


def _note_not_stored(ids: Sequence[str]) -> None:
    for job_id in ids:
        record.write_line("not stored", job_id)


def _note(answer: Answer) -> str:
    return msgspec.json.encode(answer).decode()


if __name__ == "__main__":
    opened = create_app()
    producer = Producer(opened, int(sys.argv[1]), Path(os.environ[RECORDS_VARIABLE]) / ENOUGH)
    signal.signal(signal.SIGUSR1, producer.doom)
    producer.run(again="again" in sys.argv[2:])
    opened.close()
