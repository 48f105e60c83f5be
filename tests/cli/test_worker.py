# SPDX-License-Identifier: MIT
"""`packhorse worker`, as processes of its own: output, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from packhorse import JobStatus, Packhorse
from packhorse.cli.exits import ExitCode
from packhorse.cli.options import capped, queue_names
from packhorse.cli.serving import exit_after_signals
from packhorse.cli.worker import worker_command
from packhorse.stores.requests import Renewal
from tests.cli.project import JOBS, PATIENCE_S, Project, heard

Processes = list[subprocess.Popen[str]]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, and everything on stderr."""
    _, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, errors


def test_a_burst_runs_what_is_there_and_says_what_runs_where(
    project: Project, app: Packhorse
) -> None:
    job = app.tasks["add"].enqueue(40, 2)

    result = project.finish(
        *("worker", "jobs:app", "--burst", "-c", "3", "--lease", "10s", "--log-format", "console")
    )

    assert result.returncode == 0
    assert result.stdout == ""
    assert job.result() == 42
    for line in (
        "Using jobs:app (from the command line)",
        "  app          jobs:app (from the command line)",
        f"  store        sqlite:///{project.folder / 'jobs.db'} (schema ",
        "  queues       mail, default",
        "  concurrency  3",
        "  lease        10s",
    ):
        assert line in result.stderr


def test_a_cap_holds_for_one_queue_in_each_process(project: Project) -> None:
    project.write(
        "capped.py",
        """
import asyncio
from packhorse import Packhorse
app, most, running = Packhorse("sqlite:///capped.db"), [0], [0]

@app.task(queue="mail")
async def send(number: int) -> int:
    running[0] += 1
    most[0] = max(most + running)
    await asyncio.sleep(0.01)
    running[0] -= 1
    return most[0]
""",
    )
    sys.path.insert(0, str(project.folder))
    from capped import app, send  # type: ignore[import-not-found]  # written above

    jobs = [send.enqueue(number) for number in range(20)]

    result = project.finish("worker", "capped:app", "-q", "mail:2,default", "-c", "8", "--burst")

    assert max(job.result() for job in jobs) == 2
    assert result.returncode == 0
    app.close()


def test_logs_are_json_where_no_terminal_is(project: Project, app: Packhorse) -> None:
    job = app.tasks["add"].enqueue(1)

    result = project.finish("worker", "--burst")

    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert any(line.get("job_id") == job.id for line in lines)


def test_only_the_queues_named_are_served(project: Project, app: Packhorse) -> None:
    here, there = app.tasks["add"].enqueue(1), app.tasks["explode"].enqueue()

    result = project.finish("worker", "-q", "default", "--burst", "--log-format", "console")

    assert here.status() is JobStatus.COMPLETED
    assert there.status() is JobStatus.QUEUED
    assert "  queues       default\n" in result.stderr


def test_a_queue_that_is_known_nowhere_is_told_of_with_the_nearest_name(
    project: Project, app: Packhorse
) -> None:
    app.tasks["add"].using(queue="stored").enqueue(1)

    result = project.finish("worker", "-q", "mial,stored,mail", "--burst", "--log-format", "json")

    assert result.returncode == 0
    (said,) = [line for line in result.stderr.splitlines() if "is declared nowhere" in line]
    line = json.loads(said)
    assert line["level"] == "warning"
    assert "queue 'mial' is declared nowhere and holds no jobs, so nothing runs" in line["message"]
    assert line["message"].endswith("did you mean 'mail'?")


ELSEWHERE = """
from packhorse import Packhorse

app = Packhorse("sqlite:///own.db")

@app.task(executor="process")
def begin() -> str:
    return follow.enqueue().id

@app.task
def follow() -> None: ...
"""


def test_a_url_is_beaten_by_the_one_on_the_command_line_in_every_process(project: Project) -> None:
    project.write("elsewhere.py", ELSEWHERE)
    there = ("--url", "sqlite:///there.db")

    sent = project.finish("enqueue", "begin", "--app", "elsewhere", *there)
    result = project.finish("worker", "elsewhere", *there, "--burst", "--log-format", "console")

    assert (sent.returncode, result.returncode) == (0, 0), result.stderr
    assert "/there.db (schema" in result.stderr
    assert not (project.folder / "own.db").exists()
    there_app = Packhorse(f"sqlite:///{project.folder}/there.db")
    assert [queue.counts for queue in there_app.insights.queues()] == [{JobStatus.COMPLETED: 2}]
    there_app.close()


def test_max_jobs_ends_the_worker(project: Project, app: Packhorse) -> None:
    for number in range(3):
        app.tasks["add"].enqueue(number)

    result = project.finish("worker", "--max-jobs", "2", "-c", "1", "--log-level", "error")

    assert result.returncode == 0
    assert app.depth("default") == 1


