# SPDX-License-Identifier: MIT
"""A store verb as a value: the steps to take, and how to read the answers.

A plan is built purely and run by a runner: the same plan serves a worker on its event loop and a
caller in its own thread, so that nothing is written twice. Its steps are a generator that yields
what it wants from the store (a statement, a script, the time) and is sent the answer; what it
returns is the answer of the verb.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

import msgspec

P = ParamSpec("P")
T = TypeVar("T")

#: The types of the yielded steps are up to the store that builds the plan.
Steps = Generator[Any, Any, T]


class Plan(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """One verb, ready to run."""

    verb: str  #: for errors, traces and profiles
    steps: Callable[[], Steps[T]]
    writes: bool = True  #: False: it only reads, and takes no lock
    #: Cheap steps to try first: a read that finds whether there is anything to write or, on
    #: PostgreSQL, single statements for the common case. None: there are none.
    look: Callable[[], Steps[T | None]] | None = None
    """Returns the verb's answer, or None, with nothing written, to run `steps`."""
    #: The fast path, in a form that the store's runner knows; if it does not apply, run `steps`.
    short: Any = None
    named: Named[T] | None = None  #: it is about one job, named by its id


#: A method that returns a plan about one job.
Verb = TypeVar("Verb", bound=Callable[..., Plan[Any]])


class Named(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """How to repeat a plan about one job, if the store does not know the job."""

    job_id: str
    missed: Callable[[T], bool]  #: whether an answer means that the job is unknown
    again: Callable[[str], Plan[T]]  #: the same verb for another id


def looking_for(job_id: str, unknown: T | None, again: Callable[[str], Plan[T]]) -> Named[T]:
    """Return how to repeat a plan that answers `unknown` if it does not know the job."""
    return Named(job_id, lambda answer: answer == unknown, again)


def about_job(unknown: object = None) -> Callable[[Verb], Verb]:
    """Let the plans of a verb say how to repeat them for another id, if they answer `unknown`."""

    def make(verb: Verb) -> Verb:
        @wraps(verb)
        def named(self: Any, job_id: str, *args: Any, **kwargs: Any) -> Plan[Any]:
            def again(other: str) -> Plan[Any]:
                return named(self, other, *args, **kwargs)

            plan = verb(self, job_id, *args, **kwargs)
            return msgspec.structs.replace(plan, named=looking_for(job_id, unknown, again))

        return cast("Verb", named)

    return make


def planned(*, writes: bool = True) -> Callable[[Callable[P, Steps[T]]], Callable[P, Plan[T]]]:
    """Turn a generator method of steps into a verb, which returns the plan of these steps."""

    def make(steps: Callable[P, Steps[T]]) -> Callable[P, Plan[T]]:
        @wraps(steps)
        def verb(*args: P.args, **kwargs: P.kwargs) -> Plan[T]:
            return Plan(steps.__name__, partial(steps, *args, **kwargs), writes=writes)

        return verb

    return make


#: Work that asks a store for one plan after another; `core.generators` runs it.
Asking = Generator[Plan[Any], Any, T]


class Wake(msgspec.Struct, frozen=True):
    """Asks the runner to send a wake-up once the plan's writes are committed."""

    topic: str


class Listener(Protocol):
    """Receives wake-ups in one event loop."""

    async def wait(self, timeout_s: float | None) -> frozenset[str]:
        """Return the topics received since the last call, as soon as there is one.

        Empty after `timeout_s`. The topic `*` stands for any: something changed.
        """

    def close(self) -> None:
        """Stop listening, and end a wait that is under way."""


class Wakeups(Protocol):
    """Wakes waiting processes when something changes, so that none has to poll.

    Topics: `queue:<name>` a job of this queue became ready or due at another time; `cancel:
    <worker>` a job this worker holds is to be cancelled; `job:<id>` a job a handle waits for
    has finished; `room:<name>` fewer wait in this queue, which has a `max_depth`; `record:<kind>`
    a record of this kind was changed.
    A wake-up may be lost: every waiter also polls, though rarely.
    """

    def listen(self, topics: frozenset[str]) -> Listener:
        """Listen to these topics from now on, in the running event loop."""
