# SPDX-License-Identifier: MIT
"""Who may do what through the web: permissions, roles that hold some, and principals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from packhorse.errors import ConfigError


class Permission(StrEnum):
    """One thing that one may be allowed to do."""

    JOBS_VIEW = "jobs.view"
    JOBS_VALUES = "jobs.values"  #: see arguments and results as they are, unmasked
    JOBS_SUBMIT = "jobs.submit"
    JOBS_CANCEL = "jobs.cancel"
    JOBS_RETRY = "jobs.retry"
    JOBS_SIGNAL = "jobs.signal"
    JOBS_APPROVE = "jobs.approve"
    JOBS_BULK = "jobs.bulk"  #: begin, stop and resume operations over many jobs
    JOBS_PURGE = "jobs.purge"
    QUEUES_VIEW = "queues.view"
    QUEUES_PAUSE = "queues.pause"
    QUEUES_EDIT = "queues.edit"
    SCHEDULES_VIEW = "schedules.view"
    SCHEDULES_RUN = "schedules.run"
    SCHEDULES_EDIT = "schedules.edit"
    WORKERS_VIEW = "workers.view"
    WORKERS_QUIET = "workers.quiet"
    WORKERS_STACKS = "workers.stacks"  #: see where in the code running handlers are
    METRICS_VIEW = "metrics.view"
    ALERTS_SILENCE = "alerts.silence"
    ALERTS_EDIT = "alerts.edit"
    AUDIT_VIEW = "audit.view"


_VIEWER: Final = frozenset(
    {
        *(Permission.JOBS_VIEW, Permission.QUEUES_VIEW, Permission.SCHEDULES_VIEW),
        *(Permission.WORKERS_VIEW, Permission.METRICS_VIEW),
    }
)
_OPERATOR: Final = _VIEWER | {
    *(Permission.JOBS_SUBMIT, Permission.JOBS_CANCEL, Permission.JOBS_RETRY),
    *(Permission.JOBS_SIGNAL, Permission.JOBS_APPROVE, Permission.JOBS_BULK),
    *(Permission.QUEUES_PAUSE, Permission.WORKERS_STACKS),
    *(Permission.SCHEDULES_RUN, Permission.WORKERS_QUIET, Permission.ALERTS_SILENCE),
}
#: Sets of permissions with a name; each role has those of the one before it.
ROLES: Final[Mapping[str, frozenset[Permission]]] = MappingProxyType(
    {"viewer": _VIEWER, "operator": _OPERATOR, "admin": frozenset(Permission)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks, as far as that was established."""

    name: str
    permissions: frozenset[Permission]
    tenant: str | None = None  #: sees and does only what is this tenant's
    by: str = "hook"  #: how they were known: `token`, `cookie`, `proxy`, `hook`, `loopback`

    def may(self, permission: Permission) -> bool:
        """Whether they hold a permission."""
        return permission in self.permissions


def permissions_of(scopes: Iterable[str], where: str) -> frozenset[Permission]:
    """The permissions that roles and single permissions come to; an unknown one is refused."""
    found: set[Permission] = set()
    for scope in scopes:
        if scope in ROLES:
            found |= ROLES[scope]
        elif scope in set(Permission):
            found.add(Permission(scope))
        else:
            raise ConfigError(
                f"{where}: there is no scope {scope!r}; give a role ({', '.join(ROLES)}) or a "
                f"permission ({', '.join(Permission)})"
            )
    if not found:
        raise ConfigError(f"{where}: give at least one scope, such as viewer")
    return frozenset(found)
