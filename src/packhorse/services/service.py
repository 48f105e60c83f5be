# SPDX-License-Identifier: MIT
"""What a service is, and the dumb loop that drives one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from packhorse.clock import Chance

__all__ = ["Driver", "Service", "spread"]

#: How long a service waits after an error, at most: its own interval may be a minute.
_AFTER_ERROR_S_MAX: Final = 5.0


class Service(Protocol):
    """Something to be done again and again."""

    @property
    def name(self) -> str:
        """What it is called in events."""
        ...

    @property
    def interval_s(self) -> float:
        """How long it usually waits."""
        ...

    async def run_once(self) -> float:
        """Do it once, and say after how many seconds to do it again."""
        ...


def spread(interval_s: float, chance: Chance) -> float:
    """The interval give or take a quarter, so that a fleet does not march in step."""
    return interval_s * (0.75 + 0.5 * chance.roll())


@dataclass(frozen=True, slots=True)
class Driver:
    """Runs services until they are cancelled; whatever one raises, it is run again."""

    sleep: Callable[[float], Awaitable[None]]  #: ends early when the worker stops
    stopped: Callable[[], bool]
    failed: Callable[[str, BaseException], None]
    worked: Callable[[str], None]
    chance: Chance

    async def run(self, service: Service) -> None:
        """Drive one service."""
        await self.sleep(service.interval_s * self.chance.roll())
        while not self.stopped():
            try:
                wait_s = await service.run_once()
            except Exception as error:  # noqa: BLE001 - told, and tried again
                self.failed(service.name, error)
                wait_s = spread(min(service.interval_s, _AFTER_ERROR_S_MAX), self.chance)
            else:
                self.worked(service.name)
            await self.sleep(wait_s)
