# SPDX-License-Identifier: MIT
"""A producer that waits for room in a full queue, on every store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from packhorse import Packhorse

DEPTH: Final = 3
PRODUCED: Final = 20
#: How long nothing runs while the producer stands before the full queue.
STANDS_S: Final = 0.2
#: How long the producer may take to fill the queue.
PATIENCE_S: Final = 40.0


@pytest.mark.req("S3-22")
def test_a_full_queue_makes_its_producer_wait_and_nothing_is_dropped_or_reordered(
    new_app: Callable[[], Packhorse],
) -> None:
    app = new_app()
    app.queue("narrow", max_depth=DEPTH, on_full="wait")
    ran: list[int] = []
    depths: list[int] = []
    waits: list[float] = []
    full = threading.Event()

    @app.task(queue="narrow")
    def note(number: int) -> None:
        depths.append(app.depth("narrow"))
        ran.append(number)

    def produce() -> None:
        for number in range(PRODUCED):
            began = time.monotonic()
            note.using(wait="20s").enqueue(number)
            waits.append(time.monotonic() - began)
            if len(waits) == DEPTH:
                full.set()

    with ThreadPoolExecutor(1) as pool:
        produced = pool.submit(produce)
        assert full.wait(PATIENCE_S)
        with pytest.raises(TimeoutError):
            produced.result(STANDS_S)
        stood_at = len(waits)  # no job has made room yet
        while not produced.done() or len(ran) < PRODUCED:
            app.run(["narrow"], concurrency=1, burst=True)
        produced.result()

    assert stood_at == DEPTH
    assert max(waits) > STANDS_S / 2
    assert max(depths) <= DEPTH
    assert ran == list(range(PRODUCED))
