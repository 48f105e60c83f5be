# SPDX-License-Identifier: MIT
"""What handlers log: collected while they run, kept with their job within bounds, read again.

The lines of an attempt are one attachment, written just before the attempt is settled. Of many
lines the first and the last are kept, and of many attempts likewise: a later one takes the name
of one between, so that nothing has to be removed.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from packhorse.core.clock import to_datetime
from packhorse.core.job import Job, JobRecord
from packhorse.core.policies.attachments import Attachments
from packhorse.core.redaction import Redact, redacted_text
from packhorse.core.sealing import require_open
from packhorse.core.text import storable
from packhorse.errors import ConfigError

#: A level that no line has.
LOGS_OFF: Final = 2**31
#: Lines of an attempt that are kept at each end.
_EACH_END: Final = 100
#: Of all of them, encoded: encryption makes a third more of it, and that fits an attachment.
_BYTES_MAX: Final = 44 * 1024
_MESSAGE_LENGTH_MAX: Final = 2_000
#: Cut so before it is redacted: what a secret is may show only behind the first cut.
_RAW_LENGTH_MAX: Final = 2 * _MESSAGE_LENGTH_MAX
_LOGGER_LENGTH_MAX: Final = 200
#: Attempts whose lines are kept: so many of the first, and of the last.
_FIRST_ATTEMPTS: Final = 2
_LAST_ATTEMPTS: Final = 8
_PREFIX: Final = "log:"


class LogLine(msgspec.Struct, frozen=True):
    """A line that a handler logged."""

    at: datetime
    level: str  #: such as `info`
    logger: str
    message: str
    attempt: int  #: from 1


class _Line(msgspec.Struct, frozen=True, array_like=True, gc=False):
    at_us: int
    level: str
    logger: str
    message: str


class _Log(msgspec.Struct, frozen=True):
    attempt: int
    lines: tuple[_Line, ...]


_LOGS: Final = msgspec.json.Decoder(_Log)


class LogLines:
    """The lines of one attempt; any thread may add some."""

    __slots__ = ("_first", "_last", "_seen")

    def __init__(self) -> None:
        self._first: list[_Line] = []
        self._last: deque[_Line] = deque(maxlen=_EACH_END)
        self._seen = itertools.count(1)  # counts for several threads without a lock

    def add(self, at_us: int, level: int, logger: str, message: str) -> None:
        """Take a line."""
        name = logging.getLevelName(level).lower()
        line = _Line(at_us, name, logger[:_LOGGER_LENGTH_MAX], message[:_RAW_LENGTH_MAX])
        ends: list[_Line] | deque[_Line] = self._last
        if next(self._seen) <= _EACH_END:
            ends = self._first
        ends.append(line)

    def kept(self, attempt: int, redact: Redact) -> dict[str, bytes]:
        """The lines as they are kept with the job, by the name they have there."""
        first, last = tuple(self._first), tuple(self._last)
        lines = (*first, *last)
        unseen = next(self._seen) - 1 - len(lines)
        gap = len(first) if unseen else len(lines)
        begin = _fitting(lines[:gap], _BYTES_MAX // 2, redact)
        rest = lines[gap if unseen else len(begin) :]
        end = _fitting(rest[::-1], _BYTES_MAX - sum(map(len, begin)), redact)[::-1]
        if left_out := unseen + len(lines) - len(begin) - len(end):
            note = f"… {left_out} lines left out …"
            at_us = lines[len(begin)].at_us
            begin.append(msgspec.json.encode(_Line(at_us, "info", "packhorse", note)))
        text = b",".join([*begin, *end])
        return {_name(attempt): b'{"attempt":%d,"lines":[%b]}' % (attempt, text)}


class RunningJob(msgspec.Struct, gc=False):
    """A job whose code runs, and what that logs."""

    job: Job
    worker: str
    worker_id: str  #: of its contract
    level: int = LOGS_OFF  #: from which on its lines are kept
    lines: LogLines | None = None  #: none yet

    def log(self, at_us: int, level: int, logger: str, message: str) -> None:
        """Keep a line, if it matters enough."""
        if level >= self.level:
            if self.lines is None:
                self.lines = LogLines()
            self.lines.add(at_us, level, logger, message)


def log_level(name: str | None) -> int:
    """The number of a level that `job_logs` names; None: no line is kept."""
    if name is None:
        return LOGS_OFF
    number = logging.getLevelNamesMapping().get(str(name).upper())
    if number is None:
        raise ConfigError(f"job_logs is {name!r}; give a level such as 'info', or None for none")
    return number


def log_lines_of(record: JobRecord, kept: Attachments | None) -> tuple[LogLine, ...]:
    """The lines among what is kept with a job, by attempt and in the order of coming."""
    values = {} if kept is None else kept.values
    logs = [
        _LOGS.decode(require_open(value, record.id, "log lines"))
        for name, value in values.items()
        if name.startswith(_PREFIX)
    ]
    return tuple(
        LogLine(to_datetime(line.at_us), line.level, line.logger, line.message, log.attempt)
        for log in sorted(logs, key=lambda log: log.attempt)
        for line in log.lines
    )


def _name(attempt: int) -> str:
    """What the lines of an attempt are kept under."""
    later = attempt - _FIRST_ATTEMPTS - 1
    return f"{_PREFIX}{attempt if later < 0 else _FIRST_ATTEMPTS + 1 + later % _LAST_ATTEMPTS}"


def _encoded(line: _Line, redact: Redact) -> bytes:
    message = redacted_text(redact, line.message)
    if len(message) > _MESSAGE_LENGTH_MAX:
        message = message[: _MESSAGE_LENGTH_MAX - 1] + "…"
    kept = msgspec.structs.replace(line, logger=storable(line.logger), message=storable(message))
    return msgspec.json.encode(kept)


def _fitting(lines: Iterable[_Line], room: int, redact: Redact) -> list[bytes]:
    """Those that have room, from the first on, as they are kept; the others are not looked at."""
    fitting: list[bytes] = []
    for line in lines:
        encoded = _encoded(line, redact)
        room -= len(encoded)
        if room < 0:
            break
        fitting.append(encoded)
    return fitting
