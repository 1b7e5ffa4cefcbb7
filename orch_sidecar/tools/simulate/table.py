"""Formats figures as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from orch_sidecar.tools.simulate.report import ClassFigures, Figures

_CLASS_HEAD: Final = (
    *("policy", "class", "arrived", "served", "refused", "TTFT p50", "p95", "p99"),
    *("wait p95", "longest", "TPOT p95", "in SLO", "goodput/s", "tokens/s", "slots"),
)
_WHOLE_HEAD: Final = (
    *(
        "policy",
        "tokens/s",
        "occupancy",
        "peak",
        "preemptions",
        "prediction error",
        "bias",
        "in system",
    ),
)


def table(found: Mapping[str, Figures]) -> str:
    """Returns two tables: by policy and class, and by policy. Times in milliseconds."""
    classes = [[*_CLASS_HEAD]]
    for policy, of_policy in found.items():
        for service_class, of_class in of_policy.classes.items():
            if of_class.arrived:
                classes.append([str(policy), service_class.value, *_class_cells(of_class)])
    wholes = [[*_WHOLE_HEAD]]
    wholes += [[str(policy), *_whole_cells(of_policy)] for policy, of_policy in found.items()]
    return f"{_aligned(classes, 2)}\n\n{_aligned(wholes, 1)}"


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
    met = of_class.slo_met
    return [
        str(of_class.arrived),
        str(of_class.served),
        str(sum(of_class.refused.values())),
        *(_number(each) for each in (ttft.p50, ttft.p95, ttft.p99, wait.p95, wait.longest)),
        _number(of_class.tpot_ms.p95, 1),
        "-" if met is None else f"{100 * met:.1f} %",
        f"{of_class.goodput_per_s:.2f}",
        f"{of_class.tokens_per_s:.0f}",
        f"{100 * of_class.slot_share:.1f} %",
    ]


def _whole_cells(whole: Figures) -> list[str]:
    error, bias = whole.prediction_error, whole.prediction_bias
    return [
        f"{whole.tokens_per_s:.0f}",
        f"{100 * whole.occupancy:.1f} %",
        str(whole.peak),
        str(whole.preemptions),
        "-" if error is None else f"{100 * error:.0f} % of {whole.predictions}",
        "-" if bias is None else f"{100 * bias:+.0f} %",
        f"{whole.in_system:.1f}",
    ]


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """Aligns columns: the first `left` of them to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
