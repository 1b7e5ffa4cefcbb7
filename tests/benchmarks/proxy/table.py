"""Formats results as Markdown: medians, ratios with their spread, and the evidence. Pure.

"Added" latencies are a target's percentile minus the direct one's of the same round and cell.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean, median

from tests.benchmarks.proxy.columns import ADDED, COLUMNS, LONG, PACED, Column, Metric, Results
from tests.benchmarks.proxy.goals import rows
from tests.benchmarks.proxy.measure import CELLS
from tests.benchmarks.proxy.targets import RIVAL, SIDECAR, TRACED

SATURATED = 0.9
"""Share of a core above which engine or client counts as the limit of a cell."""

BELOW_NOISE_MS = 0.02
"""Added latencies below this are noise; no ratio is made of them."""

RESAMPLES = 10_000

NONE = "-"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(cells: Sequence[str]) -> list[str]:
    return [_row(cells), "|" + "---|" * len(cells)]


def _median(results: Results, metric: Metric, target: str) -> str:
    values = metric.read(results, target).values()
    return format(median(values), metric.form) if values else NONE


def _range(results: Results, metric: Metric, target: str) -> str:
    values = metric.read(results, target).values()
    return f"{min(values):{metric.form}} to {max(values):{metric.form}}" if values else NONE


def ranges(results: Results, columns: Sequence[Column]) -> list[str]:
    """The spread of the medians: the least and the most of all rounds."""
    lines = _head(["", *(c.title for c in columns)])
    for target in results.order:
        if any(s.target == target for s in results.samples):
            shown = [" / ".join(_range(results, m, target) for m in c.metrics) for c in columns]
            lines.append(_row([target, *shown]))
    return lines


def goals(results: Results) -> list[str]:
    """What is to be reached, and what was."""
    lines = _head(["", "of", "median (min to max)", "goal", "reached"])
    return [*lines, *(_row(cells) for cells in rows(results))]


def medians(results: Results, columns: Sequence[Column]) -> list[str]:
    """A row per target, a column per metric or pair of them, then how many answers were errors."""
    lines = _head(["", *(c.title for c in columns), "errors"])
    for target in results.order:
        mine = [s for s in results.samples if s.target == target]
        if not mine:
            why = results.failed.get(target, "not measured").replace("|", "/")
            lines.append(_row([target, f"not measured: {why}", *[""] * len(columns)]))
            continue
        shown = [" / ".join(_median(results, m, target) for m in c.metrics) for c in columns]
        errors = sum(int(s.client["errors"]) for s in mine)
        lines.append(_row([target, *shown, f"{errors:,}"]))
    return lines


def ratio(results: Results, metric: Metric, ours: str, theirs: str) -> str:
    """Median (min to max) over the rounds of ours through theirs, or the values if too small."""
    mine, other = metric.read(results, ours), metric.read(results, theirs)
    rounds = sorted(mine.keys() & other.keys())
    if not rounds:
        return NONE
    floor = BELOW_NOISE_MS if metric.kind == ADDED else 0.0
    if any(mine[n] <= floor or other[n] <= floor for n in rounds):
        a, b = median(mine[n] for n in rounds), median(other[n] for n in rounds)
        return f"{a:{metric.form}} against {b:{metric.form}}"
    found = [mine[n] / other[n] for n in rounds]
    return f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def ratios(results: Results) -> list[str]:
    """Ours through the rival's and traced through untraced, each ratio of one round."""
    pairs = (SIDECAR, RIVAL), (TRACED, SIDECAR)
    lines = _head(["", "better is", *(f"{ours} / {theirs}" for ours, theirs in pairs)])
    for column in COLUMNS + LONG + PACED:
        for m in column.metrics:
            shown = [ratio(results, m, ours, theirs) for ours, theirs in pairs]
            lines.append(_row([m.title, "more" if m.more_is_better else "less", *shown]))
    return lines


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of ratios and its 95 % interval, by bootstrap (fixed seed)."""
    logs = [math.log(value) for value in values]
    chance = random.Random(1)
    means = sorted(fmean(chance.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]
    return math.exp(fmean(logs)), math.exp(low), math.exp(high)


def intervals(results: Results, ours: str, theirs: str) -> list[str]:
    """The main table's metrics as ratios with intervals; added latencies only above the noise."""
    lines = _head(["", "better is", f"{ours} / {theirs}", "95 % interval", "rounds"])
    for column in COLUMNS:
        for m in column.metrics:
            mine, other = m.read(results, ours), m.read(results, theirs)
            floor = BELOW_NOISE_MS if m.kind == ADDED else 0.0
            found = [
                mine[n] / other[n]
                for n in mine.keys() & other.keys()
                if mine[n] > floor and other[n] > floor
            ]
            if len(found) < 2:
                continue
            mean, low, high = interval(found)
            cells = [m.title, "more" if m.more_is_better else "less", f"{mean:.3f}"]
            lines.append(_row([*cells, f"{low:.3f} to {high:.3f}", str(len(found))]))
    return lines


def evidence(results: Results) -> list[str]:
    """Share of one core that target, engine and client used in each cell; ! marks a full one."""
    lines = _head(["% of a core: target / engine / client", *(c.name for c in CELLS)])
    for target in results.order:
        row = [target]
        for cell in CELLS:
            found = list(results.of(target, cell.name).values())
            if not found:
                row.append(NONE)
                continue
            shares = [
                median(s.target_cpu for s in found),
                median(s.engine_cpu for s in found),
                median(s.client_cpu for s in found),
            ]
            full = " !" if max(shares[1:]) > SATURATED else ""
            row.append(" / ".join(f"{share * 100:.0f}" for share in shares) + full)
        lines.append(_row(row))
    return lines


def speed(results: Results) -> str:
    """How much the machine's speed changed and who else used it while the run was on."""
    spins = [s.spin_ms for s in results.samples]
    if not spins:
        return ""
    others = [s.others_cpu * 100 for s in results.samples]
    return (
        f"A fixed loop took {min(spins):.0f} to {max(spins):.0f} ms of CPU during the run; other "
        f"processes used {median(others):.0f} % of a core (median), up to {max(others):.0f} %."
    )
