"""Compares a client's records of its requests with the upstream's. Pure."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.benchmarks.upstream import Observed, Seen


@dataclass(frozen=True, slots=True)
class Claimed:
    """One request as a tool's file has it. Monotonic seconds; `due_s`: when the tool meant to
    send it, None where its file does not say, or says a time long before the run."""

    due_s: float | None
    sent_s: float
    ttft_s: float
    tpot_s: float


def of_guidellm(result: Path, observed: Observed) -> list[tuple[Claimed, Seen]]:
    """Each request with the one that the upstream saw, by the id of the answer."""
    [benchmark] = json.loads(result.read_text(encoding="utf-8"))["benchmarks"]
    seen = {each.id: each for each in observed.requests}
    began_s = benchmark["scheduler_metrics"]["start_time"]
    pairs = []
    for each in benchmark["requests"]["successful"]:
        timings = each["info"]["timings"]
        due_s = timings["targeted_start"]
        claimed = Claimed(
            due_s=None if due_s < began_s - 1 else due_s - observed.wall_ahead_s,
            sent_s=timings["request_start"] - observed.wall_ahead_s,
            ttft_s=each["time_to_first_token_ms"] / 1000,
            tpot_s=each["inter_token_latency_ms"] / 1000,
        )
        pairs.append((claimed, seen[each["response_id"]]))
    return sorted(pairs, key=lambda pair: pair[1].arrived_s)


def of_vllm_bench(result: Path, observed: Observed) -> list[tuple[Claimed, Seen]]:
    """Each request with the one that the upstream saw, by their order: its file has no ids.
    Its clock is the upstream's; it does not keep when a request was due."""
    document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    claims = [
        Claimed(None, sent_s, ttft_s, sum(itls) / len(itls))
        for sent_s, ttft_s, itls in zip(
            document["start_times"], document["ttfts"], document["itls"], strict=True
        )
    ]
    claims.sort(key=lambda each: each.sent_s)
    return list(zip(claims, observed.requests, strict=True))


def of_orch_bench(result: Path, observed: Observed) -> list[tuple[Claimed, Seen]]:
    """Each request with the one that the upstream saw, by their order. Its times are from the
    start of the run, which the request that was the fastest to get there fixes."""
    document = json.loads(result.read_text(encoding="utf-8"))
    calls = [dict(zip(document["call_columns"], each, strict=True)) for each in document["calls"]]
    calls.sort(key=lambda call: call["sent_s"])
    pairs = list(zip(calls, observed.requests, strict=True))
    start_s = min(seen.arrived_s - call["sent_s"] for call, seen in pairs)
    return [
        (
            Claimed(
                due_s=start_s + call["due_s"],
                sent_s=start_s + call["sent_s"],
                ttft_s=call["first_s"] - call["sent_s"],
                tpot_s=(call["ended_s"] - call["first_s"]) / (call["output_tokens"] - 1),
            ),
            seen,
        )
        for call, seen in pairs
    ]


def lateness_s(pairs: Sequence[tuple[Claimed, Seen]], rate: float, constant: bool) -> list[float]:
    """By how much each request came late to the upstream. Seconds.

    After it was due where the file says so. Else, at a constant rate, after its place in the
    schedule that the earliest of all fixes (so that the most punctual one is 0 late); Poisson
    arrivals that nobody kept cannot be known: none.
    """
    scheduled = [(claimed.due_s, seen) for claimed, seen in pairs if claimed.due_s is not None]
    if scheduled:
        return [seen.arrived_s - due_s for due_s, seen in scheduled]
    if not constant:
        return []
    offsets = [seen.arrived_s - index / rate for index, (_, seen) in enumerate(pairs)]
    return [offset - min(offsets) for offset in offsets]


def gaps_s(pairs: Sequence[tuple[Claimed, Seen]]) -> list[float]:
    """Between arrivals at the upstream."""
    arrived = sorted(seen.arrived_s for _, seen in pairs)
    return [after - before for before, after in pairwise(arrived)]


def exponential_distance(gaps: Sequence[float], rate: float) -> float:
    """Kolmogorov-Smirnov distance to the exponential distribution of this rate, from 0 to 1.
    Of n independent gaps it is below 1.36 / sqrt(n) in 95 of 100 cases."""
    ordered, n = sorted(gaps), len(gaps)
    distances = []
    for index, gap in enumerate(ordered):
        expected = 1 - math.exp(-rate * gap)
        distances += [abs(expected - index / n), abs(expected - (index + 1) / n)]
    return max(distances)


def dispersion(arrived_s: Sequence[float], window_s: float) -> float:
    """Variance over mean of the counts of arrivals per window: 1 for Poisson arrivals."""
    first = min(arrived_s)
    windows = int((max(arrived_s) - first) / window_s)
    if windows < 2:
        raise ValueError(f"arrivals span {windows} windows of {window_s:g} s, 2 are needed")
    counted = Counter(int((each - first) / window_s) for each in arrived_s)
    counts = [counted[index] for index in range(windows)]
    mean = sum(counts) / windows
    return sum((count - mean) ** 2 for count in counts) / (windows - 1) / mean


def repeats(pairs: Sequence[tuple[Claimed, Seen]]) -> float | None:
    """How often the same gap between due times comes, on average: 1 for independent gaps. None
    where the file does not say when requests were due."""
    due = sorted(claimed.due_s for claimed, _ in pairs if claimed.due_s is not None)
    if len(due) < 2:
        return None
    # A wall clock in seconds is a float with 0.24 µs between neighbours.
    counted = Counter(round((b - a) * 1e6) for a, b in pairwise(due))
    return (len(due) - 1) / len(counted)
