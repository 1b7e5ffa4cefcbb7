"""Formats figures as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from orch_sidecar.tools.drawing.texts import aligned, percent, rounded
from orch_sidecar.tools.simulate.report import ClassFigures, Figures

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
    ttft, wait = of_class.ttft_ms, of_class.wait_ms
    return [
        str(of_class.arrived),
        str(of_class.served),
        str(sum(of_class.refused.values())),
        *map(rounded, (ttft.p50, ttft.p95, ttft.p99, wait.p95, wait.longest)),
        rounded(of_class.tpot_ms.p95, 1),
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
