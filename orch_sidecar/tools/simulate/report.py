"""Computes the figures of a run, by class and in total, and formats them as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from orch_sidecar.tools.drawing.texts import NONE, aligned, percent, rounded
from orch_sidecar.tools.facts.labels.figures import Spread, spread
from orch_sidecar.tools.simulate.run import Course, Record
from vllm_plugin.contracts.profile import ServiceClass

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
    value, above 0 where predictions are too long. `in_system` = `rate_times_time` is Little's law:
    the mean number of requests in queues and engine, and arrivals per second times mean time.
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
    in_system: float
    rate_times_time: float


def figures(course: Course, slo_ms: dict[ServiceClass, float | None]) -> Figures:
    """Returns the figures of a run by the TTFT SLO of each class."""
    of_class: dict[ServiceClass, list[Record]] = {each: [] for each in ServiceClass}
    for record in course.records:
        of_class[record.arrival.service_class].append(record)
    errors = prediction_errors(course.records)
    span = course.ended_at or 1.0
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
        in_system=course.in_system_s / span,
        rate_times_time=sum(record.present_s for record in course.records) / span,
    )


def prediction_errors(records: Sequence[Record]) -> list[float]:
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
    "in system",
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
        f"{whole.in_system:.1f}",
    ]
