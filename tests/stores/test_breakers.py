# SPDX-License-Identifier: MIT
"""One circuit breaker for all workers of a store: it opens for all, and is probed by one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from packhorse import BreakerOpen, Context, JobStatus, Packhorse, RetryPolicy, Snooze
from packhorse.breaker import Breaker, BreakerBook, StoreVerb
from packhorse.core.clock import SystemClock
from packhorse.core.policies import breaker as policy
from packhorse.errors import StoreUnavailable

NewApp = Callable[[], Packhorse]
FLEET: Final = 6
#: Long enough that none of these calls outlasts it, short enough to wait for.
OPEN_FOR: Final = 0.3
SOON: Final = RetryPolicy(max_retries=3, initial_delay=0.001, jitter=False)


class Member:
    """A process of the fleet: what it knows of breakers, and what it has asked the store."""

    def __init__(self, app: Packhorse) -> None:
        self.asked = 0
        self.away = False
        self.store = app.store
        self.book = BreakerBook(self._ask, self._aask, SystemClock.monotonic)

    def breaker(self, name: str = "stripe", **options: Any) -> Breaker:
        chosen: dict[str, Any] = {"failures": 3, "window": "1m", "open_for": "1m", "tenant": ""}
        return Breaker(self.book, name, trip_on=(Exception,), **{**chosen, **options})

    def fail(self, **options: Any) -> None:
        with pytest.raises(OSError, match="down"), self.breaker(**options):
            raise OSError("down")

    def trip(self, **options: Any) -> None:
        """Fail until it opens."""
        for _ in range(3):
            self.fail(**options)

    def look_again(self) -> None:
        """As after a second, in which what it knows has become too old."""
        self.book._read_at = -1e9

    def _ask(self, verb: StoreVerb) -> Any:
        self.asked += 1
        if self.away:
            raise StoreUnavailable("the store is away")
        return self.store.run(verb(self.store))

    async def _aask(self, verb: StoreVerb) -> Any:
        return self._ask(verb)


@pytest.fixture
def fleet(new_app: NewApp) -> list[Member]:
    return [Member(new_app()) for _ in range(FLEET)]


def refused(member: Member, **options: Any) -> BreakerOpen:
    with pytest.raises(BreakerOpen) as raised, member.breaker(**options):
        pass
    return raised.value


def when_due(member: Member) -> None:
    """Wait until the breaker says a call may be tried."""
    threading.Event().wait(refused(member, open_for=OPEN_FOR).delay_us / 1_000_000)


def test_a_call_that_comes_during_the_first_look_is_not_let_through(new_app: NewApp) -> None:
    Member(new_app()).trip()
    member = Member(new_app())
    looking, go_on = threading.Event(), threading.Event()

    def slowly(verb: StoreVerb) -> Any:
        member.book._ask = member._ask  # only the first one
        looking.set()
        assert go_on.wait(30)
        return member._ask(verb)

    member.book._ask = slowly

    def call() -> None:
        with member.breaker():
            pass

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(call)
        assert looking.wait(30)
        with pytest.raises(BreakerOpen):
            call()
        go_on.set()
        with pytest.raises(BreakerOpen):
            first.result()


@pytest.mark.req("S3-31")
def test_failures_of_all_members_open_it_for_all(fleet: list[Member]) -> None:
    for member in fleet[:3]:
        member.fail()

    signal = refused(fleet[4])
    assert (signal.name, signal.code) == ("stripe", "breaker_open")
    assert 0 < signal.delay_us <= 60_000_000
    with fleet[4].breaker("other"), fleet[4].breaker(tenant="acme"):
        pass  # each name and tenant has its own


def test_fewer_failures_than_it_takes_leave_it_closed(fleet: list[Member]) -> None:
    for _ in range(2):
        fleet[0].fail()

    with fleet[1].breaker():
        pass
    fleet[2].fail()
    assert refused(fleet[3]).name == "stripe"


@pytest.mark.parametrize("ends", ["succeeds", "fails"])
def test_one_member_probes_at_a_time_and_what_it_finds_holds_for_all(
    fleet: list[Member], ends: str
) -> None:
    fleet[0].trip(open_for=OPEN_FOR)
    when_due(fleet[0])
    together, all_asked = threading.Barrier(FLEET), threading.Event()
    asked: list[str] = []

    def call(member: Member) -> str:
        together.wait(30)
        try:
            with member.breaker(open_for=OPEN_FOR):
                asked.append("through")
                assert all_asked.wait(30)
                if ends == "fails":
                    raise OSError("down")  # noqa: TRY301 - what the other system does
        except BreakerOpen:
            asked.append("refused")
            return "refused"
        except OSError:
            return "through"
        finally:
            if asked.count("refused") == FLEET - 1:
                all_asked.set()
        return "through"

    with ThreadPoolExecutor(FLEET) as threads:
        found = list(threads.map(call, fleet))

    assert sorted(found) == ["refused"] * (FLEET - 1) + ["through"]
    for member in fleet:
        member.look_again()
        if ends == "fails":
            assert refused(member, open_for=OPEN_FOR).name == "stripe"
        else:
            with member.breaker(open_for=OPEN_FOR):
                pass


def test_a_probe_that_was_lost_makes_room_for_another_after_its_time(
    fleet: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "PROBE_US_MIN", int(OPEN_FOR * 1_000_000))
    fleet[0].trip(open_for=OPEN_FOR)
    when_due(fleet[0])
    lost = fleet[0].breaker(open_for=OPEN_FOR)
    lost.__enter__()  # and its process is killed

    when_due(fleet[1])
    with fleet[1].breaker(open_for=OPEN_FOR):
        late = OSError("down")
        lost.__exit__(OSError, late, None)  # it was not dead after all: too late to count

    with fleet[2].breaker(open_for=OPEN_FOR):
        pass


def test_a_probe_that_is_interrupted_leaves_its_place_at_once(fleet: list[Member]) -> None:
    fleet[0].trip(open_for=OPEN_FOR)
    when_due(fleet[0])

    with pytest.raises(Snooze), fleet[0].breaker(open_for=OPEN_FOR):
        raise Snooze("1s")

    with fleet[0].breaker(open_for=OPEN_FOR):
        pass
    with fleet[1].breaker(open_for=OPEN_FOR):
        pass


def test_what_is_no_failure_of_the_other_system_does_not_trip_it(fleet: list[Member]) -> None:
    member = fleet[0]
    for _ in range(5):
        breaker = Breaker(
            *(member.book, "stripe"),
            failures=1,
            window="1m",
            open_for="1m",
            tenant="",
            trip_on=(OSError,),
        )
        with pytest.raises(ValueError, match="my own"), breaker:
            raise ValueError("my own")


def test_calls_that_succeed_ask_for_nothing(fleet: list[Member]) -> None:
    member = fleet[0]
    for _ in range(100):
        with member.breaker():
            pass

    assert member.asked <= 3  # one look a second
    written = member.store.run(member.store.records.records("breaker", limit=10))
    assert written.records == ()


def test_a_store_that_is_away_stops_no_call(fleet: list[Member]) -> None:
    member = fleet[0]
    member.away = True

    with member.breaker():
        pass
    member.fail()


def test_failures_at_the_same_time_are_all_counted(fleet: list[Member]) -> None:
    together = threading.Barrier(FLEET)

    def fail(member: Member) -> None:
        together.wait(30)
        with pytest.raises(OSError, match="down"), member.breaker(failures=FLEET):
            raise OSError("down")

    with ThreadPoolExecutor(FLEET) as threads:
        list(threads.map(fail, fleet))

    fleet[0].look_again()
    assert refused(fleet[0]).name == "stripe"


@pytest.mark.req("S3-31")
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
def test_a_job_that_meets_an_open_breaker_waits_and_uses_up_nothing(
    new_app: NewApp, kind: str
) -> None:
    app = new_app()
    calls: list[str] = []

    def charge() -> None:
        calls.append("charge")
        raise OSError("down")

    async def acharge() -> None:
        charge()

    def here(ctx: Context) -> None:
        ctx.breaker("stripe", failures=1)(charge)

    async def there(ctx: Context) -> None:
        async with ctx.breaker("stripe", failures=1):
            await acharge()

    task: Any = app.task(retry=SOON)(there if kind == "coroutine" else here)
    job = task.enqueue()
    app.run(burst=True)

    info = job.info()
    assert calls == ["charge"]
    assert info.status is JobStatus.PENDING
    assert (info.attempts, info.failures, info.snoozes) == (2, 1, 0)
    assert [line.status for line in job.history()] == ["failed", "pending"]
    [first, *_] = job.explain().reasons
    assert first.code == "breaker_open"
    assert "breaker 'stripe' is open" in first.text
    [shown] = app.insights.breakers()
    assert (shown.name, shown.state, shown.failures) == ("stripe", "open", 1)
    assert shown.retry_at is not None
    assert info.due_at >= shown.retry_at


def test_a_handler_may_do_without_the_call(new_app: NewApp) -> None:
    app = new_app()
    Member(app).trip()

    @app.task
    async def rate(ctx: Context) -> str:
        try:
            async with ctx.breaker("stripe", failures=3, window="1m"):
                return "fresh"
        except BreakerOpen as error:
            return f"stale, {error.name}"

    job = rate.enqueue()
    app.run(burst=True)

    assert job.result() == "stale, stripe"
