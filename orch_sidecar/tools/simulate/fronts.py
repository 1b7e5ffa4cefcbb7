"""The admission in front of the engine, or none.

Admission gets the same information as in a sidecar: reports some milliseconds apart, a step time,
and the ends of its own requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import (
    AdmissionRequest,
    Decision,
    EngineReport,
    Lease,
    Queued,
    StepTime,
)
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.tools.simulate.engine import Engine, EngineShape
from orch_sidecar.tools.simulate.traffic import Arrival
from vllm_plugin.contracts.kv_cache import KvCache, KvGroup
from vllm_plugin.contracts.profile import (
    BULK,
    INTERACTIVE,
    AdmissionRules,
    BatchBounds,
    ClassRules,
    FullQueue,
)

# The shortest interval between an engine's reports.
REPORT_S: Final = 0.02
# Steps until a new engine knows its step time and prefill rate, and their relative error.
MEASURED_STEPS: Final = 100
MEASURED_ERROR: Final = 0.05
# The interval at which the plugin fits the step time and compares the traffic with it.
FIT_S: Final = 1.0


class Outcomes(Protocol):
    """Receives a front's decisions on requests, by their numbers."""

    def started(self, number: int) -> None:
        """The request is dispatched to the engine now."""

    def refused(self, number: int, refusal: Refusal) -> None:
        """The request is rejected."""

    def reclaimed(self, number: int) -> None:
        """The request is to be aborted in the engine; `aborted` follows."""

    def queued(self, number: int, predicted_start_ms: int | None) -> None:
        """The request is queued; its predicted start is in milliseconds from now."""


