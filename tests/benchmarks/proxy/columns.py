"""The metrics of the tables, and how each is computed from a run's samples. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.proxy.measure import Sample
from tests.benchmarks.proxy.targets import DIRECT


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

PLAIN, ADDED = "plain", "added"


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure: its title, how it is read and printed, and whether more is better."""

    title: str
    read: Reading
    form: str
    more_is_better: bool = False
    kind: str = PLAIN


@dataclass(frozen=True, slots=True)
class Column:
    """One column: a metric, or two percentiles side by side."""

    title: str
    metrics: tuple[Metric, ...]


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


def _cpu_per_million(cell: str, key: str) -> Reading:
    def read(r: Results, t: str) -> dict[int, float]:
        found = r.of(t, cell).items() if t != DIRECT else []
        return {n: s.target_cpu_s / s.client[key] * 1e6 for n, s in found if s.client[key]}

    return read


def _memory(r: Results, t: str) -> dict[int, float]:
    """The largest of each round's cells."""
    rounds = {s.round for s in r.samples if s.target == t} if t != DIRECT else set()
    return {n: max(s.rss_mb for s in r.samples if (s.target, s.round) == (t, n)) for n in rounds}


def _one(metric: Metric) -> Column:
    return Column(metric.title, (metric,))


def _rate(title: str, cell: str, key: str) -> Column:
    return _one(Metric(title, _client(cell, key), ",.0f", more_is_better=True))


def _cpu(title: str, cell: str, key: str = "chunks") -> Column:
    return _one(Metric(title, _cpu_per_million(cell, key), ".1f"))


def _pair(title: str, cell: str, of: str, added: bool = True) -> Column:
    read, form, kind = (_added, "+.2f", ADDED) if added else (_latency, ".2f", PLAIN)
    pair = [Metric(f"{title} {p}, ms", read(cell, of, p), form, kind=kind) for p in ("p50", "p99")]
    return Column(f"{title} p50 / p99, ms", tuple(pair))


COLUMNS = [
    _rate("requests/s", "requests", "requests_per_s"),
    _rate("chunks/s", "chunks", "chunks_per_s"),
    _rate("chunks/s, 4 per write", "chunks x4", "chunks_per_s"),
    _pair("added TTFT staggered", "stagger", "ttft_ms"),
    _pair("added TTFT burst", "burst", "ttft_ms"),
    _cpu("CPU µs per request", "requests", "requests"),
    _cpu("CPU s per M chunks", "chunks"),
    _cpu("the same at 20 ms", "stagger"),
    _one(Metric("memory, MB", _memory, ".0f")),
]
"""The columns of the main table; CPU includes each stream's request."""

LONG = [
    _rate("220 KB, 100 clients, requests/s", "220 KB", "requests_per_s"),
    _cpu("CPU µs per request of 220 KB", "220 KB", "requests"),
    _pair("added latency at 10 clients", "220 KB x10", "ttft_ms"),
    _rate("1 MB, 10 clients, requests/s", "1 MB", "requests_per_s"),
]
"""Long bodies, as agents send them."""

PACED = [
    _pair("added ITL staggered", "stagger", "itl_ms"),
    _pair("one-way staggered", "stagger", "oneway_ms", added=False),
    _pair("added ITL burst", "burst", "itl_ms"),
    _pair("one-way burst", "burst", "oneway_ms", added=False),
]
"""Paced streams, token by token: ITL hides a constant delay, the one-way time shows it."""
