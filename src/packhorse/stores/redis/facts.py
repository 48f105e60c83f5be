# SPDX-License-Identifier: MIT
"""The settings of a Redis server, and whether it may lose or evict jobs with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Most facts come from this command, which is allowed where `CONFIG` is forbidden.
INFO: Final = ("INFO",)
_SAFE_POLICY: Final = "noeviction"
_UNKNOWN: Final = "not told by the server"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server as it described itself."""

    info: Mapping[str, str]
    settings: Mapping[str, str]  #: from `CONFIG GET`; empty where that is forbidden

    @property
    def name(self) -> str:
        if "valkey_version" in self.info:
            return f"Valkey {self.info['valkey_version']}"
        return f"Redis {self.info.get('redis_version', '')}".strip()

    @property
    def policy(self) -> str:
        """The eviction policy, for a full memory."""
        return self.info.get("maxmemory_policy", self.settings.get("maxmemory-policy", _UNKNOWN))

    @property
    def may_evict(self) -> bool:
        """Whether it could throw away jobs to make room, now or once a limit is set."""
        return self.policy not in (_SAFE_POLICY, _UNKNOWN)

    @property
    def limited(self) -> bool:
        return self.info.get("maxmemory", "0") != "0"

    def facts(self) -> dict[str, str]:
        """The facts that `packhorse doctor` shows."""
        limit = self.info.get("maxmemory_human") if self.limited else "none"
        return {
            "server": self.name,
            "mode": self.info.get("redis_mode", self.info.get("server_mode", "standalone")),
            "role": self.info.get("role", _UNKNOWN),
            "memory": f"{self.info.get('used_memory_human', '?')} used, limit {limit}",
            "eviction": self._eviction(),
            "persistence": self._persistence(),
            "survives a power cut": self._survives(),
            "replicas": self._replicas(),
            "writable": "yes" if self.info.get("role") != "slave" else "no",
        }

    def warning(self) -> str | None:
        """The warning to log at start-up, if there is one."""
        if not self.may_evict:
            return None
        when = "when its memory is full" if self.limited else "once a memory limit is set"
        return (
            f"this Redis server may throw away jobs {when}: its maxmemory-policy is "
            f"{self.policy}; set it to noeviction"
        )

    def _eviction(self) -> str:
        if self.policy == _UNKNOWN:
            return f"{_UNKNOWN}; it must be noeviction"
        if self.may_evict:
            return f"{self.policy}: JOBS MAY BE DROPPED when memory is full; set noeviction"
        return "noeviction: a full memory refuses new jobs, and drops none"

    def _persistence(self) -> str:
        parts = []
        if self._appends:
            parts.append(f"append-only file, fsync {self.settings.get('appendfsync', _UNKNOWN)}")
        if self.settings.get("save"):
            parts.append(f"snapshots ({self.settings['save']})")
        elif not self.settings:
            parts.append(f"snapshots: {_UNKNOWN}")
        return ", ".join(parts) or "none"

    @property
    def _appends(self) -> bool:
        return self.info.get("aof_enabled", "0") == "1"

    def _survives(self) -> str:
        """What may be lost when the server's machine stops at once."""
        fsync = self.settings.get("appendfsync")
        if self._appends and fsync == "always":
            return "every commit"
        if self._appends and fsync == "everysec":
            return "not every commit: those of the last second or two may be lost"
        if self._appends and fsync == "no":
            return "not every commit: what the system had not written may be lost, often 30 s"
        if self._appends:
            return f"not every commit, unless appendfsync is always ({_UNKNOWN})"
        if self.settings.get("save"):
            return "not every commit: everything since the last snapshot may be lost, minutes"
        if not self.settings:
            return "not every commit: everything since the last snapshot, if there are any"
        return "nothing: all jobs are lost when the server stops"

    def _replicas(self) -> str:
        number = self.info.get("connected_slaves", "0")
        if number == "0":
            return "none"
        return f"{number}, asynchronous: a failover may lose the last commits"


def read_info(text: bytes) -> dict[str, str]:
    """The lines of an `INFO` reply."""
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon and not name.startswith("#")}
