# SPDX-License-Identifier: MIT
"""Memory shared by a worker process and its supervisor.

The supervisor can read it while the process is blocked, stopped or dead. The child writes the jobs
it runs and when its event loop last turned; the supervisor writes until when it has kept the lease.
Each field has one writer, and is written in one piece.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from dataclasses import dataclass
from typing import Final

from packhorse.logs.lines import RING_SIZE, LineRing

#: Jobs it has room for: a worker's most slots, and jobs that wait to be settled.
PLACES: Final = 13_000
#: A longer job id is cut; with the fence it is still unique.
_ID_BYTES: Final = 40
_LOG_BYTES: Final = 500

_NUMBER: Final = struct.Struct("<q")
_INSTANT: Final = struct.Struct("<d")
_LOG: Final = struct.Struct(f"<q{_LOG_BYTES}s")
_PLACE: Final = struct.Struct(f"<qdd{_ID_BYTES}s")

#: Written by the supervisor.
_EPOCH_AT, _TRUSTED_AT = 0, 8
#: Written by the child.
_TURNED_AT, _RENEWED_AT, _HIGHEST_AT, _CULPRIT_AT, _LOG_AT = 64, 72, 80, 88, 128
_JOBS_AT: Final = 4096
_EXPIRES_IN_PLACE: Final = 16
_LINES_AT: Final = _JOBS_AT + PLACES * _PLACE.size
SIZE: Final = _LINES_AT + RING_SIZE


@dataclass(frozen=True, slots=True)
class Running:
    """A job whose handler has begun."""

    place: int
    job_id: str  #: its first 40 bytes
    fence: int
    started: float  #: on the monotonic clock, which both processes share
    expires: float  #: when it must have ended, or stopped if told to


def job_key(job_id: str, fence: int) -> tuple[str, int]:
    """Return a job's key among the running ones: its cut id and its fence."""
    return job_id.encode()[:_ID_BYTES].decode("utf-8", "replace"), fence


class SharedMemory:
    """The memory behind a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self.lines = LineRing(self._memory, _LINES_AT)  #: of the child's log
        self._free: list[int] | None = None  # the child's; made when it first writes
        self._highest = 0

    @classmethod
    def create(cls) -> tuple[SharedMemory, int]:
        """Create the memory, and a descriptor to pass to the child."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("packhorse-supervisor")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        try:
            os.ftruncate(descriptor, SIZE)
            return cls(descriptor), descriptor
        except BaseException:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()

    # ------------------------------------------------------------------------ the supervisor's

    def may_have_lapsed(self) -> None:
        """Note that the lease may have run out: other workers may hold what was claimed before."""
        _NUMBER.pack_into(self._memory, _EPOCH_AT, self.epoch + 1)

    def keep_lease(self, trusted_until: float) -> None:
        """Note that the supervisor has renewed the lease, and until when it may be trusted."""
        _INSTANT.pack_into(self._memory, _TRUSTED_AT, trusted_until)

    @property
    def turned_at(self) -> float:
        """When the child's event loop last turned; 0 before it has begun to."""
        return self._instant(_TURNED_AT)

    @property
    def renewed_at(self) -> float:
        """When the child asked for the last renewal that was granted; 0 if there was none."""
        return self._instant(_RENEWED_AT)

    @property
    def culprit(self) -> int | None:
        """The place of the job that blocks the event loop, where the child could tell."""
        place = self._number(_CULPRIT_AT) - 1
        return place if place >= 0 else None

    @property
    def last_log(self) -> str:
        """The last line the child logged."""
        if told := self.lines.last_message():
            return told
        length, text = _LOG.unpack_from(self._memory, _LOG_AT)
        cut: bytes = text[: max(0, min(length, _LOG_BYTES))]
        return cut.decode("utf-8", "replace")

    def running(self) -> list[Running]:
        """List the jobs that run."""
        return [each for each in self._jobs() if each.expires > 0]

    def unsettled(self) -> list[Running]:
        """List the jobs that have ended and are not settled."""
        return [each for each in self._jobs() if each.expires < 0]

    def _jobs(self) -> list[Running]:
        found = []
        for place in range(min(self._number(_HIGHEST_AT), PLACES)):
            at = _JOBS_AT + place * _PLACE.size
            fence, started, expires, name = _PLACE.unpack_from(self._memory, at)
            if expires:
                job_id = name.rstrip(b"\0").decode("utf-8", "replace")
                found.append(Running(place, job_id, fence, started, expires))
        return found

    # ----------------------------------------------------------------------------- the child's

    @property
    def epoch(self) -> int:
        """How often the lease may have run out while the supervisor kept it."""
        return self._number(_EPOCH_AT)

    @property
    def trusted_until(self) -> float:
        """Until when the lease may be trusted after the supervisor's renewal."""
        return self._instant(_TRUSTED_AT)

    def loop_turned(self, now: float) -> None:
        """Note that the event loop turns."""
        _INSTANT.pack_into(self._memory, _TURNED_AT, now)

    def lease_renewed(self, asked_at: float) -> None:
        """Note that the child has renewed its lease."""
        _INSTANT.pack_into(self._memory, _RENEWED_AT, asked_at)

    def blocked_by(self, place: int | None) -> None:
        """Note which job blocks the event loop; None if none does, or it is unknown."""
        _NUMBER.pack_into(self._memory, _CULPRIT_AT, 0 if place is None else place + 1)

    def logged(self, line: str) -> None:
        """Keep the newest line of the log."""
        text = line.encode("utf-8", "replace")[:_LOG_BYTES]
        _LOG.pack_into(self._memory, _LOG_AT, len(text), text)

    def begin(self, job_id: str, fence: int, started: float, expires: float) -> int | None:
        """Note that a job runs; return its place. This is called per job, so it is kept short."""
        free = self._free
        if free is None:
            free = self._free = list(range(PLACES - 1, -1, -1))
        if not free:
            return None  # thousands wait to be settled; it is treated as one that did not begin
        place = free.pop()
        if place >= self._highest:
            self._highest = place + 1
            _NUMBER.pack_into(self._memory, _HIGHEST_AT, self._highest)
        at = _JOBS_AT + place * _PLACE.size
        _PLACE.pack_into(self._memory, at, fence, started, expires, job_id.encode()[:_ID_BYTES])
        return place

    def extend(self, place: int, expires: float) -> None:
        """Change when a job must have ended."""
        at = _JOBS_AT + place * _PLACE.size + _EXPIRES_IN_PLACE
        _INSTANT.pack_into(self._memory, at, expires)

    def ended(self, place: int) -> None:
        """Note that a job's handler has ended, and that it is not settled."""
        self.extend(place, -1.0)

    def settled(self, place: int) -> None:
        """Forget a job."""
        self.extend(place, 0.0)
        if self._free is not None:
            self._free.append(place)

    def _instant(self, at: int) -> float:
        value: float = _INSTANT.unpack_from(self._memory, at)[0]
        return value

    def _number(self, at: int) -> int:
        value: int = _NUMBER.unpack_from(self._memory, at)[0]
        return value