@pytest.mark.req("S4-9", "S4-11")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_job_finish_and_ends_with_0(
    project: Project, app: Packhorse, processes: Processes, number: signal.Signals
) -> None:
    job = app.tasks["linger"].enqueue()
    process = project.start("worker", "--log-format", "json")
    processes.append(process)
    heard(process.stdout, "lingering")

    process.send_signal(number)
    heard(process.stderr, "worker.stopping")
    project.write("go", "")

    code, errors = ended(process)
    assert code == 0, errors
    assert job.status() is JobStatus.COMPLETED


@pytest.mark.req("S4-12", "S4-14")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_a_second_signal_gives_the_job_back_and_is_the_exit_code(
    project: Project, app: Packhorse, processes: Processes, number: signal.Signals, code: int
) -> None:
    job = app.tasks["linger"].enqueue()
    process = project.start("worker", "--log-format", "json")
    processes.append(process)
    heard(process.stdout, "lingering")

    process.send_signal(number)
    heard(process.stderr, "worker.stopping")
    process.send_signal(number)

    assert ended(process)[0] == code
    assert job.status() is JobStatus.QUEUED


def test_a_handler_that_will_not_stop_is_abandoned_and_that_is_exit_code_8(
    project: Project, app: Packhorse, processes: Processes
) -> None:
    app.tasks["doze"].enqueue(600)
    process = project.start("worker", "--log-format", "json")
    processes.append(process)
    heard(process.stdout, "dozing")

    process.send_signal(signal.SIGTERM)
    heard(process.stderr, "worker.stopping")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)

    assert ended(process)[0] == ExitCode.JOBS_ABANDONED


def test_an_app_that_cannot_be_loaded_ends_with_4_and_no_traceback_of_ours(
    project: Project,
) -> None:
    result = project.finish("worker", "nowhere:app")

    assert result.returncode == ExitCode.APP_NOT_LOADED
    assert "Error APP_NOT_LOADED: there is no module 'nowhere'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-q", "mail:0"), "queue_caps has 'mail': 0; give queues it serves, and 1 or more"),
        (("-q", "mail,,default"), "a name is missing beside a comma"),
        (("-c", "0"), "concurrency is 0; give 1 to"),
        (("--lease", "1 fortnight"), "Invalid value for '--lease'"),
        (("--log-level", "loud"), "Invalid value for '--log-level'"),
        (("-p", "0"), "Invalid value for '-p'"),
    ],
)
def test_options_that_cannot_work_are_refused(
    project: Project, arguments: tuple[str, ...], problem: str
) -> None:
    result = project.finish("worker", *arguments)

    assert result.returncode == ExitCode.USAGE
    assert problem in result.stderr


def test_names_of_queues_may_have_colons_that_are_no_caps() -> None:
    assert queue_names("mail, eu:reports") == ("mail", "eu:reports")
    assert [capped(name) for name in ("mail", "eu:reports", "mail:10", "eu:mail:3")] == [
        *(("mail", None), ("eu:reports", None), ("mail", 10), ("eu:mail", 3))
    ]


@pytest.mark.parametrize(
    ("code", "signals", "expected"),
    [(0, [], 0), (0, [15], 0), (0, [15, 15], 143), (0, [15, 2], 130), (8, [15, 15], 8)],
)
def test_abandoned_jobs_count_for_more_than_a_second_signal(
    code: int, signals: list[int], expected: int
) -> None:
    assert exit_after_signals(code, signals) == expected


def test_several_processes_share_the_work_and_stop_together(
    project: Project, app: Packhorse, processes: Processes
) -> None:
    jobs = [app.tasks["linger"].enqueue() for _ in range(2)]
    process = project.start(
        *("worker", "-p", "2", "-c", "1", "--log-level", "error", "--log-format", "console")
    )
    processes.append(process)
    heard(process.stdout, "lingering")
    heard(process.stdout, "lingering")

    workers = [worker for worker in app.insights.workers() if worker.live]
    process.send_signal(signal.SIGTERM)
    project.write("go", "")
    code, errors = ended(process)

    assert code == 0, errors
    assert len({worker.pid for worker in workers}) == 2
    assert [job.status() for job in jobs] == [JobStatus.COMPLETED] * 2
    assert errors.count("  concurrency  1") == 1


def test_one_process_that_dies_is_told_and_replaced(
    project: Project, app: Packhorse, processes: Processes
) -> None:
    for _ in range(2):
        app.tasks["linger"].enqueue()
    process = project.start(
        *("worker", "-p", "2", "-c", "1", "--log-level", "error", "--log-format", "console")
    )
    processes.append(process)
    heard(process.stdout, "lingering")
    heard(process.stdout, "lingering")

    victim = next(worker.pid for worker in app.insights.workers() if worker.live)
    os.kill(victim, signal.SIGKILL)
    heard(process.stderr, f"process {victim} ended by itself (signal SIGKILL")
    heard(process.stdout, "lingering")
    project.write("go", "")
    process.send_signal(signal.SIGTERM)

    code, errors = ended(process)
    assert code == 0, errors


