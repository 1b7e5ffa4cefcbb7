"""Placement in virtual time.

Engines that step (`orch_sidecar.tools.simulate`), the sidecar's own admission in
front of each, and requests that are placed by what a sidecar knows. The ways to place them:

    all     the end is predicted at every pool, and the earliest wins
    drawn   two of those that are nearly the best by their standing, as the sidecar does: the
            faster one if a request starts at once at both, else by their predictions
    random  two of all pools
    turns   one pool after the other

Several sidecars learn what the others did only from the engines' reports.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Final

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import (
    AdmissionRequest,
    Decision,
    EngineReport,
    Lease,
    StepTime,
)
from orch_sidecar.api.options import NO_OPTIONS
from orch_sidecar.pools.candidates import Candidates, PoolKind, standing
from orch_sidecar.pools.routing import PlacementRequest, PoolSnapshot, place
from orch_sidecar.tools.simulate.engine import Engine, EngineShape
from orch_sidecar.tools.simulate.engine import Sequence as Sequenced
from vllm_plugin.contracts import profile
from vllm_plugin.contracts.profile import MeasurementType, ServiceClass

WAYS: Final = ("all", "drawn", "random", "turns")
PROMPT, OUTPUT = 300, 120  # tokens in the mean
CLOUD: Final = profile.load("cloud")
assert CLOUD.admission.interactive is not None
# Without SLOs: nothing is refused.
RULES: Final = CLOUD.admission.model_copy(
    update={
        "interactive": CLOUD.admission.interactive.model_copy(
            update={"ttft_p95_ms": None, "tpot_p95_ms": None, "max_wait_s": 1e6}
        )
    }
)
ASKED: Final = PlacementRequest("", 1, None, NO_OPTIONS)


@dataclass(frozen=True, slots=True)
class Traffic:
    """`load`: of what all engines can do; `every_s`: between an engine's reports."""

    shapes: tuple[EngineShape, ...]
    sidecars: int = 1
    load: float = 0.85
    every_s: float = 0.02
    seconds: float = 30.0

    @property
    def per_s(self) -> float:
        """Arrivals per second."""
        capacity = sum(
            shape.slots
            / (OUTPUT * shape.step_ms(shape.slots) / 1000 + PROMPT / shape.prefill_tokens_per_s)
            for shape in self.shapes
        )
        return self.load * capacity


@dataclass(slots=True)
class Request:
    """Times in seconds of virtual time."""

    number: int
    sidecar: int
    pool: int
    arrived_at: float
    sequence: Sequenced


class Sidecar:
    """The admission of every pool, and the choice among them."""

    def __init__(self, traffic: Traffic, way: str, seed: int) -> None:
        self.pools = [AdmissionController(RULES, Random(seed)) for _ in traffic.shapes]
        self._way = way
        self._random = Random(seed)
        self._candidates = Candidates(Random(seed))
        self._kinds = [
            PoolKind("all", MeasurementType.BATCHED_ONLINE, False, None, None, shape.slots, True)
            for shape in traffic.shapes
        ]
        self.changed = set(range(len(self.pools)))
        self._turn = seed

    def choose(self, request: AdmissionRequest, now: float) -> int:
        """Returns the number of the pool for a request."""
        count = len(self.pools)
        if self._way == "turns":
            self._turn += 1
            return self._turn % count
        if self._way == "drawn":
            for pool in self.changed:
                self._update(pool, now)
            self.changed.clear()
            if (at_once := self._candidates.choose_at_once(ASKED)) is not None:
                return int(at_once[0])
            compared = [int(name) for name in self._candidates.draw(ASKED)]
        elif self._way == "random":
            compared = self._random.sample(range(count), 2)
        else:
            compared = list(range(count))
        if len(compared) == 1:
            return compared[0]
        found = place([self._snapshot(pool, request, now) for pool in compared], ASKED)
        assert isinstance(found, tuple), found
        return int(found[0])

    def _update(self, pool: int, now: float) -> None:
        core = self.pools[pool]
        new = standing(
            self._kinds[pool],
            core.service_times.pace_s(),
            core.constraints.free_slots(ServiceClass.INTERACTIVE, now),
            core.queues.depth,
            core.ledger.room,
        )
        self._candidates.update(f"{pool:04}", new)

    def _snapshot(self, pool: int, request: AdmissionRequest, now: float) -> PoolSnapshot:
        core = self.pools[pool]
        forecast = core.forecast(request, now)
        return PoolSnapshot(
            f"{pool:04}",
            "all",
            CLOUD.measurement_type,
            slots_total=core.ledger.slots_total,
            room=core.ledger.room,
            queue_depth=core.queues.depth,
            end_ms=None if forecast is None else forecast.end_ms,
        )


