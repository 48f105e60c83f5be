# SPDX-License-Identifier: MIT
"""What the process ends with, and which error means which."""

from __future__ import annotations

from enum import IntEnum

from packhorse.errors import (
    ConfigError,
    JobError,
    JobNotFound,
    PackhorseError,
    PayloadError,
    ResultTimeout,
    SchemaOutOfDate,
    StoreUnavailable,
    UsageError,
)

__all__ = [
    "AppNotLoaded",
    "ExitCode",
    "NotFinished",
    "NothingMatched",
    "StoreMissing",
    "ToldToStop",
    "exit_code_of",
]


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
    INTERRUPTED = 130  #: SIGINT, twice where once would only have begun to stop
    TERMINATED = 143  #: SIGTERM, likewise


class AppNotLoaded(ConfigError):
    """The app could not be found or imported; the message says what was tried."""

    code = "APP_NOT_LOADED"


class NothingMatched(PackhorseError):
    """Nothing is there that the command could have worked on."""

    code = "NOTHING_MATCHED"


class NotFinished(JobError):
    """A `ResultTimeout` whose advice is a command, since nobody here has a handle to ask."""

    code = ResultTimeout.code

    def __init__(self, late: ResultTimeout) -> None:
        super().__init__(
            f"job {late.job_id} did not finish within {late.waited_s:g} s; it goes on regardless: "
            f"see it with 'packhorse jobs show {late.job_id}'",
            job_id=late.job_id,
        )


class ToldToStop(SystemExit):
    """A signal came before there was anything to stop; not a mistake of whatever ran just then."""


class StoreMissing(SchemaOutOfDate):
    """The store has never been used, so there is nothing in it to work on."""

    code = "STORE_MISSING"


def exit_code_of(error: PackhorseError) -> ExitCode:
    """The exit code an error ends a command with."""
    match error:
        case StoreUnavailable():
            return ExitCode.STORE_UNREACHABLE
        case AppNotLoaded():
            return ExitCode.APP_NOT_LOADED
        case SchemaOutOfDate():
            return ExitCode.SCHEMA
        case JobNotFound() | NothingMatched():
            return ExitCode.NOTHING_MATCHED
        case ConfigError() | PayloadError() | UsageError():
            return ExitCode.USAGE
        case _:
            return ExitCode.FAILED
