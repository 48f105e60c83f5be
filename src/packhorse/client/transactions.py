# SPDX-License-Identifier: MIT
"""`tx=`: write requests inside a user's transaction into the store's intake.

Or, where the store is not in the database of that transaction, into an outbox that is.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from packhorse.client.user_connections import Action, UserConnection, recognised
from packhorse.core.generators import adrive, drive
from packhorse.core.job import NewJob
from packhorse.errors import ConfigError, StoreUnavailable, UsageError
from packhorse.stores.intake import Intake, IntakeRequest, UserStatement
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.transfer import Copied

if TYPE_CHECKING:
    from packhorse.client.outbox import Outbox, Outboxes

T = TypeVar("T")

_LOCKED: Final = "database is locked"
#: What SQLite says; the transaction can go on after it.
_NO_TABLE: Final = "no such table"
_DATABASES: Final = UserStatement("pragma database_list")
#: Largest id, tenant, tag or other name of a job submitted with `tx=`.
TX_TEXT_BYTES_MAX: Final = 1_000
_SHORT: Final = TX_TEXT_BYTES_MAX // 4  # so many characters never have more bytes than that


class Written(msgspec.Struct, frozen=True, gc=False):
    """What to write inside a transaction."""

    requests: Sequence[IntakeRequest]
    notify: bool = False  #: wake workers with the commit itself, where that is possible

    @property
    def queues(self) -> list[str]:
        """The queues that jobs are asked for in."""
        return list(dict.fromkeys([one.job.queue for one in self.requests if one.job is not None]))


class Within(msgspec.Struct, frozen=True, gc=False):
    """The transaction of a user that calls are part of."""

    tx: object
    notify: bool

    @classmethod
    def of(cls, chosen: Sequence[Mapping[str, Any]], tx: object) -> Within | None:
        """Return the transaction that was given, or that all calls name; None if there is none."""
        named, notify, given = [], False, tx
        for one in chosen:
            named.append(one.get("tx", tx))
            notify = notify or one.get("notify", False)
            given = named[-1] if given is None else given
        if given is None:
            return None
        for each in named:
            if each is not given:
                raise UsageError(
                    "calls that are submitted together name different transactions, or some name "
                    "none; nothing was stored: give one tx to enqueue_many(), or submit them apart"
                )
        return cls(given, notify)

    def written(self, jobs: Sequence[NewJob]) -> Written:
        """What is written with one statement."""
        requests = []
        for job in jobs:
            names = (job.id, job.task, job.queue, job.tenant, job.trace_id, *job.tags)
            if sum(map(len, names)) > _SHORT:
                _refuse_long(names)
            requests.append(IntakeRequest(job))
        return Written(requests, self.notify)


def _refuse_long(names: Sequence[str]) -> None:
    """Refuse names that are too long for an index, which would show only after the commit."""
    for text in names:
        if len(text.encode()) > TX_TEXT_BYTES_MAX:
            raise ConfigError(
                f"a name of a job with tx= begins with {text[:20]!r} and has more than "
                f"{TX_TEXT_BYTES_MAX} bytes; nothing was stored: give a shorter one"
            )


class _Aside(NamedTuple):
    """Work on another database, which may block."""

    work: Callable[[], Any]


#: An action on the user's connection, a plan for the store's own, or work on an outbox's.
_Steps = Generator[Action | Plan[Any] | _Aside, Any, T]


class Transactions:
    """Writes inside transactions of users; remembers what each connection writes to."""

    def __init__(self) -> None:
        self.outboxes: Outboxes | tuple[()] = ()  #: of the app
        #: The outbox that each connection writes to; None: the store itself.
        self._fit: MutableMapping[Any, Outbox | None] = weakref.WeakKeyDictionary()
        self._files: dict[Any, Outbox | None] = {}  # the same by the names of SQLite files
        self._told: MutableMapping[Any, dict[str, None]] = weakref.WeakKeyDictionary()
        self._own: Any = None  # which store this is

    def write(self, store: Store, tx: object, written: Written) -> None:
        """Write on the user's connection, in this thread."""
        way = recognised(tx)
        if way.waits:
            raise UsageError(
                f"tx={tx!r} is used with await: call aenqueue(), aenqueue_many() or acancel(); "
                "nothing was sent"
            )
        try:
            if not self._written_again(store, way, written):
                drive(self._steps(store, way, written), lambda step: _answer(store, way, step))
        except Exception as error:
            _tell_locked(error, way)
            raise

    async def awrite(self, store: Store, tx: object, written: Written) -> None:
        """As `write`, without blocking the event loop where the connection does not."""
        way = recognised(tx)
        try:
            await adrive(self._steps(store, way, written), lambda step: _aanswer(store, way, step))
        except Exception as error:
            _tell_locked(error, way)
            raise

    def _written_again(self, store: Store, way: UserConnection, written: Written) -> bool:
        """Write at once on a connection that was checked before, as most were.

        False: nothing was written, and the general way has to follow.
        """
        if not (self._files or self._fit) or written.notify:
            return False
        way.refuse()
        key, intake = _main_file(way) if way.family == "sqlite" else way.key(), store.intake
        fit = self._files if isinstance(key, str) else self._fit
        if key not in fit:
            return False
        outbox = fit[key]
        try:
            if outbox is not None:
                return bool(way.change(outbox.append(store, written.requests)))
            if intake is None or not way.change(intake.append(written.requests)):
                return False
        except Exception as error:
            if _NO_TABLE in str(error):
                return False
            raise
        if (watched := way.watch()) is not None:
            self._tell_after_commit(way, watched, written, intake.wake)
        return True

    def _steps(self, store: Store, way: UserConnection, written: Written) -> _Steps[None]:
        intake = store.intake
        if intake is None and not self.outboxes:
            raise UsageError(
                f"{store.label} cannot take part in a transaction of your database, so tx= is not "
                "for it; nothing was sent: use a store on the database of the transaction, or "
                "declare an outbox there with app.outbox(engine)"
            )
        way.refuse()
        outbox = yield from self._place(intake)
        try:
            if outbox is not None:
                statement = outbox.append(store, written.requests)
                yield lambda way: way.change(statement)
            elif intake is not None:
                yield from self._write(store, intake, written)
                if (watched := way.watch()) is not None:
                    self._tell_after_commit(way, watched, written, intake.wake)
        except Exception as error:
            if _NO_TABLE in str(error):
                self._files.clear()
                yield from self._place(intake)  # its error says what to do about it
            raise

    def _write(self, store: Store, intake: Intake, written: Written) -> _Steps[None]:
        statement = intake.append(written.requests)
        changed = yield lambda way: way.change(statement)
        if not changed:
            copied = yield store.transfer.copied()
            raise (copied or Copied("another store", 0)).refusal(store.label)
        notice = intake.notice() if written.notify else None
        if notice is not None:
            yield lambda way: way.rows(notice)

    def _place(self, intake: Intake | None) -> _Steps[Outbox | None]:
        """Find out, once per connection, what it writes to: the store, or an outbox."""
        family, key = yield lambda way: (way.family, way.key())
        if family == "sqlite":  # connections cannot be weakly referenced; file names serve
            key = yield _main_file
        fit = self._files if isinstance(key, str) else self._fit
        if key in fit:
            return fit[key]
        problem, found = None, None
        if intake is not None:
            problem = yield from self._check(intake, family)
        for outbox in self.outboxes if intake is None or problem is not None else ():
            if outbox.family != family:
                problem = problem or _another(family, f"the outbox is {outbox.family}")
                continue
            trouble = yield from _check_outbox(outbox)
            if trouble is None:
                problem, found = None, outbox
                break
            problem = f"tx= cannot be used: {trouble}; nothing was stored"
        if problem is not None:
            raise UsageError(problem)
        with contextlib.suppress(TypeError):  # keys without weak references are asked each time
            fit[key] = found
        return found

    def _check(self, intake: Intake, family: str) -> _Steps[str | None]:
        """Say why a connection cannot write to this store's intake; None if it can."""
        if family != intake.family:
            return _another(family, f"this store is {intake.family}")
        answer = yield lambda way: way.rows(intake.probe())
        problem = intake.unfit(answer, self._own)
        if problem is not None:  # or the identity of the store is not known, or has changed
            identity = intake.identity()
            if identity is not None:
                self._own = yield identity
                problem = intake.unfit(answer, self._own)
        return None if problem is None else f"tx= cannot be used: {problem}; nothing was stored"

    def _tell_after_commit(
        self,
        way: UserConnection,
        watched: object,
        written: Written,
        wake: Callable[[Sequence[str]], None],
    ) -> None:
        """Wake workers after the commit, where the library reports commits."""
        topics = dict.fromkeys(("", *written.queues))  # also where a cancel names no queue
        waiting = self._told.get(watched)
        if waiting is not None:
            waiting.update(topics)
            return
        waiting = self._told[watched] = topics

        def told() -> None:
            if waiting:
                wake([queue for queue in waiting if queue])
                waiting.clear()

        way.after_commit(told)


