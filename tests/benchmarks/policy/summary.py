"""Computes figures from answers. Pure.

A request without a first token when the run was cut off counts with the time until then, and a
percentile that falls on such a request is marked `>`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tests.benchmarks.policy.call import PREDICTED_START, Answer
from vllm_plugin.contracts.profile import ServiceClass

# Shorter waits are not worth a prediction: their relative errors say nothing.
PREDICTED_FROM_MS: Final = 100.0


@dataclass(frozen=True, slots=True)
class Quantile:
    """Milliseconds; `at_least`: it was longer, by how much is not known."""

    ms: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'>' if self.at_least else ''}{self.ms:.0f}"


def quantile(values: Iterable[tuple[float, bool]], share: float) -> Quantile | None:
    """Of (milliseconds, cut off) by nearest rank; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Quantile(*ordered[max(0, math.ceil(share * len(ordered)) - 1)])


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """One class under one policy. Refused ones have no TTFT; cut ones have it at least.

    `within_slo`: share of the arrived whose first token came in time. `goodput`: those per
    second whose first token came in time (any time without an SLO) and that did not fail;
    without an SLO they must be complete. `longest_wait_s`: to the slot where the sidecar tells
    it, else to the first token, the refusal or the end of the run.
    """

    arrived: int
    answered: int
    complete: int
    refused: dict[str, int]
    cut: int
    ttft_p50: Quantile | None
    ttft_p95: Quantile | None
    within_slo: float | None
    goodput: float
    longest_wait_s: float
    predictions: int
    prediction_error: float | None


def counted(answers: Iterable[Answer], from_s: float, until_s: float) -> list[Answer]:
    """Those that were due in the window."""
    return [answer for answer in answers if from_s <= answer.request.at_s < until_s]


def ttft_ms(answer: Answer) -> tuple[float, bool] | None:
    """From the scheduled arrival, and whether it was cut off; None: refused or failed."""
    if answer.first_s is not None:
        return 1000 * (answer.first_s - answer.request.at_s), False
    if answer.cut_s is None:
        return None
    return 1000 * (answer.cut_s - answer.request.at_s), True


def wait_s(answer: Answer) -> float:
    """To the slot where the sidecar tells it, else to whatever came first, without the time by
    which the generator was late."""
    queue_ms = answer.queue_ms
    if queue_ms is not None and answer.status == 200:
        return queue_ms / 1000
    known = (answer.first_s, answer.last_s, answer.cut_s)
    return next((at for at in known if at is not None), 0.0) - (
        answer.request.at_s if answer.sent_s is None else answer.sent_s
    )


def prediction_errors(answers: Iterable[Answer]) -> list[float]:
    """|predicted - actual| / actual of those that had to wait."""
    errors = []
    for answer in answers:
        predicted, actual = answer.number(PREDICTED_START), answer.queue_ms
        if answer.status != 200 or predicted is None or actual is None:
            continue
        if actual > PREDICTED_FROM_MS:
            errors.append(abs(predicted - actual) / actual)
    return errors


def summarize(answers: Sequence[Answer], seconds: float, slo_ms: float | None) -> ClassSummary:
    """Of one class; `seconds`: the window."""
    known = [ttft_ms(answer) for answer in answers]
    times = [each for each in known if each is not None]
    in_time = [
        answer
        for answer, each in zip(answers, known, strict=True)
        if each is not None and not each[1] and (slo_ms is None or each[0] <= slo_ms)
    ]
    good = [
        answer
        for answer in in_time
        if answer.code is None and (slo_ms is not None or answer.complete)
    ]
    errors = prediction_errors(answers)
    return ClassSummary(
        arrived=len(answers),
        answered=sum(answer.first_s is not None for answer in answers),
        complete=sum(answer.complete for answer in answers),
        refused=dict(Counter(answer.code for answer in answers if answer.code is not None)),
        cut=sum(each is not None and each[1] for each in known),
        ttft_p50=quantile(times, 0.50),
        ttft_p95=quantile(times, 0.95),
        within_slo=None if slo_ms is None or not answers else len(in_time) / len(answers),
        goodput=len(good) / seconds,
        longest_wait_s=max((wait_s(answer) for answer in answers), default=0.0),
        predictions=len(errors),
        prediction_error=median(errors) if errors else None,
    )


def of_class(answers: Iterable[Answer], service_class: ServiceClass) -> list[Answer]:
    return [answer for answer in answers if answer.request.service_class is service_class]


def lateness_ms(answers: Iterable[Answer]) -> tuple[float, float]:
    """How late the generator itself was: median and worst, to the request's first byte sent."""
    late = [1000 * (a.sent_s - a.request.at_s) for a in answers if a.sent_s is not None]
    return (median(late), max(late)) if late else (0.0, 0.0)
