# SPDX-License-Identifier: MIT
"""Remove the artifacts of jobs that are gone, those of crashed and stale attempts among them."""

from __future__ import annotations

import asyncio
from typing import Final

from packhorse.artifacts import PlaceSource
from packhorse.core.clock import Chance
from packhorse.runtime.services.upkeep import spread
from packhorse.stores.protocol import Store

#: Jobs looked at in one go.
_BATCH: Final = 200


class ArtifactSweeper:
    """Goes round the jobs that have artifacts, and removes those of jobs the store has not.

    An artifact is put while its job runs, so a job that is not in the store was there before.
    """

    name = "artifacts"
    interval_s = 300.0

    def __init__(self, store: Store, chance: Chance, places: PlaceSource) -> None:
        self._store = store
        self._chance = chance
        self._places = places
        self._after = ""

    async def run_once(self) -> float:
        """Look at one batch of jobs."""
        place = await asyncio.to_thread(self._places)
        if place is None:
            return spread(self.interval_s, self._chance)
        jobs = await asyncio.to_thread(place.jobs, self._after, _BATCH)
        for job_id in jobs:
            if await self._store.arun(self._store.inspection.job(job_id)) is None:
                await asyncio.to_thread(place.remove, job_id)
        self._after = jobs[-1] if len(jobs) >= _BATCH else ""
        return 1.0 if self._after else spread(self.interval_s, self._chance)
