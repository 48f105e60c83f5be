# SPDX-License-Identifier: MIT
"""See it work: a shop, two workers, one of them killed half-way, and nothing lost.

    python examples/shop/demo.py [sqlite | postgres | redis | URL]

`stores` is where it happens, `jobs` are the tasks, `orders` what is submitted, `together` a batch,
a workflow and a schedule, `workers` the processes, `books` what the store knows, `screen` what you
see. This file is the story.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = Path(tempfile.mkdtemp(prefix="packhorse-demo-"))
# Before the shop is imported: `examples` is found from the root, and its app reads the URL.
sys.path.insert(0, str(ROOT))

from examples.shop.stores import demo_url, outlives  # noqa: E402 - see above

STORE: Final = sys.argv[1] if len(sys.argv) > 1 else "sqlite"
URL: Final = demo_url(STORE, FOLDER)
os.environ["PACKHORSE_URL"] = URL

from examples.shop.books import Books, read_books, worker_id  # noqa: E402 - see above
from examples.shop.jobs import app  # noqa: E402
from examples.shop.orders import OPENING, RUSH, Orders  # noqa: E402
from examples.shop.screen import Screen, open_screen  # noqa: E402
from examples.shop.together import Together  # noqa: E402
from examples.shop.workers import APP, LEASE, Workers, workers  # noqa: E402
from packhorse import JobStatus  # noqa: E402

#: The demo gives up after this; it takes about half as long.
TIME_LIMIT_S: Final = 28.0
#: Between two looks into the store.
LOOK_EVERY_S: Final = 0.2


def main() -> int:
    """Tell the story; 1 if a job was lost."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # so that the workers are stopped then, too
    print(f"Everything happens in {FOLDER}, the store is {app.store.label}\n", flush=True)
    try:
        with workers(FOLDER, URL) as crew, open_screen() as screen:
            story = Story(crew, screen)
            books = story.tell()
            together = story.together.conclusion() if story.together.has_ended else ""
    except SystemExit:
        print(f"\nStopped. What there is lies in {FOLDER}")
        raise
    finally:
        app.close()
    return conclude(books, together)


class Story:
    """What happens, in order; each part waits for what the store shows."""

    def __init__(self, crew: Workers, screen: Screen) -> None:
        self.crew = crew
        self.screen = screen
        self.orders = Orders()
        self.together = Together()
        self.began = time.monotonic()
        self.cancelled_running = self.killed = self.came_back = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def tell(self) -> Books:
        """From the first order to the last job."""
        self.open_shop()
        while True:
            books = read_books(app, self.orders.kind_of)
            self.screen.show(books, self.together.bars(), self.seconds)
            done = self.killed and not books.unfinished and self.together.has_ended
            if self.seconds > TIME_LIMIT_S or done:
                return books
            self.cancel_one_that_runs(books)
            self.kill_a_worker(books)
            self.welcome_back(books)
            time.sleep(LOOK_EVERY_S)

    def open_shop(self) -> None:
        self.orders.submit(OPENING)
        self.news(f"{len(self.orders.kind_of)} jobs submitted; no worker runs yet")
        self.news("a batch of 2,000 items and an order in five parts begun; a schedule declared")
        _, *others = self.orders.of("restock (cancelled)")
        cancelled = sum(app.job(job_id).cancel() for job_id in others)
        self.news(f"{cancelled} of them cancelled before they began")
        for _ in range(2):
            self.news(f"worker {self.crew.start().number} started, lease {LEASE}")

    def cancel_one_that_runs(self, books: Books) -> None:
        first, *_ = self.orders.of("restock (cancelled)")
        if not self.cancelled_running and books.jobs[first].status is JobStatus.PROCESSING:
            self.cancelled_running = app.job(first).cancel()
            self.news("1 more cancelled while it ran")

    def kill_a_worker(self, books: Books) -> None:
        if self.killed or books.finished < books.submitted // 2:
            return
        held = {worker: books.held_by(worker_id(app, worker.pid)) for worker in self.crew.all}
        victim = max(held, key=lambda worker: sum(bool(job.progress) for job in held[worker]))
        victim.kill()
        self.killed = True
        self.news(
            f"worker {victim.number} (pid {victim.pid}) killed with SIGKILL, "
            f"in the middle of {len(held[victim])} jobs"
        )
        self.orders.submit(RUSH)
        self.news(f"a burst of {len(self.orders.of(RUSH[0][0]))} jobs submitted meanwhile")
        self.news(f"worker {self.crew.start().number} started in its place")

    def welcome_back(self, books: Books) -> None:
        if not self.came_back and books.rescued:
            self.came_back = True
            self.news(f"{len(books.rescued)} jobs of the killed worker are back in line")

    def news(self, text: str) -> None:
        self.screen.tell(text, self.seconds)


