# SPDX-License-Identifier: MIT
"""Exit codes, the errors of the command line, and which error ends with which code."""

from __future__ import annotations

from enum import IntEnum

from packhorse.errors import (
    ConfigError,
    JobError,
    JobNotFound,
    PackhorseError,
    PayloadError,
    ResultTimeout,
    ScheduleNotFound,
    SchemaOutOfDate,
    StoreUnavailable,
    UsageError,
)
from packhorse.group_errors import BatchNotFound, WorkflowNotFound


class ExitCode(IntEnum):
    """Documented and stable; scripts rely on them."""

    OK = 0
    FAILED = 1  #: what was asked for did not happen
    USAGE = 2  #: the command line, a setting or an argument cannot work
    STORE_UNREACHABLE = 3
    APP_NOT_LOADED = 4
    SCHEMA = 5  #: the store's schema is missing or of another release
    UNHEALTHY = 6
    NOTHING_MATCHED = 7
    JOBS_ABANDONED = 8
    HUNG_UP = 129  #: SIGHUP, twice where once would only have begun to stop
    INTERRUPTED = 130  #: SIGINT, likewise
    TERMINATED = 143  #: SIGTERM, likewise


class AppNotLoaded(ConfigError):
    """The app could not be found or imported; the message says what was tried."""

    code = "APP_NOT_LOADED"


class NothingMatched(PackhorseError):
    """The command found nothing to work on."""

    code = "NOTHING_MATCHED"


class PartTooShort(JobNotFound):
    """No job has this id, and it is too short to be looked for as a part of one."""

    def __init__(self, part: str, least: int) -> None:
        JobError.__init__(
            self,
            f"no job has the id {part!r}; of a longer id give {least} characters at least",
            job_id=part,
        )


class NotFinished(JobError):
    """A `ResultTimeout` whose advice is a command instead of a call."""

    code = ResultTimeout.code

    def __init__(self, late: ResultTimeout) -> None:
        super().__init__(
            f"job {late.job_id} did not finish within {late.waited_s:g} s; it goes on regardless: "
            f"see it with 'packhorse jobs show {late.job_id}'",
            job_id=late.job_id,
        )


class ToldToStop(SystemExit):
    """A signal came before the worker had begun; user code being imported did not fail."""


class StoreMissing(SchemaOutOfDate):
    """The store has never been used, so there is nothing in it to work on."""

    code = "STORE_MISSING"


def exit_code_of(error: PackhorseError) -> ExitCode:
    """Return the exit code for an error."""
    match error:
        case StoreUnavailable():
            return ExitCode.STORE_UNREACHABLE
        case AppNotLoaded():
            return ExitCode.APP_NOT_LOADED
        case SchemaOutOfDate():
            return ExitCode.SCHEMA
        case JobNotFound() | NothingMatched() | ScheduleNotFound():
            return ExitCode.NOTHING_MATCHED
        case BatchNotFound() | WorkflowNotFound():
            return ExitCode.NOTHING_MATCHED
        case ConfigError() | PayloadError() | UsageError():
            return ExitCode.USAGE
        case _:
            return ExitCode.FAILED
