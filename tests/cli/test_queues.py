# SPDX-License-Identifier: MIT
"""Queues steered from the command line: paused in part, drained, limited; and jobs explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import Packhorse, QueueClosed
from packhorse.cli.exits import ExitCode
from packhorse.cli.queues import limit_texts, parse_limits
from packhorse.client.declarations import queue_declaration
from packhorse.core.options import LimitOptions
from packhorse.protocol import instant_us
from packhorse.stores.requests import Renewal
from tests.cli.project import Project

LIMITED = """
from packhorse import Packhorse, Unique

app = Packhorse("sqlite:///jobs.db")
app.queue("mail", concurrency=5, rate_limit=(100, "60s"), max_depth=50, on_full="wait",
          autoscale={"max_workers": 4, "scale_up": 2, "scale_down": 0})

@app.task(queue="mail", rate_key="to", unique=Unique("to"))
def send(to: str) -> None: ...
"""


@pytest.fixture
def limited(folder: Path) -> Project:
    """A project whose queue has limits."""
    made = Project(folder)
    made.write("jobs.py", LIMITED)
    return made


@pytest.fixture
def app(limited: Project) -> Iterator[Packhorse]:
    opened = limited.app()
    opened.tasks["send"].using(job_id="j1").enqueue("ada")
    yield opened
    opened.close()


# ------------------------------------------------------------------------------------ explain


def test_explain_says_why_a_job_is_not_running(limited: Project, app: Packhorse) -> None:
    app.pause("mail", key="ada")

    result = limited.run("explain", "j1")
    document = limited.document("explain", "j1")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "job j1 of task send in queue mail is queued:",
        "- key 'ada' is paused in queue 'mail': resume it",
        "- no live worker serves queue 'mail'",
    ]
    assert (document["jobId"], document["status"], document["queue"]) == ("j1", "queued", "mail")
    assert [reason["code"] for reason in document["reasons"]] == ["key_paused", "no_worker"]
    assert document["reasons"][0] == {
        "code": "key_paused",
        "text": "key 'ada' is paused in queue 'mail': resume it",
        "at": None,
        "jobs": [],
        "count": None,
    }
    assert instant_us(document["at"]) > 0


def test_explain_of_an_unknown_job_ends_with_7(limited: Project, app: Packhorse) -> None:
    assert limited.run("explain", "unknown").exit_code == ExitCode.NOTHING_MATCHED
    assert limited.run("explain", "j1", "--tenant", "x").exit_code == ExitCode.NOTHING_MATCHED


# ------------------------------------------------------------------------------ pause and drain


def test_keys_and_tenants_of_a_queue_are_paused_and_resumed(
    limited: Project, app: Packhorse
) -> None:
    document = limited.document("queues", "pause", "mail", "--key", "ada")
    said = limited.run("queues", "pause", "mail", "--tenant", "acme").stdout

    assert document == {"queue": "mail", "key": "ada", "paused": True, "changed": True}
    assert said == "Tenant acme of queue mail is paused.\n"
    (queue,) = limited.document("queues", "list")["queues"]
    assert (queue["paused"], queue["pausedKeys"], queue["pausedTenants"]) == (
        *(False, ["ada"]),
        ["acme"],
    )
    assert "key ada paused; tenant acme paused" in limited.run("queues", "list").stdout

    again = limited.run("queues", "resume", "mail", "--key", "ada").stdout
    assert again == "Key ada of queue mail is open.\n"
    assert limited.document("queues", "resume", "mail", "--tenant", "acme")["changed"] is True
    assert limited.run("queues", "pause", "mail", "--key", "a", "--tenant", "b").exit_code == (
        ExitCode.USAGE
    )


@pytest.mark.parametrize(
    "command",
    [
        ("queues", "pause", "mail", "--tenant"),
        ("queues", "resume", "mail", "--key"),
        ("jobs", "list", "--tenant"),
        ("dead", "purge", "--yes", "--tenant"),
        ("dead", "redrive", "--yes", "--queue"),
        ("explain", "j1", "--tenant"),
        ("enqueue", "send", "ada", "--tenant"),
    ],
)
def test_an_empty_name_is_a_mistake_and_nothing_is_done(
    limited: Project, app: Packhorse, command: tuple[str, ...]
) -> None:
    result = limited.run(*command, "")

    assert result.exit_code == ExitCode.USAGE
    assert "it is empty; give a name, or leave the option out" in result.stderr
    assert [queue.paused_tenants for queue in app.insights.queues()] == [()]


def test_a_drained_queue_is_closed_until_it_is_opened(limited: Project, app: Packhorse) -> None:
    assert limited.run("queues", "close", "mail").stdout == "Queue mail is closed.\n"
    assert limited.run("queues", "close", "mail").stdout == "Queue mail was closed already.\n"
    assert "mail   closed" in limited.run("queues", "list").stdout
    with pytest.raises(QueueClosed):
        app.tasks["send"].enqueue("bob")

    document = limited.document("queues", "open", "mail")

    assert document == {"queue": "mail", "closed": False, "changed": True}
    app.tasks["send"].enqueue("bob")


def test_a_queue_that_is_still_closed_or_paused_is_not_called_open(
    limited: Project, app: Packhorse
) -> None:
    limited.run("queues", "close", "mail")
    limited.run("queues", "pause", "mail")
    limited.run("queues", "pause", "mail", "--key", "ada")

    key = limited.run("queues", "resume", "mail", "--key", "ada").stdout
    resumed = limited.run("queues", "resume", "mail").stdout
    again = limited.run("queues", "resume", "mail").stdout

    closed = "takes no new jobs; open it with 'packhorse queues open mail'.\n"
    paused = "gives out no jobs; go on with 'packhorse queues resume mail'"
    assert key == (
        "Key ada of queue mail is no longer paused, but the queue is closed and takes no new "
        f"jobs; open it with 'packhorse queues open mail'. It is paused and {paused}.\n"
    )
    assert resumed == f"Queue mail is no longer paused, but the queue is closed and {closed}"
    assert again == f"Queue mail was not paused, but the queue is closed and {closed}"

    limited.run("queues", "pause", "mail")
    opened = limited.run("queues", "open", "mail").stdout

    assert opened == f"Queue mail is no longer closed, but the queue is paused and {paused}.\n"
    assert limited.run("queues", "resume", "mail").stdout == "Queue mail is open.\n"


def test_what_the_app_declares_is_known_before_the_first_submit(limited: Project) -> None:
    limited.run("migrate")

    (queue,) = limited.document("queues", "list")["queues"]
    bare = limited.document("queues", "list", "--url", "sqlite:///jobs.db")["queues"]
    unset = limited.document("queues", "set", "mail", "--unset")

    assert (queue["name"], queue["declared"], queue["limits"]["concurrency"]) == ("mail", True, 5)
    assert bare == []
    assert (unset["changed"], unset["limits"]["concurrency"]) == (False, 5)
    assert limited.run("queues", "pause", "mail").stdout == "Queue mail is paused.\n"
    assert limited.run("queues", "pause", "default").stdout == "Queue default is paused.\n"


def test_nothing_is_unset_where_nothing_was_set(limited: Project) -> None:
    limited.run("migrate")

    result = limited.run("queues", "set", "default", "--unset")

    assert result.exit_code == ExitCode.NOTHING_MATCHED
    assert "no limits of queue 'default' are set" in result.stderr


# ---------------------------------------------------------------------------------------- set


def test_limits_are_shown_and_set_and_unset(limited: Project, app: Packhorse) -> None:
    (queue,) = limited.document("queues", "list")["queues"]
    assert queue["limits"] == {
        "concurrency": 5,
        "rateLimit": {"max": 100, "windowMs": 60_000},
        "tenantRateLimit": None,
        "maxDepth": 50,
        "maxBytes": None,
        "onFull": "wait",
        "softDepth": None,
        "fair": True,
        "weights": {},
        "ageingMs": None,
        "onDead": "release",
    }
    assert (queue["overridden"], queue["closed"]) == (False, False)

    changed = limited.document("queues", "set", "mail", "concurrency=9", "rate_limit=none")
    said = limited.run("queues", "set", "mail", "concurrency=9").stdout
    listed = limited.run("queues", "list").stdout

    assert (changed["changed"], changed["overridden"]) == (True, True)
    assert (changed["limits"]["concurrency"], changed["limits"]["rateLimit"]) == (9, None)
    assert changed["limits"]["maxDepth"] == 50
    assert said == (
        "Queue mail: nothing changed; limits are 9 at once; 50 waiting (wait); set by hand.\n"
    )
    assert "9 at once; 50 waiting (wait); set by hand" in listed

    unset = limited.document("queues", "set", "mail", "--unset")
    assert (unset["changed"], unset["overridden"]) == (True, False)
    assert unset["limits"]["concurrency"] == 5


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("mail",), "give limits as name=value, or --unset"),
        (("mail", "concurrency=1", "--unset"), "give limits as name=value, or --unset"),
        (("mail", "concurrency"), "'concurrency' is no limit; write it as name=value"),
        (("mail", "concurency=1"), "there is no limit 'concurency'; did you mean 'concurrency'?"),
        (("mail", "zzz=1"), "the limits are priority, concurrency, rate_limit"),
        (("mail", "concurrency=two"), "concurrency is 'two'; write a whole number, or none"),
        (("mail", "concurrency=1", "concurrency=2"), "concurrency is given twice"),
        (("mail", "rate_limit=100"), "write how many and the window, such as 100/60s"),
        (("mail", "fair=perhaps"), "fair is 'perhaps'; write true or false"),
        (("mail", "weights=acme"), "write tenants and shares, such as acme:2"),
        (("mail", "concurrency=0"), "queue 'mail': concurrency is 0; give 1 or more"),
        (("mail", "rate_limit=5/soon"), "rate_limit: its window is 'soon'"),
    ],
)
def test_limits_that_cannot_work_are_refused_and_change_nothing(
    limited: Project, app: Packhorse, arguments: tuple[str, ...], problem: str
) -> None:
    result = limited.run("queues", "set", *arguments)

    assert result.exit_code == ExitCode.USAGE
    assert problem in result.stderr
    (queue,) = limited.document("queues", "list")["queues"]
    assert not queue["overridden"]


def test_a_mistyped_queue_is_not_steered(limited: Project, app: Packhorse) -> None:
    for command in (("close", "mial"), ("open", "mial"), ("set", "mial", "concurrency=1")):
        result = limited.run("queues", *command)
        assert result.exit_code == ExitCode.NOTHING_MATCHED
        assert "did you mean 'mail'?" in result.stderr


def test_every_limit_can_be_written() -> None:
    written = parse_limits(
        [
            *("priority=1", "concurrency=2", "rate-limit=3/4s", "tenant_rate_limit=5/6m"),
            *("max_depth=7", "on_full=drop", "soft_depth=6", "fair=on", "weights=a:2,b:0.5"),
            *("ageing=none", "on_dead=hold", "max_bytes=1.5GB"),
        ]
    )

    assert set(written) == set(LimitOptions.__annotations__)
    settings = queue_declaration("mail", written).settings
    assert list(limit_texts(settings)) == [
        "2 at once",
        "3 in 4s",
        "5 in 6m a tenant",
        "7 waiting (drop)",
        "1.5 GB unfinished (drop)",
        "filling from 6",
        "shares a 2, b 0.5",
        "dead jobs hold their line",
    ]


# -------------------------------------------------------------------------------------- bytes


@pytest.mark.req("S2-27")
def test_how_full_of_bytes_queues_and_the_store_are_is_shown_and_explained(
    limited: Project, app: Packhorse
) -> None:
    payload = app.store.run(app.store.inspection.job("j1"))
    assert payload is not None
    held = len(payload.payload)
    assert limited.document("explain", "--queue", "mail")["takesJobs"]
    assert "BYTES" not in limited.run("queues", "list").stdout

    limited.run("queues", "set", "mail", f"max_bytes={held}")
    told = limited.run("queues", "set", "", f"max_bytes={10 * held}").stdout

    shown = f"{held} B of {held} B (100%)"
    assert told == f"The store holds {held} B of {10 * held} B (10%).\n"
    for command in (("queues", "list"), ("stats",)):
        text = limited.run(*command).stdout
        assert shown in text
        assert f"store holds {held} B of {10 * held} B (10%)" in text
    document = limited.document("stats")
    assert document["storeBytes"] == {"held": held, "max": 10 * held}
    assert document["queues"]["mail"]["heldBytes"] == held
    assert limited.run("explain", "--queue", "mail").stdout.splitlines() == [
        "queue mail takes no new jobs:",
        f"- it is full: {shown}; submits wait for room",
    ]
    assert "holds" in limited.run("doctor").stdout
    limited.run("queues", "set", "", "max_bytes=none")
    assert "storeBytes" not in limited.document("stats")


def test_of_the_store_itself_nothing_but_bytes_is_set(limited: Project, app: Packhorse) -> None:
    result = limited.run("queues", "set", "", "concurrency=1")

    assert result.exit_code != 0
    assert "of the store itself only max_bytes can be set" in result.stderr


# -------------------------------------------------------------------------------------- stats


def test_stats_show_demand_and_wanted_workers_for_scalers(limited: Project, app: Packhorse) -> None:
    app.tasks["send"].enqueue("bob")
    renewal = Renewal("w-1", 60_000_000, queues=("mail",), tasks=("send",), concurrency=10)
    app.store.run(app.store.leases.renew(renewal))

    document = limited.document("stats")
    table = limited.run("stats").stdout.splitlines()

    assert document["scaling"] == [
        {"queue": "mail", "ready": 2, "running": 0, "demand": 2, "workers": 1, "wanted": 2}
    ]
    assert table[2].split()[-4:] == ["OLDEST", "DEMAND", "WORKERS", "WANTED"]
    assert table[3].split()[-3:] == ["2", "1", "2"]


def test_stats_of_a_bare_url_know_the_demand_and_the_wish(limited: Project, app: Packhorse) -> None:
    app.tasks["send"].enqueue("bob")
    app.set_limits("mail", concurrency=1)
    limited.write("jobs.py", "raise AssertionError('imported')")

    document = limited.document("stats", "--url", "sqlite:///jobs.db")

    assert [(each["demand"], each["wanted"]) for each in document["scaling"]] == [(2, 2)]


@pytest.mark.req("S2-18")
def test_the_oldest_age_of_each_priority_is_shown(limited: Project, app: Packhorse) -> None:
    app.tasks["send"].using(priority="low").enqueue("bob")

    (listed,) = limited.document("queues", "list")["queues"]
    counted = limited.document("stats")["queues"]["mail"]

    assert list(listed["oldestReadyMsByPriority"]) == ["normal", "low"]
    assert list(counted["oldestReadyMsByPriority"]) == ["normal", "low"]
    for command in (("stats",), ("queues", "list")):
        assert re.search(r"normal \d+s, low \d+s", limited.run(*command).stdout)


@pytest.mark.usefixtures("app")
def test_drain_is_an_older_name_of_close(limited: Project) -> None:
    result = limited.run("queues", "drain", "mail")

    assert result.stdout == "Queue mail is closed.\n"
    assert "is called 'queues close'" in result.stderr
    assert "drain" not in limited.run("queues", "--help").stdout
