# SPDX-License-Identifier: MIT
"""Remove the artifacts of jobs that are gone, those of crashed and stale attempts among them."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from packhorse.artifacts import PlaceSource
from packhorse.runtime.services.service import Service, ServiceContext

_LOG: Final = logging.getLogger("packhorse.worker")
#: Jobs checked in one run.
_BATCH: Final = 200


class ArtifactSweeper(Service):
    """Go through the jobs that have artifacts, and remove those of jobs that left the store.

    An artifact is put while its job runs, so a job that is not in the store was there before.
    """

    name = "artifacts"
    interval_s = 300.0

    def __init__(self, context: ServiceContext, places: PlaceSource) -> None:
        super().__init__(context)
        self._places = places
        self._after = ""

    async def run_once(self) -> float:
        """Check one batch of jobs."""
        place = await asyncio.to_thread(self._places)
        if place is None:
            return self._wait_s()
        jobs = await asyncio.to_thread(place.jobs, self._after, _BATCH)
        errors: list[Exception] = []
        for job_id in jobs:
            if await self._store.arun(self._store.inspection.job(job_id)) is None:
                try:
                    await asyncio.to_thread(place.remove, job_id)
                except Exception as error:  # noqa: BLE001 - whatever a place raises: others go on
                    errors.append(error)
        if errors:
            _LOG.warning(
                "artifacts of %s jobs could not be removed, and are tried again: %s",
                *(len(errors), errors[0]),
            )
        self._after = jobs[-1] if len(jobs) >= _BATCH else ""
        return 1.0 if self._after else self._wait_s()
