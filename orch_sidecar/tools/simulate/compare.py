"""Compares policies on the same arrivals: the figures of each, by class and in total, as text.

Capacity and SLO are measured in the same model: capacity is the engine's throughput of the same
mix of requests while its queue is never empty; the SLO of interactive requests is a multiple of
their p95 TTFT alone at a low rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from math import ceil
from statistics import median
from typing import Final

from orch_sidecar.tools.drawing.texts import NONE, aligned, percent, rounded
from orch_sidecar.tools.facts.labels.figures import Spread, percentile, spread
from orch_sidecar.tools.simulate.engine import Engine, EngineShape, Sequence
from orch_sidecar.tools.simulate.fronts import (
    Admitted,
    Direct,
    Outcomes,
    Sight,
    plain_rules,
)
from orch_sidecar.tools.simulate.run import Course, Record, Run
from orch_sidecar.tools.simulate.traffic import Arrival, BulkClients, Traffic
from vllm_plugin.contracts.profile import AdmissionRules, ServiceClass

# A shorter wait is a step or two: its relative error is meaningless.
LEAST_WAIT_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One class; None where there is none. `goodput_per_s`: requests that ended during the
    arrivals, with their first token within the SLO if there is one. `slo_met`: the share of served
    requests that met it. `slot_share`: of the slots' time during the arrivals. `prediction_error`,
    `prediction_bias`: as of the run."""

    arrived: int
    served: int
    refused: dict[str, int]
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    wait_ms: Spread | None
    goodput_per_s: float
    tokens_per_s: float
    slo_met: float | None
    slot_share: float
    prediction_error: float | None
    prediction_bias: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run.

    `tokens_per_s` (generated) and `occupancy` (share of busy slots): during the arrivals.
    `prediction_error`: median of |predicted - waited| / waited over `predictions` requests that
    got a prediction and waited more than 100 ms; `prediction_bias`: the same without the absolute
    value, above 0 where predictions are too long.
    """

    classes: dict[ServiceClass, ClassFigures]
    seconds: float
    tokens_per_s: float
    occupancy: float
    peak: int
    preemptions: int
    prediction_error: float | None
    prediction_bias: float | None
    predictions: int


def figures(course: Course, slo_ms: dict[ServiceClass, float | None]) -> Figures:
    """Returns the figures of a run by the TTFT SLO of each class."""
    of_class: dict[ServiceClass, list[Record]] = {each: [] for each in ServiceClass}
    for record in course.records:
        of_class[record.arrival.service_class].append(record)
    errors = prediction_errors(course.records)
    return Figures(
        classes={
            service_class: _of_class(records, course, slo_ms.get(service_class))
            for service_class, records in of_class.items()
        },
        seconds=course.seconds,
        tokens_per_s=course.tokens / course.seconds,
        occupancy=course.busy_s / (course.seconds * course.shape.slots),
        peak=course.peak,
        preemptions=course.preemptions,
        prediction_error=median(map(abs, errors)) if errors else None,
        prediction_bias=median(errors) if errors else None,
        predictions=len(errors),
    )


def prediction_errors(records: Many[Record]) -> list[float]:
    """Returns the relative errors of the predicted starts of requests that waited long enough,
    with their sign."""
    errors = []
    for record in records:
        if record.predicted_s is None or record.started_at is None or record.tries > 1:
            continue
        waited = record.started_at - record.arrival.at
        if waited > LEAST_WAIT_S:
            errors.append((record.predicted_s - waited) / waited)
    return errors


def _of_class(records: list[Record], course: Course, slo_ms: float | None) -> ClassFigures:
    seconds, bounds = course.seconds, {} if slo_ms is None else {"ttft": slo_ms}
    served = [(record, done) for record in records if (done := record.completed) is not None]
    kept = [done for _, done in served if done.meets(bounds)]
    refused = Counter(str(record.refused) for record in records if record.refused is not None)
    tokens = sum(done.output_tokens for _, done in served if done.ended_s <= seconds)
    errors = prediction_errors(records)
    slots_s = sum(_slot_s(record, done.ended_s, seconds) for record, done in served)
    return ClassFigures(
        arrived=len(records),
        served=len(served),
        refused=dict(sorted(refused.items())),
        ttft_ms=_spread_ms(done.ttft_s for _, done in served),
        tpot_ms=_spread_ms(done.tpot_s for _, done in served),
        wait_ms=_spread_ms(_began_s(record) - record.arrival.at for record, _ in served),
        goodput_per_s=sum(done.ended_s <= seconds for done in kept) / seconds,
        tokens_per_s=tokens / seconds,
        slo_met=None if slo_ms is None or not served else len(kept) / len(served),
        slot_share=slots_s / (seconds * course.shape.slots),
        prediction_error=median(map(abs, errors)) if errors else None,
        prediction_bias=median(errors) if errors else None,
    )


def _spread_ms(values_s: Iterable[float | None]) -> Spread | None:
    return spread([1000 * each for each in values_s if each is not None])


def _began_s(record: Record) -> float:
    assert record.sequence.began_at is not None
    return record.sequence.began_at


def _slot_s(record: Record, ended_s: float, until: float) -> float:
    """Returns the time in a slot, as far as it is before `until`."""
    return record.lost_s + max(0.0, min(ended_s, until) - _began_s(record))


_CLASS_HEAD: Final = (
    "policy", "class", "arrived", "served", "refused", "TTFT p50", "p95", "p99",
    "wait p95", "longest", "TPOT p95", "in SLO", "goodput/s", "tokens/s", "slots",
)  # fmt: skip
_WHOLE_HEAD: Final = (
    "policy", "tokens/s", "occupancy", "peak", "preemptions", "prediction error", "bias",
)  # fmt: skip


def table(found: Mapping[str, Figures]) -> str:
    """Returns two tables: by policy and class, and by policy. Times in milliseconds."""
    classes = [
        [str(policy), service_class.value, *_class_cells(of_class)]
        for policy, of_policy in found.items()
        for service_class, of_class in of_policy.classes.items()
        if of_class.arrived
    ]
    wholes = [[str(policy), *_whole_cells(of_policy)] for policy, of_policy in found.items()]
    return "\n".join([*aligned(_CLASS_HEAD, classes, texts=2), "", *aligned(_WHOLE_HEAD, wholes)])


def refusals(found: Mapping[str, Figures]) -> str:
    """Returns the reasons of rejections, a line for each policy and class with any."""
    lines = []
    for policy, of_policy in found.items():
        for service_class, of_class in of_policy.classes.items():
            if of_class.refused:
                reasons = ", ".join(f"{count} {why}" for why, count in of_class.refused.items())
                lines.append(f"{policy} rejected {service_class} requests: {reasons}")
    return "\n".join(lines)


def _class_cells(of_class: ClassFigures) -> list[str]:

    def at(found: Spread | None, name: str, digits: int = 0) -> str:
        return NONE if found is None else rounded(getattr(found, name), digits)

    return [
        str(of_class.arrived),
        str(of_class.served),
        str(sum(of_class.refused.values())),
        *(at(of_class.ttft_ms, name) for name in ("p50", "p95", "p99")),
        *(at(of_class.wait_ms, name) for name in ("p95", "most")),
        at(of_class.tpot_ms, "p95", 1),
        percent(of_class.slo_met),
        f"{of_class.goodput_per_s:.2f}",
        f"{of_class.tokens_per_s:.0f}",
        percent(of_class.slot_share),
    ]


def _whole_cells(whole: Figures) -> list[str]:
    error = whole.prediction_error
    return [
        f"{whole.tokens_per_s:.0f}",
        percent(whole.occupancy),
        str(whole.peak),
        str(whole.preemptions),
        percent(error, 0) + ("" if error is None else f" of {whole.predictions}"),
        percent(whole.prediction_bias, 0, sign=True),
    ]


_PER_SLOT: Final = 30  # requests: the first ones, which all start at once, are few of them


@dataclass(frozen=True, slots=True)
class FullLoad:
    """Requests and generated tokens per second, and the 95th percentile of requests' milliseconds
    per token, with the prompts that are read meanwhile; None: none has a second token."""

    requests_per_s: float
    tokens_per_s: float
    tpot_p95_ms: float | None


def full_load(shape: EngineShape, traffic: Traffic, seed: int) -> FullLoad:
    """Returns what the engine makes of this traffic, in order of arrival."""
    engine = Engine(replace(shape, by_priority=False), seed)
    arrivals = traffic.at_once(_PER_SLOT * shape.slots, seed)
    sequences = [Sequence(at, each.prompt, each.output) for at, each in enumerate(arrivals)]
    for sequence in sequences:
        engine.add(sequence)
    now, tpot_s = 0.0, list[float]()
    while engine.waiting:
        took = engine.begin_step(now)
        assert took is not None, "a sequence is waiting"
        now += took
        for ended in engine.end_step(now):
            if ended.output > 1 and ended.first_token_at is not None:
                tpot_s.append((now - ended.first_token_at) / (ended.output - 1))
    tokens_each = sum(each.output for each in arrivals) / len(arrivals)
    tokens_per_s = engine.tokens / now
    p95_s = percentile(tpot_s, 95)
    p95_ms = None if p95_s is None else 1000 * p95_s
    return FullLoad(tokens_per_s / tokens_each, tokens_per_s, p95_ms)


# Requests of the unloaded run, enough for a p95.
_ALONE: Final = 400
# As a share of the capacity of a single stream, so that requests hardly ever queue.
_LOW_LOAD: Final = 0.05


class Policy(StrEnum):
    """The admission in front of the engine."""

    POLICY = "policy"  # by the rules
    FIFO = "fifo"  # in order of arrival, up to the slots
    DIRECT = "direct"  # none, the engine schedules in order of arrival
    PRIORITY = "priority"  # none, the engine schedules interactive requests first


@dataclass(frozen=True, slots=True)
class Scenario:
    """Traffic for one engine. `rate` in requests per second, without those of the `clients`."""

    shape: EngineShape
    workload: Traffic
    rate: float
    seconds: float
    seed: int
    clients: BulkClients | None = None

    def arrivals(self) -> list[Arrival]:
        return self.workload.arrivals(self.rate, self.seconds, self.seed)


def with_slo(rules: AdmissionRules, slo_ms: Mapping[str, float]) -> AdmissionRules:
    """Returns the rules with another SLO of interactive requests, if they have any. `slo_ms`: by
    the names of the times, `ttft` and `tpot`."""
    if rules.interactive is None:
        return rules
    bounds = {f"{time}_p95_ms": bound for time, bound in slo_ms.items()}
    interactive = rules.interactive.model_copy(update=bounds)
    return rules.model_copy(update={"interactive": interactive})


def course_of(
    policy: Policy,
    scenario: Scenario,
    rules: AdmissionRules,
    *,
    sight: Sight | None = None,
    passed: Callable[[float], None] | None = None,
) -> Course:
    """Runs one policy. `sight`: the information that its admission gets, by default all. `passed`:
    gets the seconds of virtual time that are over, now and then."""

    def front(outcomes: Outcomes) -> Direct:
        if policy is Policy.POLICY:
            return Admitted(rules, sight or Sight(), outcomes, scenario.seed)
        if policy is Policy.FIFO:
            plain = Sight(classes=False, measured=False, cache=False)
            return Admitted(plain_rules(rules), plain, outcomes, scenario.seed)
        return Direct(outcomes)

    by_priority = policy in (Policy.POLICY, Policy.PRIORITY)
    run = Run(
        replace(scenario.shape, by_priority=by_priority),
        scenario.arrivals(),
        scenario.seconds,
        front,
        scenario.seed,
        filter(None, [scenario.clients]),
        passed,
    )
    return run.to_the_end()


def compare(
    scenario: Scenario,
    rules: AdmissionRules,
    policies: Many[Policy],
    passed: Callable[[int, float], None] = lambda number, seconds: None,
) -> dict[str, Figures]:
    """Returns the figures of each policy by the SLOs of the rules. `passed`: gets the number of the
    policy, and the seconds that are over, now and then."""
    slo_ms = {each: rules.of(each).ttft_p95_ms for each in ServiceClass}
    return {
        policy: figures(course_of(policy, scenario, rules, passed=partial(passed, number)), slo_ms)
        for number, policy in enumerate(policies)
    }


def capacity(shape: EngineShape, workload: Traffic, seed: int) -> float:
    """Returns the engine's throughput of this mix while its queue is never empty, requests/s."""
    return full_load(shape, workload, seed).requests_per_s


def unloaded_ttft_p95_ms(shape: EngineShape, workload: Traffic, seed: int) -> float:
    """Returns the p95 TTFT of interactive requests at a low load."""
    alone = workload.alone(ServiceClass.INTERACTIVE)
    one_s = alone.prompt / shape.prefill_tokens_per_s + alone.output * shape.step_ms(1) / 1000
    rate = _LOW_LOAD / one_s
    arrivals = alone.arrivals(rate, ceil(_ALONE / rate), seed)
    course = Run(shape, arrivals, ceil(_ALONE / rate), Direct, seed).to_the_end()
    done = (record.completed for record in course.records)
    p95_s = percentile([each.ttft_s for each in done if each and each.ttft_s is not None], 95)
    assert p95_s is not None, "all requests have ended"
    return 1000 * p95_s
