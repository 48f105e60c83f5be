# SPDX-License-Identifier: MIT
"""The order of claiming: priority, then fair shares of tenants, then readiness.

Each job of a fair queue gets a *pass* when it becomes ready: one stride after its tenant's last,
but never behind the virtual time, which is the pass of the first ready job. Lower passes are
claimed first. Passes, last passes and virtual time are kept per (queue, priority), so that a
critical job costs its tenant nothing among the others. A job keeps its pass over release, rescue
and a limit that blocks it.

A queue deals passes from the first job with a tenant on; until then every pass is 0, so that queues
without tenants pay nothing. Jobs that are ready at that moment get passes in the order they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from packhorse.errors import ConfigError

#: Ranks are compared as they stand; the lower is claimed first.
Rank = tuple[int, int, int]


def claim_rank(priority: int, place: int, *, pass_number: int = 0) -> Rank:
    """The order of claiming inside one queue: priority number, fair pass, order of readiness.

    In a queue that is not fair every pass is 0.
    """
    return (priority, pass_number, place)


def aged_rank(priority: int, place: int, *, ready_us: int, ageing_us: int) -> Rank:
    """The order of claiming in a queue whose jobs age, written once when a job becomes ready.

    A job that has waited `ageing_us` longer ranks as one of the next higher priority, again and
    again, so that no job is overtaken for ever: at most those get ahead of it that become ready
    within (its priority - theirs) times `ageing_us`.
    """
    return (ready_us + priority * ageing_us, 0, place)


def queue_order(queues: Iterable[str], priorities: Mapping[str, int]) -> tuple[str, ...]:
    """The order in which a worker's queues are served; equals keep the order given."""
    return tuple(sorted(queues, key=lambda queue: priorities.get(queue, 0)))


#: How far a job of weight 1 moves its tenant on.
STRIDE: Final = 2**20
#: Jobs that get passes of their own when a queue begins to deal; those behind share the last.
REDEALT_MAX: Final = 10_000
WEIGHT_MIN: Final = 0.001
WEIGHT_MAX: Final = 1000.0


def stride(weight: float) -> int:
    """How far one job moves a tenant of this weight on."""
    return int(STRIDE / weight)


def redealt(index: int) -> int:
    """The pass of the `index`-th ready job, from 0, of a queue that begins to deal passes."""
    return min(index, REDEALT_MAX) * STRIDE


def virtual_time(first_ready: int | None, highest: int, running: int | None = None) -> int:
    """Where the line stands: the pass of its first ready job, else the highest ever given.

    Ready is what is queued, save suspects and parked jobs; jobs that a gate holds back are ready.
    Such a one may stand at the front for long, so the highest pass that runs counts too: who
    joins late starts where the others are, not where the line once stood.
    """
    if first_ready is None:
        return highest
    return first_ready if running is None else max(first_ready, running)


def next_pass(now: int, last: int | None, weight: float = 1.0) -> int:
    """The pass of a tenant's next job at virtual time `now`; a new tenant starts there."""
    return now if last is None else max(now, last + stride(weight))


def deal(
    tenants: Iterable[str],
    *,
    first_ready: int | None,
    highest: int,
    lasts: Mapping[str, int],
    weights: Mapping[str, float],
    running: int | None = None,
) -> tuple[int, ...]:
    """The passes of several jobs of one (queue, priority) that become ready one after another.

    As `next_pass` for each in turn: the first becomes the first ready job if there was none.
    Afterwards `highest` is the highest of these and what it was, and a tenant's last is its last.
    """
    last_of = dict(lasts)
    passes: list[int] = []
    for tenant in tenants:
        now = virtual_time(first_ready, highest, running)
        given = next_pass(now, last_of.get(tenant), weights.get(tenant, 1.0))
        passes.append(given)
        last_of[tenant] = given
        highest = max(highest, given)
        first_ready = given if first_ready is None else first_ready
    return tuple(passes)


def check_fairness(*, fair: bool, weights: Mapping[str, float], ageing_us: int | None) -> None:
    """Refuse shares that cannot be kept, and rules for the order that contradict each other."""
    for tenant, weight in weights.items():
        if type(weight) not in (int, float) or not WEIGHT_MIN <= weight <= WEIGHT_MAX:
            raise ConfigError(
                f"weights gives tenant {tenant!r} {weight!r}; give a number from "
                f"{WEIGHT_MIN:g} to {WEIGHT_MAX:g}, where 1 is everybody's"
            )
    if weights and not fair:
        raise ConfigError(
            "weights are set and fair is off: shares count in a fair queue only; "
            "leave weights out, or set fair=True"
        )
    if ageing_us is None:
        return
    if ageing_us < 1:
        raise ConfigError(
            f"ageing is {ageing_us} microseconds; give a span longer than zero, or leave it out"
        )
    if fair:
        raise ConfigError(
            "ageing and fair are both on: one orders jobs by how long they wait, the other by "
            "whose they are; set fair=False, or leave ageing out"
        )
