# SPDX-License-Identifier: MIT
"""What is said of jobs whose store could not be reached."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core.job import NewJob
from packhorse.errors import StoreUnavailable

__all__ = ["naming_jobs"]


def naming_jobs(error: StoreUnavailable, jobs: Sequence[NewJob]) -> StoreUnavailable:
    """The same trouble with the job in it, so that the caller can submit the same id again."""
    if len(jobs) == 1:
        job_id = jobs[0].id
        what = f"job {job_id} of task {jobs[0].task}"
        stored = "may have been stored" if error.maybe_stored else "was not stored"
    else:
        job_id = None
        what = f"{len(jobs)} jobs of this call"
        stored = "may all have been stored" if error.maybe_stored else "were not stored"
    return StoreUnavailable(
        f"{error}; {what} {stored}: submitting again with the same job_id is safe",
        job_id=job_id,
        maybe_stored=error.maybe_stored,
    )