def _main_file(way: UserConnection) -> str:
    """Return the file of a SQLite connection; empty for one in memory, which never fits."""
    return way.rows(_DATABASES)[0][2] or ""  # it is always the first


def _another(family: str, own: str) -> str:
    return (
        f"tx= is a connection to {family}, and {own}; nothing was sent: give a connection to the "
        "database of the store"
    )


def _check_outbox(outbox: Outbox) -> _Steps[str | None]:
    """Say why a connection cannot write to this outbox; None if it can."""
    answer = yield lambda way: way.rows(outbox.probe())
    problem = outbox.unfit(answer)
    if problem is not None:  # or the identity of the table is not known, or has changed
        yield _Aside(outbox.exists)
        problem = outbox.unfit(answer)
    return problem


def _answer(store: Store, way: UserConnection, step: Action | Plan[Any] | _Aside) -> Any:
    if isinstance(step, _Aside):
        return step.work()
    return store.run(step) if isinstance(step, Plan) else step(way)


async def _aanswer(store: Store, way: UserConnection, step: Action | Plan[Any] | _Aside) -> Any:
    if isinstance(step, _Aside):
        import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

        return await asyncio.to_thread(step.work)
    return await (store.arun(step) if isinstance(step, Plan) else way.perform(step))


def _tell_locked(error: Exception, way: UserConnection) -> None:
    if _LOCKED in str(error) and way.family == "sqlite":
        raise StoreUnavailable(
            "tx=: another connection writes to the SQLite file, or has written since this "
            "transaction began to read; nothing was stored: roll back and try again, and begin "
            "transactions that write with BEGIN IMMEDIATE"
        ) from error
