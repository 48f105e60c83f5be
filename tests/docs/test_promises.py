# SPDX-License-Identifier: MIT
"""What users must know before they rely on it stands where they look first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from packhorse import Context, Packhorse, RetryPolicy

ROOT: Final = Path(__file__).resolve().parents[2]


@pytest.mark.req("S4-31")
@pytest.mark.parametrize("page", ["README.md", "docs/explanation/delivery.md"])
def test_the_docs_say_that_handlers_must_bear_being_run_twice(page: str) -> None:
    words = " ".join((ROOT / page).read_text(encoding="utf-8").split())

    assert "run twice" in words
    assert "fence" in words, "and what to use where running twice would do harm"


@pytest.mark.req("S2-31")
@pytest.mark.parametrize("page", ["README.md", "docs/explanation/when-not-to.md"])
def test_the_docs_say_when_not_to_use_a_worker(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    bold = " ".join(re.findall(r"\*\*(.+?)\*\*", " ".join(text.split()))).lower()

    for case in ("needed at once", "under 100 ms", "streams"):
        assert case in bold, f"{page} does not say it of: {case}"


@pytest.mark.req("S3-47")
def test_troubleshooting_looks_at_room_retries_and_timeouts_before_replicas() -> None:
    text = (ROOT / "docs/how-to/troubleshooting.md").read_text(encoding="utf-8")

    advice = text[: text.index("## ")].lower()
    places = [advice.index(word) for word in ("saturation", "retries", "timeouts", "replicas")]
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert places == sorted(places)
    assert headings[-1] == "When replicas help"


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
