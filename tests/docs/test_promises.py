# SPDX-License-Identifier: MIT
"""What users must know before they rely on it is one link away, and is so."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from packhorse import Context, Packhorse, RetryPolicy
from tests.docs.pages import DOCS, ROOT, blocks, root_command, shown_commands

LINK: Final = re.compile(r"\]\(([^)]+\.md[^)]*)\)")


@pytest.mark.parametrize(
    ("first", "page"),
    [
        pytest.param("README.md", "explanation/delivery.md", marks=pytest.mark.req("S4-31")),
        pytest.param("README.md", "explanation/when-not-to.md", marks=pytest.mark.req("S2-31")),
        pytest.param("docs/index.md", "how-to/troubleshooting.md", marks=pytest.mark.req("S3-47")),
    ],
)
def test_the_first_pages_lead_to_what_users_must_know(first: str, page: str) -> None:
    links = LINK.findall((ROOT / first).read_text(encoding="utf-8"))
    found = {(ROOT / first).parent.joinpath(link.partition("#")[0]).resolve() for link in links}

    assert DOCS / page in found
    assert (DOCS / page).is_file()


@pytest.mark.req("S2-31")
def test_work_that_needs_no_worker_is_a_plain_call_of_the_same_task() -> None:
    app = Packhorse("memory://")

    @app.task
    def double(number: int) -> int:
        return 2 * number

    at_once = double(2)

    assert at_once == 4
    assert app.depth("default") == 0, "nothing waits for a worker"
    app.close()


@pytest.mark.req("S3-47")
def test_what_troubleshooting_asks_first_tells_saturation_retries_and_timeouts_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("PACKHORSE_URL", url)
    app = Packhorse(url)

    @app.task(retry=RetryPolicy(initial_delay="1m"))
    def fail() -> None:
        raise ConnectionError("no answer")

    @app.task(timeout="20ms", retry=RetryPolicy(max_retries=0))
    async def linger() -> None:
        await asyncio.Event().wait()

    failed, late = fail.enqueue(), linger.enqueue()
    app.run(max_jobs=2)
    waiting = fail.enqueue()

    said = {line: asked(line.replace("JOB", waiting.id)) for line in first_commands()}
    app.close()

    assert [line.split()[0] for line in said] == ["doctor", "stats", "queues", "explain"]
    assert "worker" in said["explain JOB"], "why it waits"
    assert asked("jobs list --status failed --json").count(failed.id) == 1
    assert "TASK_TIMEOUT" in asked(f"jobs show {late.id}")


def first_commands() -> list[str]:
    """What the page tells to run before anything else."""
    page = ROOT / "docs/how-to/troubleshooting.md"
    block = next(blocks(page.read_text(encoding="utf-8")))
    return [line.partition("#")[0].strip() for line in shown_commands(block)]


def asked(line: str) -> str:
    """What a command prints; it may say that something is wrong."""
    result = CliRunner().invoke(root_command(), shlex.split(line))
    assert result.exit_code in {0, 6}, result.output
    return result.output


@pytest.mark.req("S4-31")
def test_a_handler_is_told_which_attempt_it_is_so_that_it_can_be_safe_to_retry() -> None:
    seen: list[tuple[int, int]] = []
    app = Packhorse("memory://")

    @app.task(retry=RetryPolicy(initial_delay="10ms"))
    def charge(ctx: Context) -> str:
        seen.append((ctx.job.attempt, ctx.job.fence))
        if ctx.job.attempt == 1:
            raise ConnectionError("no answer: charged or not?")
        return "charged"

    job = charge.enqueue()
    app.run(burst=True)

    assert job.result() == "charged"
    app.close()
    assert [attempt for attempt, _ in seen] == [1, 2]
    assert seen[0][1] < seen[1][1], "an outside system can tell the newer one"
