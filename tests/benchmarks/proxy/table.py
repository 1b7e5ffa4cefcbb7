"""Results in, Markdown out: medians, ratios with their spread, and the evidence. Pure.

"Added" latencies are a target's percentile minus the direct one's of the same round and cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.benchmarks.proxy.measure import CELLS, Sample
from tests.benchmarks.proxy.targets import DIRECT, RIVAL, SIDECAR, TRACED

SATURATED = 0.9
"""Share of a core above which engine or client is said to limit a cell."""

BELOW_NOISE_MS = 0.02
"""Added latencies below this are noise; no ratio is made of them."""


@dataclass(frozen=True, slots=True)
class Results:
    """All samples of a run, and the targets that gave none, with the reason."""

    order: Sequence[str]
    samples: Sequence[Sample]
    failed: dict[str, str] = field(default_factory=dict)

    def of(self, target: str, cell: str) -> dict[int, Sample]:
        """Samples by round."""
        return {s.round: s for s in self.samples if s.target == target and s.cell == cell}


Reading = Callable[[Results, str], dict[int, float]]
"""A metric of a target by round."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A column: its title, how it is read and printed, and whether more is better."""

    title: str
    read: Reading
    form: str
    more_is_better: bool = False
    added_ms: bool = False


def _client(cell: str, key: str) -> Reading:
    return lambda r, t: {n: float(s.client[key]) for n, s in r.of(t, cell).items()}


def _latency(cell: str, of: str, p: str) -> Reading:
    def read(r: Results, t: str) -> dict[int, float]:
        return {n: s.client[of][p] for n, s in r.of(t, cell).items() if p in s.client[of]}

    return read


def _added(cell: str, of: str, p: str) -> Reading:
    def read(r: Results, t: str) -> dict[int, float]:
        base, mine = _latency(cell, of, p)(r, DIRECT), _latency(cell, of, p)(r, t)
        return {} if t == DIRECT else {n: mine[n] - base[n] for n in mine if n in base}

    return read


def _cpu_per_million(cell: str) -> Reading:
    def read(r: Results, t: str) -> dict[int, float]:
        found = r.of(t, cell).items()
        return {
            n: s.target_cpu_s / s.client["chunks"] * 1e6
            for n, s in found
            if s.client["chunks"] and t != DIRECT
        }

    return read


def _memory(r: Results, t: str) -> dict[int, float]:
    """The largest of each round's cells."""
    rounds = {s.round for s in r.samples if s.target == t} if t != DIRECT else set()
    return {n: max(s.rss_mb for s in r.samples if (s.target, s.round) == (t, n)) for n in rounds}


def _errors(r: Results, t: str) -> int:
    return sum(int(s.client["errors"]) for s in r.samples if s.target == t)


def _pair(cell: str, title: str, of: str, added: bool = True) -> list[Metric]:
    read = _added if added else _latency
    sign = "+" if added else ""
    return [
        Metric(f"{title} {p}, ms", read(cell, of, p), sign + ".2f", added_ms=added)
        for p in ("p50", "p99")
    ]


MAIN = [
    Metric("requests/s", _client("requests", "requests_per_s"), ",.0f", more_is_better=True),
    Metric("chunks/s", _client("chunks", "chunks_per_s"), ",.0f", more_is_better=True),
    *_pair("burst", "added TTFT, burst,", "ttft_ms"),
    *_pair("stagger", "added TTFT, staggered,", "ttft_ms"),
    Metric("CPU s per M chunks", _cpu_per_million("chunks"), ".1f"),
    Metric("the same at 20 ms", _cpu_per_million("stagger"), ".1f"),
    Metric("memory, MB", _memory, ".0f"),
]
PACED = [
    m
    for cell in ("burst", "stagger")
    for m in (
        *_pair(cell, f"{cell}: added ITL", "itl_ms"),
        *_pair(cell, f"{cell}: one-way", "oneway_ms", added=False),
    )
]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(cells: Sequence[str]) -> list[str]:
    return [_row(cells), "|" + "---|" * len(cells)]


def medians(results: Results, metrics: Sequence[Metric]) -> list[str]:
    """A row per target, a column per metric, then how many answers were errors."""
    lines = _head(["", *(m.title for m in metrics), "errors"])
    for target in results.order:
        if not any(s.target == target for s in results.samples):
            why = results.failed.get(target, "not measured")
            lines.append(_row([target, f"not measured: {why}", *[""] * len(metrics)]))
            continue
        values = [list(m.read(results, target).values()) for m in metrics]
        shown = [
            format(median(v), m.form) if v else "–" for m, v in zip(metrics, values, strict=True)
        ]
        lines.append(_row([target, *shown, str(_errors(results, target))]))
    return lines


def ratio(results: Results, metric: Metric, ours: str, theirs: str) -> str:
    """Median (min to max) over the rounds of ours through theirs, or the values if too small."""
    mine, other = metric.read(results, ours), metric.read(results, theirs)
    rounds = sorted(mine.keys() & other.keys())
    if not rounds:
        return "–"
    floor = BELOW_NOISE_MS if metric.added_ms else 0.0
    if any(mine[n] <= floor or other[n] <= floor for n in rounds):
        a, b = median(mine[n] for n in rounds), median(other[n] for n in rounds)
        return f"{a:{metric.form}} against {b:{metric.form}}"
    found = [mine[n] / other[n] for n in rounds]
    return f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def ratios(results: Results, theirs: str = RIVAL) -> list[str]:
    """Our rows through the rival's, metric by metric."""
    lines = _head(["", "better is", f"{SIDECAR} / {theirs}", f"{TRACED} / {theirs}"])
    for m in MAIN + PACED:
        shown = [ratio(results, m, ours, theirs) for ours in (SIDECAR, TRACED)]
        lines.append(_row([m.title, "more" if m.more_is_better else "less", *shown]))
    return lines


def evidence(results: Results) -> list[str]:
    """Share of one core that target, engine and client used in each cell; ! marks a full one."""
    lines = _head(["% of a core: target / engine / client", *(c.name for c in CELLS)])
    for target in results.order:
        row = [target]
        for cell in CELLS:
            found = list(results.of(target, cell.name).values())
            if not found:
                row.append("–")
                continue
            shares = [
                median(s.target_cpu for s in found),
                median(s.engine_cpu for s in found),
                median(s.client_cpu for s in found),
            ]
            full = "!" if max(shares[1:]) > SATURATED else ""
            row.append(" / ".join(f"{share:.0%}".rstrip("%") for share in shares) + full)
        lines.append(_row(row))
    return lines