class World:
    """Engines and sidecars, from event to event."""

    def __init__(self, traffic: Traffic, way: str, seed: int) -> None:
        self._traffic = traffic
        self._random = Random(seed)
        self._engines = [Engine(shape, seed + at) for at, shape in enumerate(traffic.shapes)]
        self._stepping = [False] * len(self._engines)
        self._sidecars = [Sidecar(traffic, way, seed + at) for at in range(traffic.sidecars)]
        self._requests: list[Request] = []
        self._events: list[tuple[float, int, str, int]] = []
        self._pushed = 0

    def run(self) -> list[Request]:
        """Runs until every request has ended; returns all."""
        for number, _ in enumerate(self._engines):
            self._report(number, 0.0)
            self._push(self._random.random() * self._traffic.every_s, "report", number)
        self._push(0.0, "arrival", 0)
        while self._events:
            now, _, what, number = heappop(self._events)
            if what == "arrival":
                self._arrive(now)
                if now < self._traffic.seconds:
                    self._push(now + self._random.expovariate(self._traffic.per_s), "arrival", 0)
            elif what == "step":
                self._end_step(number, now)
            else:
                self._report(number, now)
                if now < self._traffic.seconds or any(self._stepping):
                    self._push(now + self._traffic.every_s, "report", number)
        return self._requests

    def _push(self, at: float, what: str, number: int) -> None:
        self._pushed += 1
        heappush(self._events, (at, self._pushed, what, number))

    def _arrive(self, now: float) -> None:
        random, number = self._random, len(self._requests)
        prompt = max(1, int(random.lognormvariate(0, 0.8) * PROMPT / 1.377))
        output = max(2, int(random.expovariate(1 / OUTPUT)))
        sidecar = number % len(self._sidecars)
        placed = self._sidecars[sidecar]
        asked = AdmissionRequest(ServiceClass.INTERACTIVE, 1, prompt, output)  # known lengths
        pool = placed.choose(asked, now)
        request = Request(number, sidecar, pool, now, Sequenced(number, prompt, output))
        self._requests.append(request)
        outcome = placed.pools[pool].arrive(str(number), asked, now)
        placed.changed.add(pool)
        if isinstance(outcome, Lease):
            self._start(request, now)

    def _start(self, request: Request, now: float) -> None:
        engine = self._engines[request.pool]
        engine.add(request.sequence)
        if not self._stepping[request.pool]:
            self._begin_step(request.pool, now)

    def _begin_step(self, number: int, now: float) -> None:
        took = self._engines[number].begin_step(now)
        self._stepping[number] = took is not None
        if took is not None:
            self._push(now + took, "step", number)

    def _end_step(self, number: int, now: float) -> None:
        self._stepping[number] = False
        for sequence in self._engines[number].end_step(now):
            request = self._requests[sequence.order]
            sidecar = self._sidecars[request.sidecar]
            core = sidecar.pools[number]
            sidecar.changed.add(number)
            self._perform(core.release(str(request.number), now, sequence.output), now)
        if not self._stepping[number]:
            self._begin_step(number, now)

    def _report(self, number: int, now: float) -> None:
        engine, shape = self._engines[number], self._engines[number].shape
        fit = StepTime(shape.t0_ms, shape.c_ms, shape.alpha, shape.slots)
        for sidecar in self._sidecars:
            core = sidecar.pools[number]
            sidecar.changed.add(number)
            report = EngineReport(
                epoch="simulated",
                slots_total=shape.slots,
                foreign=max(0, engine.held - core.ledger.leased),
                prefilling=engine.prefilling,
                waiting=engine.waiting,
                step_time=fit,
                batch_seen=shape.slots,
                prefill_tokens_per_s=shape.prefill_tokens_per_s,
                chunk_tokens=shape.long_prefill_tokens,
                step_tokens=shape.step_tokens,
            )
            self._perform(core.engine_reports(report, now), now)

    def _perform(self, decisions: Sequence[Decision], now: float) -> None:
        for decision in decisions:
            assert isinstance(decision.outcome, Lease), decision
            self._start(self._requests[int(decision.ticket)], now)


@dataclass(frozen=True, slots=True)
class Quality:
    """Seconds, of the requests that came after the first quarter."""

    first_token_p50: float
    first_token_p95: float
    end_mean: float
    end_p95: float


def quality(traffic: Traffic, way: str, seed: int) -> Quality:
    requests = World(traffic, way, seed).run()
    first, whole = [], []
    for each in requests[len(requests) // 4 :]:
        assert each.sequence.first_token_at is not None
        assert each.sequence.ended_at is not None
        first.append(each.sequence.first_token_at - each.arrived_at)
        whole.append(each.sequence.ended_at - each.arrived_at)
    of_first, of_all = statistics.quantiles(first, n=20), statistics.quantiles(whole, n=20)
    return Quality(of_first[9], of_first[18], statistics.mean(whole), of_all[18])
