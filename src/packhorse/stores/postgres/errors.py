# SPDX-License-Identifier: MIT
"""Translate errors of the server: say what happened, and what to do."""

from __future__ import annotations

from typing import Final

from psycopg import DataError, Error, InterfaceError, OperationalError

from packhorse.errors import (
    ConfigError,
    PackhorseError,
    PayloadError,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.statements import Again

#: Another transaction was in the way; the same again may well succeed.
_PASSING: Final = ("40001", "40P01", "55P03")
#: A statement kept prepared is not there, is there twice, or does not fit the schema any more.
_UNPREPARED: Final = ("26000", "42P05", "0A000")
#: The server has ended a session that stood still in the middle of a transaction.
_STOOD_STILL: Final = "25P03"
#: Classes of errors that come with the end of the connection: 57P is the server going down.
_ENDING: Final = ("08", "57P", _STOOD_STILL)
#: What servers and poolers say when they refuse more connections. No error code comes with it.
_CROWDED: Final = ("too many connections", "too many clients", "connection slots", "no more conn")
_READ_ONLY: Final = "25006"
_TAKEN: Final = "23505"
_TIMED_OUT: Final = "57014"
#: A text has a character that the server's encoding does not have. All have all but NUL.
_NO_CHARACTER: Final = "22021"
#: Classes of errors about values that the server can never hold: of data, and of its own limits.
_REFUSED: Final = ("22", "54")

_ASK_OWNER: Final = (
    "grant this user what is missing, or have the owner run what 'packhorse migrate --sql' prints"
)
#: What the server or libpq says, and what to do about it. The first that fits is taken.
_CONFIGURATION: Final = (
    ("password authentication failed", "check the user and the password in the URL"),
    ("no password supplied", "give the password in the URL, in PGPASSWORD or in a .pgpass file"),
    ("Peer authentication failed", "name a user and a host in the URL, or fix pg_hba.conf"),
    ("no pg_hba.conf entry", "let this host, user and database in, in the server's pg_hba.conf"),
    ("permission denied", _ASK_OWNER),
)
_DATABASE_MISSING: Final = "3D000"
_ROLE_MISSING: Final = "28000"
_NO_RIGHT: Final = "42501"


class Unanswered(OperationalError):
    """The server did not answer in time, and the connection was given up."""


def has_answered(error: Exception) -> bool:
    """Whether a living server answered with this error, or it is not about the server."""
    if not isinstance(error, Error):
        return True
    state = error.sqlstate
    return state is not None and not state.startswith(_ENDING)


def is_lost(error: Exception) -> bool:
    """Whether the connection is gone, or is going."""
    if isinstance(error, InterfaceError):
        return True
    if isinstance(error, Error) and error.sqlstate == _STOOD_STILL:
        return True
    return isinstance(error, OperationalError) and not has_answered(error)


def is_crowded(error: Exception) -> bool:
    """Whether a connection was refused because there are too many."""
    return isinstance(error, OperationalError) and any(word in str(error) for word in _CROWDED)


def is_passing(error: Exception) -> bool:
    """Whether the same plan may succeed when it is run again."""
    return isinstance(error, Again) or (isinstance(error, Error) and error.sqlstate in _PASSING)


def is_taken(error: Exception) -> bool:
    """Whether something of the same name was there already; a plan that runs again looks first."""
    return isinstance(error, Error) and error.sqlstate == _TAKEN


def is_unprepared(error: Exception) -> bool:
    """Whether it has to do with statements that are kept prepared."""
    return isinstance(error, Error) and error.sqlstate in _UNPREPARED


def translated(
    error: Exception, settings: PostgresSettings, *, maybe_stored: bool = False
) -> Exception:
    """The error as one of Packhorse's, with advice."""
    if isinstance(error, PackhorseError):
        return error
    text = " ".join(str(error).split())
    where = f"PostgreSQL at {settings.label}"
    refusal = _refusal(error, where, text)
    if refusal is not None:
        return refusal
    if not isinstance(error, Error | Again):
        return error
    advice = _advice(error, text)
    if advice is not None:
        return ConfigError(f"{where}: {text}; {advice}")
    state = getattr(error, "sqlstate", None)
    if state == _READ_ONLY:
        return StoreUnavailable(
            f"{where}: {text}; this server takes no writes: it is a replica, or set to be read "
            "only: name the primary in the URL, such as with target_session_attrs=read-write"
        )
    if state == _TIMED_OUT:
        return StoreUnavailable(
            f"{where}: {text}; it took longer than {settings.statement_timeout_s:g} s: look for "
            "what blocks it in pg_stat_activity, or raise statement_timeout in the URL",
            maybe_stored=maybe_stored,
        )
    if is_crowded(error):
        return StoreUnavailable(
            f"{where}: {text}; raise CONNECTION LIMIT or max_connections, put a pooler in between, "
            "or run fewer processes: each lives on one connection, and works better with five"
        )
    if is_passing(error):
        return StoreUnavailable(f"{where}: {text}; others were in the way each time: try again")
    if is_lost(error) or isinstance(error, OperationalError):
        return StoreUnavailable(
            f"{where}: {text}; check that the server runs and can be reached",
            maybe_stored=maybe_stored,
        )
    return StoreError(f"{where}: {text}")


def _refusal(error: Exception, where: str, text: str) -> PackhorseError | None:
    """What is raised for a value that can never be held; the driver refuses some by itself."""
    state = getattr(error, "sqlstate", None)
    if state == _NO_CHARACTER and ": 0x00" in text:
        return PayloadError("PostgreSQL keeps no text with a NUL character in it; take it out")
    if state is None:
        refused = isinstance(error, DataError | UnicodeError | OverflowError)
    else:
        refused = state.startswith(_REFUSED)
    if not refused:
        return None
    return StoreRefused(
        f"{where}: {text}; it can never hold this value: make the database with ENCODING "
        "'UTF8' if that is what it is about, else give another value"
    )


def _advice(error: Exception, text: str) -> str | None:
    state = getattr(error, "sqlstate", None)
    if state == _DATABASE_MISSING or ('database "' in text and "does not exist" in text):
        return "create it with CREATE DATABASE, or correct the name in the URL"
    if state == _ROLE_MISSING or ('role "' in text and "does not exist" in text):
        return "check the user in the URL, or create it with CREATE ROLE ... LOGIN"
    for known, advice in _CONFIGURATION:
        if known in text or (state == _NO_RIGHT and known == "permission denied"):
            return advice
    return None
