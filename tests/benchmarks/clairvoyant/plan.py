"""A schedule of interactive requests, and the front that carries it out."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.tools.simulate.engine import Engine, EngineShape
from orch_sidecar.tools.simulate.fronts import Direct, Outcomes
from orch_sidecar.tools.simulate.traffic import Arrival
from vllm_plugin.contracts.profile import ServiceClass

# Of the guarantee of bulk requests.
WINDOW_S: Final = 60.0
_TOO_LATE: Final = Refusal(Reason.SLO_MISS, "its first token would be late")


@dataclass(frozen=True, slots=True)
class Plan:
    """Which interactive requests are served, in which order, and how many slots bulk ones may take.

    `ranks`: by the number of a request; the lowest of those that have arrived is next, and one
    without a rank is refused. `strict`: none starts before all of a lower rank have. `bulk_most`:
    slots of bulk requests at once, and `ahead_s`: slots are kept free for the interactive requests
    that come within this time; neither holds while bulk requests are below their guaranteed share.
    `in_turn`: a bulk request starts once the engine has read all prompts before it. `hopeful`: a
    request is late only if it would be even if the engine read its prompt first.
    """

    ranks: Mapping[int, float]
    bulk_most: int
    ahead_s: float = 0.0
    in_turn: bool = False
    hopeful: bool = False
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What every plan obeys. `slo_s`: of the first token of an interactive request.
    `bulk_share`: of the slots' time, guaranteed to bulk requests while any wait."""

    shape: EngineShape
    slo_s: float
    bulk_share: float


@dataclass(slots=True)
class _Bulk:
    """The bulk requests, and how much of the slots' time is owed to them, in slot-seconds."""

    guaranteed: float  # slots
    waiting: deque[int] = field(default_factory=deque)
    running: int = 0
    owed_s: float = 0.0
    at: float = 0.0

    def advance(self, now: float) -> None:
        passed, self.at = now - self.at, now
        if self.waiting or self.running:
            owed_s = self.owed_s + passed * (self.guaranteed - self.running)
            # What they had beyond their guarantee is forgotten after its window.
            self.owed_s = max(owed_s, -WINDOW_S * self.guaranteed)

    @property
    def is_owed(self) -> bool:
        return bool(self.waiting) and self.owed_s > 0 and self.running < ceil(self.guaranteed)


class Planned(Direct):
    """Carries out a plan in front of an engine, whose state it sees."""

    def __init__(
        self, plan: Plan, terms: Terms, arrivals: Sequence[Arrival], outcomes: Outcomes
    ) -> None:
        super().__init__(outcomes)
        self._plan, self._terms = plan, terms
        self._arrive_at = sorted(arrivals[number].at for number in plan.ranks)
        self._engine: Engine | None = None
        self._waiting: list[tuple[float, int, Arrival]] = []
        # Of a strict plan: what has yet to start, the next one last.
        ordered = sorted(plan.ranks, key=lambda number: -plan.ranks[number])
        self._coming = ordered if plan.strict else []
        self._bulk = _Bulk(terms.bulk_share * terms.shape.slots)
        self._running = 0

    def arrive(self, number: int, arrival: Arrival, now: float) -> None:
        self._bulk.advance(now)
        if arrival.service_class is ServiceClass.BULK:
            self._bulk.waiting.append(number)
        elif (rank := self._plan.ranks.get(number)) is None:
            self._outcomes.refused(number, _TOO_LATE)
        else:
            heappush(self._waiting, (rank, number, arrival))
        self._dispatch(now)

    def ended(self, number: int, arrival: Arrival, now: float) -> None:
        self._bulk.advance(now)
        self._running -= 1
        self._bulk.running -= arrival.service_class is ServiceClass.BULK
        self._dispatch(now)

    def aborted(self, number: int, now: float) -> None:
        raise AssertionError("a plan reclaims nothing")

    def report(self, engine: Engine, now: float) -> None:
        self._engine = engine
        self._bulk.advance(now)
        self._dispatch(now)

    def next_event(self, now: float) -> float | None:
        return None

    def _dispatch(self, now: float) -> None:
        slots, bulk = self._terms.shape.slots, self._bulk
        while self._running < slots:
            if bulk.is_owed and self._is_its_turn():
                self._start_bulk()
            elif (number := self._next(now)) is not None:
                self._running += 1
                self._outcomes.started(number)
            elif bulk.waiting and self._may_lend(now):
                self._start_bulk()
            else:
                return

    def _may_lend(self, now: float) -> bool:
        plan, at = self._plan, self._arrive_at
        if self._bulk.running >= plan.bulk_most or not self._is_its_turn():
            return False
        coming = bisect_right(at, now + plan.ahead_s) - bisect_right(at, now)
        return self._terms.shape.slots - self._running > coming

    def _is_its_turn(self) -> bool:
        assert self._engine is not None, "the engine reports before the first arrival"
        return not (self._plan.in_turn and self._engine.unread)

    def _start_bulk(self) -> None:
        self._running += 1
        self._bulk.running += 1
        self._outcomes.started(self._bulk.waiting.popleft())

    def _next(self, now: float) -> int | None:
        """Takes the next interactive request that can still be in time; refuses others."""
        while self._waiting:
            _, number, arrival = self._waiting[0]
            if self._plan.strict and self._coming[-1] != number:
                return None
            heappop(self._waiting)
            if self._coming:
                self._coming.pop()
            if self._first_token_s(arrival, now) <= arrival.at + self._terms.slo_s:
                return number
            self._outcomes.refused(number, _TOO_LATE)
        return None

    def _first_token_s(self, arrival: Arrival, now: float) -> float:
        """Estimates when the first token of a request that starts now is there."""
        shape, engine = self._terms.shape, self._engine
        assert engine is not None, "the engine reports before the first arrival"
        unread = arrival.prompt + (0 if self._plan.hopeful else engine.unread)
        chunk = shape.long_prefill_tokens if engine.held else shape.step_tokens
        steps = max(ceil(arrival.prompt / chunk), ceil(unread / shape.step_tokens))
        batch = min(shape.slots, engine.decoding)
        return now + unread / shape.prefill_tokens_per_s + steps * shape.step_ms(batch) / 1000
