# SPDX-License-Identifier: MIT
"""How many worker processes are wanted on this machine, asked of the store again and again."""

from __future__ import annotations

from collections.abc import Mapping

from packhorse.cli.parameters import Bounds
from packhorse.cli.render import note
from packhorse.clock import Clock
from packhorse.errors import ConfigError, StoreError
from packhorse.policies.autoscale import ScaleRule, Scaling, check_scale
from packhorse.scaling import Look, loads, look, next_scaling
from packhorse.stores.protocol import Store

__all__ = ["Scaler", "bounded_rules"]


def bounded_rules(
    queues: tuple[str, ...], declared: Mapping[str, ScaleRule], chosen: Bounds
) -> dict[str, ScaleRule]:
    """When each queue wants more or fewer: its own thresholds, within the bounds given here.

    A queue whose autoscale is switched off has no say.
    """
    rules = {}
    for name in queues:
        own = declared.get(name, ScaleRule(enabled=True))
        if not own.enabled:
            continue
        rules[name] = ScaleRule(
            enabled=True,
            min_workers=chosen[0],
            max_workers=chosen[1],
            scale_up=own.scale_up,
            scale_down=own.scale_down,
        )
        try:
            check_scale(rules[name])
        except ConfigError as error:
            raise ConfigError(f"queue {name!r}: {error}") from None
    return rules


class Scaler:
    """Looks at the store, and says how many workers there should be."""

    def __init__(
        self,
        store: Store,
        rules: Mapping[str, ScaleRule],
        *,
        least: int,
        slots: int,
        clock: Clock,
    ) -> None:
        self._store = store
        self._rules = rules
        self._slots = slots
        self._clock = clock
        self._before: Look | None = None
        self._wish = Scaling(least, clock.now_us())
        self._troubled = False

    def wanted(self) -> int:
        """How many workers should run now; as many as before while the store cannot be asked."""
        try:
            counts = self._store.run(self._store.inspection.counts())
        except StoreError as error:
            if not self._troubled:
                note(f"The store cannot be asked how much there is to do: {error}")
            self._troubled = True
            return self._wish.workers
        self._troubled = False
        now = look(counts, self._rules, self._clock.monotonic())
        asked = loads(self._before, now, slots=self._slots)
        self._before = now
        self._wish = next_scaling(self._rules, asked, self._wish, self._clock.now_us())
        return self._wish.workers