def test_a_child_is_given_every_choice_and_starts_no_children_of_its_own() -> None:
    flags = {
        "queues": (("mail", "default"), ("reports",)),
        "concurrency": 5,
        "max_jobs": None,
        "lease": "10s",
        "shutdown_timeout": None,
        "default_timeout": "1m",
        "log_level": "warning",
        "log_format": "json",
        "burst": True,
        "banner": False,
        "include": ("shop.mail", "shop.pay"),
    }

    command = worker_command("jobs:app", flags)

    assert command == [
        *(sys.executable, "-m", "packhorse", "worker", "--processes", "1"),
        *("--queues", "mail,default", "--queues", "reports", "--concurrency", "5"),
        *("--lease", "10s", "--default-timeout", "1m", "--log-level", "warning"),
        *("--log-format", "json", "--include", "shop.mail", "--include", "shop.pay"),
        *("--burst", "--no-banner", "jobs:app"),
    ]


def test_an_app_without_tasks_is_pointed_out(project: Project) -> None:
    project.write("bare.py", "from packhorse import Packhorse\napp = Packhorse('sqlite:///b.db')\n")

    result = project.finish("worker", "bare", "--burst")

    assert result.returncode == 0
    assert "bare:app declares no tasks" in result.stderr
    assert "include=['shop.mail']), or --include shop.mail" in result.stderr


def test_a_burst_says_that_it_passed_over_jobs_of_unknown_tasks(
    project: Project, app: Packhorse
) -> None:
    project.write("other.py", JOBS.replace("def greet", "def welcome"))
    job_id = project.finish("enqueue", "welcome", "ada", "--app", "other").stdout.strip()

    passed_over = project.finish("worker", "jobs:app", "--burst")
    renewal = Renewal("w-1", 60_000_000, queues=("default",), tasks=("add",))
    app.store.run(app.store.leases.renew(renewal))
    app.store.run(app.store.upkeep.park(after_us=10**9, limit=9))  # if the worker did not
    assert app.explain(job_id).codes == ("parked",)
    set_aside = project.finish("worker", "jobs:app", "--burst")
    served = project.finish("worker", "other:app", "--burst")

    told = "nothing left to do, save jobs of tasks that this app does not have; see them with "
    told += "'packhorse jobs list --status queued'"
    assert told in passed_over.stderr
    assert told in set_aside.stderr
    assert "(nothing left to do)" in served.stderr
    assert "save jobs" not in served.stderr


@pytest.mark.parametrize("way", [(), ("--in-process",)])
def test_a_store_in_memory_that_nothing_can_reach_is_refused(
    project: Project, way: tuple[str, ...]
) -> None:
    private = "from packhorse import Packhorse\napp = Packhorse('memory://')\n"
    task = "@app.task\ndef add() -> None: print('added')\n"
    project.write("private.py", private + task)
    project.write("used.py", f"{private}{task}add.enqueue()\n")

    refused = project.finish("worker", "private", "--burst", *way)
    used = project.finish("worker", "used", "--burst", *way)

    assert refused.returncode == 2, refused.stderr
    assert "memory:// lives inside the process that uses it, so no job" in refused.stderr
    assert "sqlite:///jobs.db" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (used.returncode, used.stdout) == (0, "added\n"), used.stderr


MAIL = "from jobs import app\n@app.task(name='mail.send')\ndef send(to: str) -> str: return to\n"


def test_included_modules_are_imported_before_jobs_are_claimed(
    project: Project, app: Packhorse
) -> None:
    project.write("mail.py", MAIL)
    mail = app.task(name="mail.send")(lambda to: to).enqueue("a")

    result = project.finish("worker", "-A", "jobs:app", "--include", "mail", "--burst")

    assert result.returncode == 0, result.stderr
    assert mail.result(timeout=1) == "a"


def test_an_app_is_named_once(project: Project) -> None:
    result = project.run("worker", "jobs:app", "--app", "jobs:app")

    assert (result.exit_code, "APP and --app both say which app" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("mial", "there is no module 'mial' (included by jobs:app); did you mean 'mail'?"),
        ("broken", "module broken (included by jobs:app) could not be imported:"),
        ("not/a/module.py", "neither a module nor a router"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(
    project: Project, module: str, told: str
) -> None:
    project.write("mail.py", MAIL)
    project.write("broken.py", "1 / 0\n")

    result = project.finish("worker", "jobs:app", "--include", module, "--burst")

    assert result.returncode != 0
    assert told in result.stderr
    assert "packhorse/" not in result.stderr  # no frames of ours


def test_a_dotted_task_is_submitted_by_its_name(project: Project) -> None:
    project.write("mail.py", MAIL)
    project.write("shop.py", "from jobs import app\napp.include('mail')\n")

    result = project.run("enqueue", "mail.send", "a", "--app", "shop:app")

    assert result.exit_code == 0, result.output


def test_options_come_from_the_environment_unless_they_are_given(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKHORSE_CONCURRENCY", "7")
    monkeypatch.setenv("PACKHORSE_LEASE", "9s")

    result = project.finish("worker", "--burst", "--lease", "8s", "--log-format", "console")

    assert "  concurrency  7\n" in result.stderr
    assert "  lease        8s\n" in result.stderr
