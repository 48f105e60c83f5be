# SPDX-License-Identifier: MIT
"""The live view: a table with progress bars on a terminal, a line now and then elsewhere.

`rich` draws the table where it is installed; without it the lines do.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from examples.shop.books import Books
from examples.shop.together import Bar

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table

#: Lines of news kept under the table.
NEWS_MAX: Final = 7
#: Seconds between two plain lines when nothing special happens.
LINE_EVERY_S: Final = 1.0
BAR_WIDTH: Final = 24
COLUMNS: Final = ("waiting", "processing", "completed", "cancelled", "dead")


class Screen(Protocol):
    """Where the demo shows what goes on."""

    def show(self, books: Books, bars: Sequence[Bar], seconds: float) -> None:
        """The state of things, `seconds` after the start."""
        ...

    def tell(self, text: str, seconds: float) -> None:
        """Something happened."""
        ...


@contextlib.contextmanager
def open_screen() -> Iterator[Screen]:
    """The best screen there is here."""
    if not sys.stdout.isatty():
        yield PlainScreen()
        return
    try:
        from rich.live import Live  # noqa: PLC0415 - an extra, which may be missing
    except ImportError:
        yield PlainScreen()
        return
    with Live(refresh_per_second=10) as live:
        yield TableScreen(live)


class PlainScreen:
    """Lines, for logs, pipes and terminals without rich."""

    def __init__(self) -> None:
        self._next_line = 0.0

    def show(self, books: Books, bars: Sequence[Bar], seconds: float) -> None:
        done = books.finished == books.submitted
        if seconds < self._next_line and not done:
            return
        self._next_line = seconds + LINE_EVERY_S
        counts = ", ".join(f"{status} {number}" for status, number in books.by_status().items())
        self._print(seconds, f"finished {books.finished} of {books.submitted} ({counts})")
        for bar in (*bars, *_reports(books)):
            if bar.total:
                self._print(seconds, f"  {bar.name} {_bar(bar.done, bar.total)} {bar.note}")

    def tell(self, text: str, seconds: float) -> None:
        self._print(seconds, f"* {text}")

    def _print(self, seconds: float, text: str) -> None:
        print(f"{seconds:5.1f} s  {text}", flush=True)


class TableScreen:
    """A table that is drawn over and over; needs rich."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._news: deque[str] = deque(maxlen=NEWS_MAX)

    def show(self, books: Books, bars: Sequence[Bar], seconds: float) -> None:
        from rich.console import Group  # noqa: PLC0415 - an extra

        news = "\n".join(self._news)
        self._live.update(Group(_kinds(books, seconds), _bars([*bars, *_reports(books)]), news))

    def tell(self, text: str, seconds: float) -> None:
        self._news.append(f"[dim]{seconds:5.1f} s[/]  {text}")


def _kinds(books: Books, seconds: float) -> Table:
    from rich.progress_bar import ProgressBar  # noqa: PLC0415 - an extra
    from rich.table import Table  # noqa: PLC0415 - an extra

    title = f"{books.finished} of {books.submitted} jobs finished after {seconds:.0f} s"
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("kind", min_width=20)
    for column in (*COLUMNS, ""):
        table.add_column(column, justify="right")
    for kind, counts in books.by_kind().items():
        finished = counts["completed"] + counts["cancelled"] + counts["dead"]
        bar: RenderableType = ProgressBar(counts["all"], finished, width=BAR_WIDTH)
        numbers = (str(counts[column]) if counts[column] else "" for column in COLUMNS)
        table.add_row(kind, *numbers, bar)
    return table


def _reports(books: Books) -> list[Bar]:
    """How far each running report says it is."""
    return [
        Bar(
            *("report", job.progress.done, job.progress.total or 1),
            f"{job.progress.note}, attempt {job.attempts}",
        )
        for job in books.reports
        if job.progress is not None
    ]


def _bars(bars: Sequence[Bar]) -> Table:
    from rich.progress_bar import ProgressBar  # noqa: PLC0415 - an extra
    from rich.table import Table  # noqa: PLC0415 - an extra

    table = Table.grid(padding=(0, 1))
    for bar in bars:
        table.add_row(bar.name, ProgressBar(bar.total or 1, bar.done, width=BAR_WIDTH), bar.note)
    return table


def _bar(done: float, total: float) -> str:
    filled = round(BAR_WIDTH * done / total)
    return f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}]"