class Direct:
    """No admission: each request is dispatched at once, and queued in the engine."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes

    def arrive(self, number: int, arrival: Arrival, now: float) -> None:
        self._outcomes.started(number)

    def ended(self, number: int, arrival: Arrival, now: float) -> None:
        """The engine has ended a request."""

    def aborted(self, number: int, now: float) -> None:
        """The engine has aborted a request that was reclaimed."""

    def report(self, engine: Engine, now: float) -> None:
        """The engine reports its state."""

    def tick(self, now: float) -> None:
        """The time of `next_event` has come."""

    def next_event(self, now: float) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class Sight:
    """The information that admission gets.

    Without `classes` every request is bulk, as under rules without interactive requests; without
    `measured` the step time stays unknown; without `cache` the KV cache is not reported.
    `warm`: the engine has served such traffic before, and knows its step time from the start.
    """

    classes: bool = True
    measured: bool = True
    cache: bool = True
    warm: bool = True


class Admitted(Direct):
    """The admission of a sidecar in front of the engine."""

    def __init__(self, rules: AdmissionRules, sight: Sight, outcomes: Outcomes, seed: int) -> None:
        super().__init__(outcomes)
        self._controller = AdmissionController(rules, Random(seed))  # noqa: S311 (spreads retries)
        self._sight = sight
        self._classes = sight.classes and rules.interactive is not None
        self._step_time: StepTime | None = None
        self._fitted_at = 0.0
        # Of all but interactive requests: the request, when it came first, how often it was cut.
        self._bulk: dict[int, tuple[AdmissionRequest, float, int]] = {}
        # Clients of bulk requests see nothing before their end.
        self._controller.reclaim.is_unseen = lambda lease: True

    def arrive(self, number: int, arrival: Arrival, now: float) -> None:
        service_class = arrival.service_class if self._classes else BULK
        ask = AdmissionRequest(
            service_class, 1, arrival.prompt, arrival.max_tokens, identity=number + 1
        )
        if service_class is not INTERACTIVE:
            self._bulk[number] = ask, now, 0
        outcome = self._controller.arrive(self._ticket(number), ask, now)
        for lease in self._controller.reclaim.take():
            self._outcomes.reclaimed(_number(lease))
        displaced = self._controller.take_displaced()
        if isinstance(outcome, Refusal) and outcome.retry_after_ms is not None:
            demand = self._controller.constraints.reserve.demand(service_class)
            demand.refused(ask, now + outcome.retry_after_ms / 1000, now)
        if isinstance(outcome, Queued):
            self._outcomes.queued(number, outcome.predicted_start_ms)
        else:
            self._deliver(number, outcome)
        self._perform(displaced, now)

    def ended(self, number: int, arrival: Arrival, now: float) -> None:
        ticket = self._ticket(number)
        self._bulk.pop(number, None)
        self._perform(self._controller.release(ticket, now, arrival.output), now)

    def aborted(self, number: int, now: float) -> None:
        ticket, (request, since, times) = self._ticket(number), self._bulk[number]
        self._bulk[number] = request, since, times + 1
        outcome = self._controller.requeue(self._ticket(number), request, since, now)
        if isinstance(outcome, Refusal):
            self._outcomes.refused(number, outcome)
        self._perform(self._controller.release(ticket, now), now)

    def _ticket(self, number: int) -> str:
        times = self._bulk[number][2] if number in self._bulk else 0
        return f"{number}.{times}"

    def report(self, engine: Engine, now: float) -> None:
        shape, sight = engine.shape, self._sight
        known = sight.measured and (sight.warm or engine.steps >= MEASURED_STEPS)
        off = 1 + MEASURED_ERROR
        new = sight.measured and not sight.warm
        if known and (self._step_time is None or now - self._fitted_at >= FIT_S):
            self._fitted_at = now
            traffic = engine.traffic(now)
            self._step_time = StepTime(
                shape.t0_ms,
                shape.c_ms * off,
                shape.alpha,
                shape.slots if sight.warm else max(1, engine.largest),
                traffic=traffic.factor,
                prompt_share=traffic.prompt_share,
            )
        report = EngineReport(
            epoch="simulated",
            slots_total=shape.slots,
            kv=_kv_cache(shape) if sight.cache else None,
            kv_usage=engine.kv_usage,
            prefilling=engine.prefilling,
            waiting=engine.waiting,
            scheduled=engine.held,
            preemptions_total=engine.preemptions if sight.cache else 0,
            batch_seen=engine.token_times.batch_seen if new else shape.slots,
            step_time=self._step_time,
            prefill_tokens_per_s=shape.prefill_tokens_per_s / off if known else None,
            chunk_tokens=min(shape.long_prefill_tokens, shape.step_tokens),
            step_tokens=shape.step_tokens,
        )
        self._perform(self._controller.engine_reports(report, now), now)

    def tick(self, now: float) -> None:
        self._perform(self._controller.dispatch(now), now)

    def next_event(self, now: float) -> float | None:
        return self._controller.next_event(now)

    def _perform(self, decisions: Iterable[Decision], now: float) -> None:
        for decision in decisions:
            self._deliver(_number(decision.ticket), decision.outcome)
        if self._controller.ledger.idle:
            for lease in self._controller.reclaim.cut_idle(now):
                self._outcomes.reclaimed(_number(lease))

    def _deliver(self, number: int, outcome: Lease | Refusal) -> None:
        if isinstance(outcome, Lease):
            self._outcomes.started(number)
        else:
            self._outcomes.refused(number, outcome)


def _number(ticket: str) -> int:
    return int(ticket.partition(".")[0])


def _kv_cache(shape: EngineShape) -> KvCache | None:
    if shape.kv_tokens is None:
        return None
    return KvCache(shape.kv_tokens // shape.block_tokens, (KvGroup(shape.block_tokens),))


def plain_rules(rules: AdmissionRules) -> AdmissionRules:
    """Returns rules with one FIFO queue, of the total capacity and the longest wait of `rules`."""
    both = [rules.bulk] if rules.interactive is None else [rules.bulk, rules.interactive]
    queue = ClassRules(
        ttft_p95_ms=None,
        tpot_p95_ms=None,
        queue_capacity=sum(each.queue_capacity for each in both),
        max_wait_s=max(each.max_wait_s for each in both),
        batch=BatchBounds(least=1),
    )
    return AdmissionRules(
        full_queue=FullQueue.REJECT,
        bulk_share=0.0,
        coalescing=False,
        interactive=None,
        bulk=queue,
    )


MakeFront = Callable[[Outcomes], Direct]
