# SPDX-License-Identifier: MIT
"""Programs that use the app from processes of their own: python -m tests.end_to_end.programs NAME.

They say what happened by what they print, and by their exit code.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from packhorse import Packhorse, StoreUnavailable
from tests.end_to_end.tasks import create_app, record

THREADS: Final = 16
CHILDREN: Final = 3
#: What each process submits after a fork.
JOBS_EACH: Final = 100
#: How long a program waits for a result.
RESULT_S: Final = 30
#: How long a forked child lives at most.
CHILD_S: Final = 60
#: How large a file may grow where there is no more room: enough for the schema and a little more.
FILE_BYTES_MAX: Final = 500_000
#: Long before so many jobs are stored the file is full.
JOBS_MAX: Final = 5_000
NOBODY: Final = 65_534


def submit(app: Packhorse, count: str) -> None:
    """Submit so many jobs, one by one, and print their ids."""
    for _ in range(int(count)):
        say(app.tasks["nap"].enqueue(0.01).id)


def wait(app: Packhorse, *job_ids: str) -> None:
    """Wait for each result, and write down when it was there."""
    for job_id in job_ids:
        record.write_line("waiting", job_id)
        app.job(job_id).result(timeout=RESULT_S)
        record.write_line("answered", job_id)


def threads(app: Packhorse, each: str) -> None:
    """Submit from many threads at once, the first use of the app among it."""
    barrier = threading.Barrier(THREADS)
    ids: list[str] = []

    def work(first: int) -> None:
        barrier.wait()
        ids.extend(app.tasks["quick"].enqueue(first + n).id for n in range(int(each)))

    workers = [threading.Thread(target=work, args=(n * int(each),)) for n in range(THREADS)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    say(*ids)


def fork(app: Packhorse) -> None:
    """Use the app, fork as a web server that preloads does, and go on in all of them."""
    assert _answered(app, 1) == 1  # connection, wait loop and wake-ups are all in use
    children = [pid for number in range(CHILDREN) if (pid := _child(app, number))]
    _use(app, CHILDREN)  # all at once, so that whatever they share would be seen to break
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * CHILDREN, codes
    assert _answered(app, 2) == 2


def fill_up(app: Packhorse) -> None:
    """Submit while files may not grow any more, then again when they may."""
    quick = app.tasks["quick"]
    kept = [quick.enqueue(0).id]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, before[1]))
    refused: StoreUnavailable | None = None
    while refused is None and len(kept) < JOBS_MAX:
        try:
            kept.append(quick.enqueue(len(kept)).id)
        except StoreUnavailable as error:
            refused = error
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused is not None
    again = quick.using(job_id=refused.job_id).enqueue(len(kept))
    assert (again.id, again.deduplicated) == (refused.job_id, False)
    say(str(refused), *kept, again.id)


def read_only(app: Packhorse) -> None:
    """Use a file that may not be written any more, as a user that may not change that."""
    job = app.tasks["quick"].enqueue(1)
    app.close()
    path = Path(app.store.label.removeprefix("sqlite:///"))
    path.chmod(0o444)
    user = os.geteuid()
    if user == 0:  # root may write whatever it likes
        os.seteuid(NOBODY)
    try:
        app.tasks["quick"].enqueue(2)
    except StoreUnavailable as error:
        say(str(error))
    os.seteuid(user)
    path.chmod(0o644)
    assert app.job(job.id).status() == "queued"


def say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _answered(app: Packhorse, number: int) -> Any:
    return app.tasks["quick"].enqueue(number).result(timeout=RESULT_S)


def _child(app: Packhorse, number: int) -> int:
    inherited = _connection(app)
    pid = os.fork()
    if pid == 0:
        signal.alarm(CHILD_S)  # its parent may be killed, and no other process knows it
        try:
            _use(app, number)
            os._exit(0 if _connection(app) is not inherited else 3)
        finally:
            os._exit(4)
    return pid


def _connection(app: Packhorse) -> object:
    """The SQLite connection of this thread; of a server's store, nothing tells but what breaks."""
    if not (app.url or "").startswith("sqlite"):
        return os.getpid()
    return app.store._local.own.runner._connection  # type: ignore[attr-defined]


def _use(app: Packhorse, number: int) -> None:
    """Submit many jobs one by one, and wait for a few of them."""
    first = number * JOBS_EACH
    jobs = [app.tasks["quick"].enqueue(first + n) for n in range(JOBS_EACH)]
    answers = [job.result(timeout=RESULT_S) for job in jobs[:: JOBS_EACH // 5]]
    assert answers == list(range(first, first + JOBS_EACH, JOBS_EACH // 5))


PROGRAMS: Final[Mapping[str, Callable[..., None]]] = MappingProxyType(
    {
        "submit": submit,
        "wait": wait,
        "threads": threads,
        "fork": fork,
        "fill_up": fill_up,
        "read_only": read_only,
    }
)


if __name__ == "__main__":
    opened = create_app()
    PROGRAMS[sys.argv[1]](opened, *sys.argv[2:])
    opened.close()
