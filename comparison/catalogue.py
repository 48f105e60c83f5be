# SPDX-License-Identifier: MIT
"""Who takes part, how each is started, and how each is set: with the reason for every setting.

A contestant whose jobs come back late by default is there twice: as it comes, and with the quickest
recovery that its documentation offers and that these jobs, which take up to 8 s, can bear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.peers.environments import Version, pinned
from comparison.place import SLOTS

_OLDEST: Final[Version] = (3, 11)
#: Words in a command that are replaced: the store's URL and the worker's number.
URL: Final = "{url}"
WORKER: Final = "{worker}"
#: Packages that are told with a peer's own: how it reaches its server.
_BESIDE: Final = ("kombu", "redis", "asyncpg", "psycopg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One system on one store, with one setting."""

    name: str
    label: str
    store: str  #: sqlite, postgres or redis
    recovery: str  #: what decides when a job of a killed worker comes back
    settings: Sequence[str]  #: what else is set, and why
    command: Sequence[str]  #: of one worker; the first word is a program of its environment
    peer: str = ""  #: its pinned environment; empty: Packhorse, in this one
    quick: bool = False
    copies: int = 1  #: processes that make up one worker
    minimum: Version = _OLDEST

    @property
    def module(self) -> str:
        """Where its job is."""
        return f"comparison.apps.{self.peer or 'packhorse'}_app"

    def versions(self) -> str:
        """What is installed for a peer."""
        packages = pinned(self.peer)
        told = [name for name in (self.peer, *_BESIDE) if name in packages]
        return ", ".join(f"{name} {packages[name]}" for name in told)


def named(name: str) -> list[Contestant]:
    """Those of a name, or of a system: `celery` means both of Celery's."""
    return [one for one in CONTESTANTS if name in (one.name, one.peer or "packhorse")]


_SLOTS: Final = str(SLOTS)
_STORES: Final = ("sqlite", "postgres", "redis")


def _packhorse(store: str, lease: str) -> Contestant:
    quick = lease != "30s"
    command = (
        *("packhorse", "worker", "comparison.apps.packhorse_app:app", "--concurrency", _SLOTS),
        *("--log-level", "warning", "--no-banner"),
    )
    return Contestant(
        name=f"packhorse-{store}{'-quick' if quick else ''}",
        label="Packhorse",
        store=store,
        recovery=f"`lease` {lease}" + ("" if quick else " (default)"),
        settings=("nothing: jobs of a lost worker run again by default",),
        command=(*command, "--lease", lease) if quick else command,
        quick=quick,
    )


_CELERY: Final = (
    "`task_acks_late`: a message is acknowledged after the job, not before",
    "`task_reject_on_worker_lost`: nor when its child process is lost",
    "`worker_prefetch_multiplier=1`: no more is fetched than can run",
)
_CELERY_COMMAND: Final = (
    *("celery", "-A", "comparison.apps.celery_app", "worker", "--concurrency", _SLOTS),
    *("--hostname", f"worker{WORKER}@%h", "--loglevel", "WARNING"),
)
_DRAMATIQ: Final = ("nothing: messages are acknowledged after the job by default",)
_DRAMATIQ_COMMAND: Final = (
    *("dramatiq", "--processes", "1", "--threads", _SLOTS, "comparison.apps.dramatiq_app"),
)
_RQ: Final = ("`Retry(max=5)`: without retries a job of a lost worker is moved to the failed ones",)
_ARQ: Final = ("nothing: `retry_jobs` and `max_tries=5` are its defaults",)
_SAQ: Final = (
    "`retries=5`: with the default of 1 a job of a lost worker is aborted",
    "`timeout` 10 s (default): every job ends within it",
)
_PROCRASTINATE: Final = (
    "the periodic task `retry_stalled_jobs` of its documentation: without it they stay `doing`",
)
_PROCRASTINATE_COMMAND: Final = (
    *("procrastinate", "--app", "comparison.apps.procrastinate_app.app", "worker"),
)
_PGQUEUER: Final = (
    "`max_concurrent_tasks=4`, `batch_size=2`: the former is at least twice the latter",
)
_PGQUEUER_COMMAND: Final = ("python", "-m", "comparison.apps.pgqueuer_app")
_OBAN: Final = ("nothing: `max_attempts` is 20 by default",)
_OBAN_COMMAND: Final = ("python", "-m", "comparison.apps.oban_app")

