"""Measures the accuracy of the tools against an upstream with known timing (`upstream.py`).

TTFT and time per token: the tool's value minus the upstream's, so that the upstream's own lateness
cancels out. Lateness: arrival at the upstream minus the due time. All are medians over the runs of
each run's median, 99th percentile and maximum, in ms.

For Poisson arrivals: KS is the distance of the intervals at the upstream from the exponential
distribution, `dispersion` the variance over the mean of arrivals per 0.2 s (1 for Poisson),
`repeats` how often each interval of the schedule occurs, `unscheduled` the number of requests
without a due time within the run.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orch_sidecar.tools.facts.labels.figures import percentile
from orch_sidecar.tools.facts.tables.row import Label
from tests.benchmarks.imports import arrivals, tools
from tests.benchmarks.imports.arrivals import Claimed
from tests.benchmarks.imports.tools import ONE_WORKER, Load, Ran, Target
from tests.benchmarks.policy.record import shown, table
from tests.benchmarks.upstream import MODEL, Observed, Script, Seen, Upstream

Pairs = Sequence[tuple[Claimed, Seen]]

SYNCHRONOUS: Final = Load(requests=40)
OPEN: Final = tuple(
    Load(requests=rate * 10, rate=rate, poisson=poisson)
    for rate in (50, 200)
    for poisson in (False, True)
)
# Of Poisson arrivals at 50/s: 10 a window.
_WINDOW_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Tool:
    """How a tool is run, and how its file is read. `alone`: it sends one request after the other
    to anybody, and not only to an engine that says it has one slot."""

    name: str
    run: Callable[[Target, Load, Path], Ran]
    read: Callable[[Path, Observed], list[tuple[Claimed, Seen]]]
    environ: tuple[tuple[str, str], ...] = ()
    alone: bool = True


def _orch_bench(target: Target, load: Load, result: Path) -> Ran:
    """With prompts of its own, for the upstream has no tokenizer. A constant rate is as even a one
    as may be asked for."""
    prompts = result.with_suffix(".jsonl")
    prompts.write_text(json.dumps({"prompt": "one two three"}) + "\n", encoding="utf-8")
    words = ["--prompts", str(prompts)]
    words += ["--engine", "scripted", "--precision", "none", "--gpu", "none", "--gpu-count", "0"]
    if not load.poisson:
        words += ["--burstiness", "1e6"]
    return tools.orch_bench(target, load, result, Label.BATCHED_ONLINE, *words)


TOOLS: Final = (
    Tool("guidellm", tools.guidellm, arrivals.of_guidellm),
    Tool("guidellm, 1 worker", tools.guidellm, arrivals.of_guidellm, tuple(ONE_WORKER.items())),
    Tool("vllm bench serve", tools.vllm_bench, arrivals.of_vllm_bench),
    Tool("orch bench", _orch_bench, arrivals.of_orch_bench, alone=False),
)


@dataclass(frozen=True, slots=True)
class Exactness:
    """One run. ms; None where the tool's file does not tell."""

    requests: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    late_p50_ms: float | None
    late_p99_ms: float | None
    late_most_ms: float | None
    distance: float | None
    dispersion: float | None
    repeats: float | None
    unscheduled: int | None
    upstream_late_p99_ms: float
    cpu_s: float


def measure(tool: Tool, load: Load, logs: Path) -> Exactness:
    """One run of a tool against an upstream of its own."""
    with Upstream(Script(), logs / "upstream.log") as upstream:
        target = Target(upstream.url, MODEL, dict(tool.environ))
        ran = tool.run(target, load, logs / "accuracy.json")
        observed = upstream.seen()
    pairs = tool.read(ran.result, observed)
    return _exactness(pairs, load, ran.cpu_s)


def _exactness(pairs: Pairs, load: Load, cpu_s: float) -> Exactness:
    ttft = [1000 * (claimed.ttft_s - seen.ttft_s) for claimed, seen in pairs]
    tpot = [1000 * (claimed.tpot_s - seen.tpot_s) for claimed, seen in pairs]
    late: list[float] = []
    distance = dispersion = repeats = unscheduled = None
    if load.rate is not None:
        late = [1000 * each for each in arrivals.lateness_s(pairs, load.rate, not load.poisson)]
        if load.poisson:
            distance = arrivals.exponential_distance(arrivals.gaps_s(pairs), load.rate)
            dispersion = arrivals.dispersion([seen.arrived_s for _, seen in pairs], _WINDOW_S)
            repeats = arrivals.repeats(pairs)
        undue = sum(claimed.due_s is None for claimed, _ in pairs)
        unscheduled = undue if undue < len(pairs) else None
    return Exactness(
        requests=len(pairs),
        ttft_p50_ms=_at(ttft, 50),
        ttft_p99_ms=_at(ttft, 99),
        tpot_p50_ms=_at(tpot, 50),
        tpot_p99_ms=_at(tpot, 99),
        late_p50_ms=percentile(late, 50),
        late_p99_ms=percentile(late, 99),
        late_most_ms=percentile(late, 100),
        distance=distance,
        dispersion=dispersion,
        repeats=repeats,
        unscheduled=unscheduled,
        upstream_late_p99_ms=_at([1000 * seen.latest_s for _, seen in pairs], 99),
        cpu_s=cpu_s,
    )


def _at(values: Sequence[float], p: float) -> float:
    value = percentile(values, p)
    assert value is not None
    return value


def run(rounds: int, logs: Path, loads: Sequence[Load] = (SYNCHRONOUS, *OPEN)) -> None:
    """Prints the table: medians of `rounds` runs each, which are interleaved."""
    weight = tools.guidellm_weight()
    print(
        f"guidellm {tools.GUIDELLM}: {weight.packages} packages, {weight.megabytes} MB, installed "
        f"in {weight.install_s:g} s\n"
    )
    cells: dict[tuple[str, Load], list[Exactness]] = {}
    for _ in range(rounds):
        for load in loads:
            for tool in TOOLS:
                if tool.alone or load.rate is not None:
                    cells.setdefault((tool.name, load), []).append(measure(tool, load, logs))
    print(_table(cells))


_COLUMNS: Final = {
    "ttft p50": "ttft_p50_ms",
    "p99": "ttft_p99_ms",
    "tpot p50": "tpot_p50_ms",
    "p99 ": "tpot_p99_ms",
    "late p50": "late_p50_ms",
    "p99  ": "late_p99_ms",
    "most": "late_most_ms",
    "KS": "distance",
    "dispersion": "dispersion",
    "repeats": "repeats",
    "unscheduled": "unscheduled",
    "upstream p99": "upstream_late_p99_ms",
    "cpu s": "cpu_s",
}


def _table(cells: dict[tuple[str, Load], list[Exactness]]) -> str:
    rows = []
    for (name, load), runs in cells.items():
        row = [name, load.name, str(runs[0].requests)]
        for column in _COLUMNS.values():
            values = [value for each in runs if (value := getattr(each, column)) is not None]
            row.append(shown(statistics.median(values) if values else None))
        rows.append(row)
    rows.sort(key=lambda row: row[1])
    return table(("tool", "load", "requests", *_COLUMNS), rows)
