"""What an engine of the measured curve makes of traffic when all of its slots are in use.

Pure. By the decode curve alone more slots would always seem worth having: prompts take steps, too,
and every stream waits for them. So the traffic is run through the simulated engine, step by step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median
from typing import Final

from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.full_load import FullLoad, full_load
from orch_sidecar.tools.simulate.traffic import Traffic

_SEED: Final = 0


class FullSlots:
    """`late`: times per token (95th percentile) that were measured, over those simulated."""

    def __init__(self, shape: EngineShape, traffic: Traffic) -> None:
        """`shape`: of the engine; its slots and the size of its KV cache do not matter here."""
        self.late = 1.0
        self._shape = replace(shape, kv_tokens=None)
        self._traffic = traffic
        self._known: dict[int, FullLoad] = {}

    def at(self, slots: int) -> FullLoad:
        """What the engine does with so many slots."""
        if slots not in self._known:
            shape = replace(self._shape, slots=slots)
            self._known[slots] = full_load(shape, self._traffic, _SEED)
        return self._known[slots]

    def tokens_per_s(self, slots: int) -> float:
        return self.at(slots).tokens_per_s

    def tpot_p95_ms(self, slots: int) -> float:
        """Milliseconds per token of requests, 95th percentile; 0 where none has a second token."""
        return self.late * (self.at(slots).tpot_p95_ms or 0.0)

    def measured(self, times: Iterable[tuple[int, float]]) -> None:
        """Sets `late` by measurements: slots in use, and their milliseconds per token."""
        own = [(ms, self.at(slots).tpot_p95_ms) for slots, ms in times]
        ratios = [ms / simulated for ms, simulated in own if simulated]
        self.late = max(1.0, median(ratios)) if ratios else 1.0