CONTESTANTS: Final = (
    *(_packhorse(store, lease) for lease in ("30s", "5s") for store in _STORES),
    Contestant(
        name="celery",
        label="Celery",
        store="redis",
        peer="celery",
        recovery="`visibility_timeout` 3600 s, looked at every 100 s (defaults)",
        settings=_CELERY,
        command=_CELERY_COMMAND,
    ),
    Contestant(
        name="celery-quick",
        label="Celery",
        store="redis",
        peer="celery",
        recovery="`visibility_timeout` 15 s, `unacked_restore_interval` 1 s, "
        "`unacked_restore_throttle` 1",
        settings=_CELERY,
        command=_CELERY_COMMAND,
        quick=True,
    ),
    Contestant(
        name="dramatiq",
        label="Dramatiq",
        store="redis",
        peer="dramatiq",
        recovery="`heartbeat_timeout` 60 s, `maintenance_chance` 1,000 of a million (defaults)",
        settings=_DRAMATIQ,
        command=_DRAMATIQ_COMMAND,
    ),
    Contestant(
        name="dramatiq-quick",
        label="Dramatiq",
        store="redis",
        peer="dramatiq",
        recovery="`heartbeat_timeout` 10 s, `maintenance_chance` 100,000 of a million",
        settings=_DRAMATIQ,
        command=_DRAMATIQ_COMMAND,
        quick=True,
    ),
    Contestant(
        name="rq",
        label="RQ",
        store="redis",
        peer="rq",
        recovery="`job-monitoring-interval` 30 s, which expires after 60 s more, "
        "`maintenance-interval` 600 s, `worker-ttl` 420 s (defaults)",
        settings=_RQ,
        command=("rq", "worker-pool", "--url", URL, "--num-workers", _SLOTS, "--quiet", "default"),
    ),
    Contestant(
        name="rq-quick",
        label="RQ",
        store="redis",
        peer="rq",
        recovery="`--job-monitoring-interval` 5 s, which expires after 60 s more, "
        "`--maintenance-interval` 5 s, `--worker-ttl` 20 s",
        settings=(*_RQ, "four `rq worker`: `rq worker-pool` has no options for these"),
        command=(
            *("rq", "worker", "--url", URL, "--quiet", "--job-monitoring-interval", "5"),
            *("--maintenance-interval", "5", "--worker-ttl", "20", "default"),
        ),
        quick=True,
        copies=SLOTS,
    ),
    Contestant(
        name="huey",
        label="Huey",
        store="redis",
        peer="huey",
        recovery="none: a job is removed from the queue when it is taken",
        settings=("nothing: it has no acknowledgement to set",),
        command=(
            *("huey_consumer", "--workers", _SLOTS, "--worker-type", "thread", "--quiet"),
            "comparison.apps.huey_app.huey",
        ),
    ),
    Contestant(
        name="arq",
        label="arq",
        store="redis",
        peer="arq",
        recovery="`job_timeout` 300 s (default) and 10 s more",
        settings=_ARQ,
        command=("arq", "comparison.apps.arq_app.WorkerSettings"),
    ),
    Contestant(
        name="arq-quick",
        label="arq",
        store="redis",
        peer="arq",
        recovery="`job_timeout` 10 s and 10 s more",
        settings=_ARQ,
        command=("arq", "comparison.apps.arq_app.WorkerSettings"),
        quick=True,
    ),
    Contestant(
        name="saq",
        label="SAQ",
        store="redis",
        peer="saq",
        recovery="`timeout` 10 s, `sweep` every 60 s (defaults)",
        settings=_SAQ,
        command=("saq", "comparison.apps.saq_app.settings"),
    ),
    Contestant(
        name="saq-quick",
        label="SAQ",
        store="redis",
        peer="saq",
        recovery="`timeout` 10 s (default), `sweep` every 10 s",
        settings=_SAQ,
        command=("saq", "comparison.apps.saq_app.settings"),
        quick=True,
    ),
    Contestant(
        name="procrastinate",
        label="Procrastinate",
        store="postgres",
        peer="procrastinate",
        recovery="heartbeat 10 s, gone after 30 s (defaults), looked at every 10 minutes "
        "(its documentation)",
        settings=_PROCRASTINATE,
        command=_PROCRASTINATE_COMMAND,
    ),
    Contestant(
        name="procrastinate-quick",
        label="Procrastinate",
        store="postgres",
        peer="procrastinate",
        recovery="`update_heartbeat_interval` 2 s, `stalled_worker_timeout` 10 s, "
        "looked at every 5 s",
        settings=_PROCRASTINATE,
        command=_PROCRASTINATE_COMMAND,
        quick=True,
    ),
    Contestant(
        name="pgqueuer",
        label="PgQueuer",
        store="postgres",
        peer="pgqueuer",
        recovery="`heartbeat_timeout` 30 s (default)",
        settings=_PGQUEUER,
        command=_PGQUEUER_COMMAND,
    ),
    Contestant(
        name="pgqueuer-quick",
        label="PgQueuer",
        store="postgres",
        peer="pgqueuer",
        recovery="`heartbeat_timeout` 5 s",
        settings=_PGQUEUER,
        command=_PGQUEUER_COMMAND,
        quick=True,
    ),
    Contestant(
        name="oban",
        label="Oban",
        store="postgres",
        peer="oban",
        recovery="`rescue_after` 300 s, looked at every 60 s (defaults)",
        settings=_OBAN,
        command=_OBAN_COMMAND,
        minimum=(3, 12),
    ),
    Contestant(
        name="oban-quick",
        label="Oban",
        store="postgres",
        peer="oban",
        recovery="`rescue_after` 10 s, looked at every 2 s",
        settings=_OBAN,
        command=_OBAN_COMMAND,
        quick=True,
        minimum=(3, 12),
    ),
)
