# SPDX-License-Identifier: MIT
"""Errors of connections and replies, translated to errors that say what to do."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

from packhorse.errors import ConfigError, PackhorseError, StoreError, StoreRefused, StoreUnavailable


class Lost(Exception):
    """No answer came: the connection could not be made, broke, or stayed silent."""

    def __init__(self, message: str, *, sent: bool, silent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent  #: the request may have reached the server, and may have been done
        self.silent = silent  #: the server was given its time and did not answer


class ReplyError(Exception):
    """Redis answered with an error."""


#: Replies that say the request was not carried out, and that the server cannot do it now.
_UNAVAILABLE: Final = MappingProxyType(
    {
        "READONLY": "it is a replica, which takes no writes: name the primary in the URL, or wait "
        "until a failover is over",
        "LOADING": "it has just started and reads its data: try again in a moment",
        "OOM": "its memory is full: raise maxmemory, or remove finished jobs",
        "MISCONF": "it cannot save its data and refuses writes: look at its log and its disk",
        "NOREPLICAS": "too few of its replicas are connected: look after them, or lower "
        "min-replicas-to-write",
        "MASTERDOWN": "it is a replica without its primary: name the primary in the URL",
        "CLUSTERDOWN": "the cluster has no node for this namespace now: wait for the failover, or "
        "repair the cluster",
        "TRYAGAIN": "the namespace is being moved to another node: try again in a moment",
        "ASK": "the namespace is being moved to another node: try again when that is over",
        "BUSY": "it is busy with a script that takes too long: look for it with SLOWLOG GET",
        "UNKILLABLE": "it is busy with a script that takes too long",
    }
)
#: Replies that come again until a setting is changed.
_WRONG: Final = MappingProxyType(
    {
        "WRONGPASS": "it refuses this user or password: put the right ones into the URL",
        "NOAUTH": "it wants a password: write it into the URL, as in redis://:password@host",
        "NOPERM": "this user may not do what Packhorse needs: grant it ~{namespace}* "
        "&{namespace}:* +@all -@dangerous, in a cluster also +cluster|slots",
        "NOPROTO": "it does not speak RESP3: Packhorse needs Redis 6.2 or newer, or Valkey",
        "MOVED": "it is a node of a Redis Cluster: add cluster=true to the URL",
    }
)
#: Errors without a code of their own, by something they say.
_PHRASES: Final = MappingProxyType(
    {
        "invalid username-password pair": "WRONGPASS",
        "invalid password": "WRONGPASS",
        "Authentication required": "NOAUTH",
        "HELLO must be called with the client already authenticated": "NOAUTH",
        "unknown command `HELLO`": "NOPROTO",
        "unknown command 'HELLO'": "NOPROTO",
    }
)
_SETTINGS: Final = MappingProxyType(
    {
        "cluster support disabled": "it is a single server: leave cluster=true out of the URL",
        "DB index is out of range": "there is no database of this number: name another in the URL",
        "invalid DB index": "there is no database of this number: name another in the URL",
        "SELECT is not allowed in cluster mode": "a cluster has database 0 only: leave the number "
        "out of the URL",
        "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted: name the authority with "
        "tls_ca=",
    }
)
#: What it says to a value, or a request, that is larger than it ever takes.
_TOO_LARGE: Final = ("invalid bulk length", "invalid multibulk length", "maximum allowed size")
#: Before Redis 7, an error inside a script is wrapped into another one.
_INSIDE: Final = re.compile(r"^ERR Error running script .*: -(?P<code>[A-Z]+) ", re.DOTALL)
#: In the middle of a script: what it had written before is there.
_HALF_DONE: Final = "non local key"


def code_of(error: Exception) -> str:
    """The first word of an error reply, which says its kind."""
    text = str(error)
    for phrase, code in _PHRASES.items():
        if phrase in text:
            return code
    inside = _INSIDE.match(text)
    if inside is not None:
        return inside["code"]
    return text.partition(" ")[0]


def translated(error: Exception, label: str, *, writes: bool = False) -> PackhorseError:
    """The Packhorse error for a failed request; `writes`: the request changes something.

    Messages name the store by its label, which holds no secrets.
    """
    text = str(error)
    if "max number of clients" in text:
        advice = "too many connections: raise its maxclients, or lower connections="
        return StoreUnavailable(f"Redis at {label}: {text}; {advice}")
    if isinstance(error, Lost):
        advice = (
            "it may be paused or overloaded: look at the server, or raise timeout="
            if error.silent
            else "check that the server runs, and the host and port in the URL"
        )
        maybe_stored = writes and error.sent
        return StoreUnavailable(f"Redis at {label}: {text}; {advice}", maybe_stored=maybe_stored)
    if isinstance(error, UnicodeError):
        return StoreRefused(f"Redis at {label}: {text}; it holds UTF-8 only: give another value")
    if any(phrase in text for phrase in _TOO_LARGE):
        advice = "it can never hold a value so large: raise its proto-max-bulk-len, or send less"
        return StoreRefused(f"Redis at {label}: {text}; {advice}")
    code = code_of(error)
    if code in _UNAVAILABLE:
        return StoreUnavailable(f"Redis at {label}: {text}; {_UNAVAILABLE[code]}")
    if code in _WRONG:
        return ConfigError(f"Redis at {label}: {text}; {_WRONG[code]}")
    for phrase, what_to_do in _SETTINGS.items():
        if phrase in text:
            return ConfigError(f"Redis at {label}: {text}; {what_to_do}")
    if _HALF_DONE in text:
        advice = "the namespace is being moved to another node; stop its workers until that is over"
        return StoreUnavailable(f"Redis at {label}: {text}; {advice}", maybe_stored=writes)
    return StoreError(f"Redis at {label}: {text}")
