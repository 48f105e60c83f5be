# SPDX-License-Identifier: MIT
"""Set up logging for a whole process, as `packhorse worker` does; `app.run()` leaves it alone.

Every logger writes lines of the chosen format. So do warnings, and exceptions that end a thread or
that Python ignores, which would go to stderr otherwise. `capture` is for every worker.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import logging.config
import sys
import threading
import tomllib
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from packhorse.context import RUNNING
from packhorse.core.clock import SECOND_US
from packhorse.errors import ConfigError
from packhorse.logs.lines import Lines
from packhorse.logs.records import LogFormat, configure

#: The `--log-config` that leaves logging as the app has it.
LEAVE_ALONE: Final = "none"
_LOG: Final = logging.getLogger("packhorse")


def set_up(
    level: str, log_format: LogFormat, config: str | None = None, *, lines: Lines | None = None
) -> Lines | None:
    """Set up logging; return the destination of lines, or None if `config` decides it."""
    if config == LEAVE_ALONE:
        return None
    logging.captureWarnings(capture=True)
    threading.excepthook = _thread_ended
    sys.unraisablehook = _unraisable
    if config is None:
        return configure(level, log_format, lines=lines, whole=True).lines
    document = {"disable_existing_loggers": False, **_read(Path(config))}
    try:
        logging.config.dictConfig(document)
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        raise ConfigError(
            f"--log-config {config}: {error}; see logging.config.dictConfig"
        ) from error
    return None


@functools.cache
def capture() -> None:
    """From now on keep, in this process, what the code of a job logs with that job.

    A record is copied on its way to the handlers, after the filters of its logger: what they drop
    or mask is not kept. A handler at the root would get in the way: with one, `logging.basicConfig`
    does nothing, and a program without handlers shows no more warnings.
    """
    call_handlers = logging.Logger.callHandlers

    def keep_and_call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
        running = RUNNING.get()
        if running is not None and record.levelno >= running.level:
            with contextlib.suppress(Exception):  # arguments that do not fit the message
                created_us = int(record.created * SECOND_US)
                running.log(created_us, record.levelno, record.name, _text(record))
        call_handlers(logger, record)

    logging.Logger.callHandlers = keep_and_call_handlers  # type: ignore[method-assign, assignment]


def _text(record: logging.LogRecord) -> str:
    message = record.getMessage()
    if record.exc_info and record.exc_info[0] is not None:
        return f"{message}\n{logging.Formatter().formatException(record.exc_info)}"
    return message


def _read(path: Path) -> dict[str, Any]:
    """Read the dictionary in a JSON or TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--log-config {path} cannot be read: {error}; give a JSON or TOML file with what "
            "logging.config.dictConfig takes, or 'none' to leave logging alone"
        ) from error
    if not isinstance(document, dict):
        raise ConfigError(f"--log-config {path} holds no dictionary, as dictConfig takes it")
    return document


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    if not issubclass(ended.exc_type, SystemExit):
        name = "" if ended.thread is None else ended.thread.name
        about = _raised(ended.exc_type, ended.exc_value, ended.exc_traceback)
        _LOG.error("thread %s was ended by an exception", name, exc_info=about)


def _unraisable(failed: sys.UnraisableHookArgs) -> None:
    about = _raised(failed.exc_type, failed.exc_value, failed.exc_traceback)
    where = failed.err_msg or "an exception was ignored in"
    _LOG.error("%s %s", where, type(failed.object).__name__, exc_info=about)


def _raised(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    return kind, kind() if error is None else error, trace