def conclude(books: Books, together: str) -> int:
    """What became of everything, and what to type next."""
    print("\nJobs by status")
    for status, number in sorted(books.by_status().items()):
        print(f"  {status.value:<11}{number:>5}")
    print("\nDead letters")
    for job in books.dead:
        error = f"{job.error.type}: {job.error.message}" if job.error else ""
        print(f"  {job.id}  {job.task:<12}{job.dead_reason!s:<16}{error}")
    finished = sum(job.finished_at is not None for job in books.rescued)
    print(
        f"\n{len(books.rescued)} jobs went down with the killed worker; {finished} of them "
        "were finished by another."
    )
    print(_shares(books))
    print(_rate(books))
    print(together or f"The batch or the order had not ended after {TIME_LIMIT_S:g} s.")
    if books.unfinished:
        print(f"{len(books.unfinished)} jobs had not finished after {TIME_LIMIT_S:g} s.")
    print(f"submitted {books.submitted}, finished {books.finished}, lost {len(books.missing)}")
    print(_what_next(books) if outlives(STORE) else _SERVER_ENDS.format(url=_OWN_URLS[STORE]))
    return 0 if books.all_well and together else 1


_SERVER_ENDS: Final = """
The server was started for the demo and ends with it. To look around afterwards, give the URL of
one of your own: make demo STORE={url}
"""
_OWN_URLS: Final = {"postgres": "postgresql://user@host/database", "redis": "redis://host:6379/0"}


def _shares(books: Books) -> str:
    """How far the small tenant had to wait for the big one."""
    kinds = [kind for _, kind in books.starts("news (big tenant)", "news (small tenant)")]
    small = kinds.count("news (small tenant)")
    last = max((index for index, kind in enumerate(kinds) if "small" in kind), default=-1)
    return (
        f"The small tenant's {small} newsletters, submitted behind the big one's "
        f"{len(kinds) - small}, were among the first {last + 1} to start."
    )


def _rate(books: Books) -> str:
    """The most messages that were started in any second."""
    starts = [moment for moment, _ in books.starts("message (limited)")]
    second = timedelta(seconds=1)
    most = max(
        (sum(first <= one < first + second for one in starts) for first in starts), default=0
    )
    return f"Of {len(starts)} messages at most {most} were started in any second; the limit is 10."


def _what_next(books: Books) -> str:
    command = _command()
    label = next((job.id for job in books.dead if job.task == "print_label"), "JOB")
    return f"""
Look around. The store is {app.store.label}, the workers' logs lie in {FOLDER}.

  {command} stats --url {URL}
  {command} dead list --url {URL}
  {command} jobs show {label} --url {URL}
  {command} schedules list --url {URL}
  {command} batches list --url {URL}
  {command} workflows show order-17 --url {URL}

Or see it in a browser, with buttons:

  PACKHORSE_URL={URL} {command} dashboard {APP}

Mend the cause (paper for the printer) and run the dead letters again:

  {command} dead redrive --queue default --yes --url {URL}
  SHOP_PAPER=1 PACKHORSE_URL={URL} {command} worker {APP} --burst
"""


def _command() -> str:
    """How `packhorse` is called from where the user stands."""
    beside = Path(sys.executable).with_name("packhorse")
    if shutil.which("packhorse") == str(beside):
        return "packhorse"
    if not beside.exists():
        return f"{sys.executable} -m packhorse"
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)


def _leave(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
