"""The figures of a row that follow from each other: throughput, window, tokens, percentiles.

Pure. `facts.labels.figures` defines them. With n requests, the percentile p interpolates between
two of their n values in ascending order, so at least `n - ceil((n - 1) p / 100)` of these values
are as large as it or larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from typing import Final

from orch_sidecar.tools.facts.tables.agreement.load import Finding
from orch_sidecar.tools.facts.tables.agreement.publication import LEAST_SAMPLES
from orch_sidecar.tools.facts.tables.agreement.rounding import (
    THROUGHPUT,
    TIME_MS,
    WINDOW_S,
    Interval,
    before_rounding,
)
from orch_sidecar.tools.facts.tables.note_forms import PERCENTILES, TIMES, early_note, time_note
from orch_sidecar.tools.facts.tables.notes import Arrivals

# The figures of an import without details are the tool's own, which it accepts within this share.
_TOOLS_OWN: Final = "window_is"
_TOOLS_TOLERANCE: Final = 0.001


def throughput_rule(throughput: str, output_tokens: int, notes: Mapping[str, str]) -> str | None:
    """Returns the rule that a throughput violates, given the tokens, requests and window.

    `output_tokens` is the rounded mean per request: the sum is a whole number between
    requests * (mean - 1/2) and requests * (mean + 1/2), and the throughput is the sum over the
    window. Nothing else is tolerated but the rounding of the window and of the throughput.
    """
    if "requests" not in notes or "window_s" not in notes:
        return None
    requests = int(notes["requests"])
    window = before_rounding(notes["window_s"], WINDOW_S)
    least = max(1, -(-requests * (2 * output_tokens - 1) // 2))
    most = requests * (2 * output_tokens + 1) // 2
    share = _TOOLS_TOLERANCE if _TOOLS_OWN in notes else 0.0
    lowest = least / window.most * (1 - share) if window.most > 0 else math.inf
    highest = most / window.least * (1 + share) if window.least > 0 else math.inf
    found = before_rounding(throughput, THROUGHPUT)
    if window.most == 0 or (lowest <= found.most and found.least <= highest):
        return None
    return (
        f"must be {lowest:.6g} to {highest:.6g}: {requests} requests with {output_tokens} generated"
        f" tokens each (rounded) in {notes['window_s']} s"
    )


def percentile_contradictions(notes: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the percentiles that cannot be those of one run, and the rule."""
    for name in TIMES:
        stated = [each for each in PERCENTILES if time_note(name, each) in notes]
        for lower, upper in pairwise(stated):
            yield from _not_below(notes, time_note(name, lower), time_note(name, upper))
        for percentile in stated:
            # An upper bound with a confidence of 99 % is never below the percentile of the sample.
            early = early_note(name, percentile)
            yield from _not_below(notes, time_note(name, percentile), early)
        yield from _too_few_samples(name, notes)
        if notes.get("requests") == "1":
            yield from _all_equal(notes, [time_note(name, each) for each in stated])
    for percentile in PERCENTILES:
        # A row has the TTFT of streams, all of whose answers have one, before their end.
        yield from _not_below(notes, *(time_note(each, percentile) for each in ("ttft", "latency")))
    if "window_s" in notes:
        window = before_rounding(notes["window_s"], WINDOW_S)
        yield from _longer_than_the_window(notes, window)


def _not_below(notes: Mapping[str, str], lower: str, upper: str) -> Iterator[Finding]:
    """Both are rounded in the same way, which keeps their order."""
    if lower in notes and upper in notes and float(notes[upper]) < float(notes[lower]):
        yield f"{upper}={notes[upper]}", f"must be at least {lower}={notes[lower]}"


def _too_few_samples(name: str, notes: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the estimates of MLPerf's early stopping that so few requests do not have."""
    for percentile, least in LEAST_SAMPLES.items():
        early = early_note(name, percentile)
        if early in notes and int(notes.get("requests", least)) < least:
            rule = f"must be absent with requests={notes['requests']}: at least {least} are needed"
            yield f"{early}={notes[early]}", rule


def _all_equal(notes: Mapping[str, str], names: list[str]) -> Iterator[Finding]:
    for first, second in combinations(names, 2):
        if float(notes[second]) > float(notes[first]):
            rule = f"must equal {first}={notes[first]}, since requests=1"
            yield f"{second}={notes[second]}", rule
            return


def _longer_than_the_window(notes: Mapping[str, str], window: Interval) -> Iterator[Finding]:
    """Compares times with the window, which contains each request from its arrival to its end.

    The decoding of a request, and so its TPOT, is a part of its latency. In a closed loop no more
    requests are in flight than clients: the sum of their latencies is at most the window of each.
    """
    clients = _clients(notes)
    for name in TIMES:
        for percentile in PERCENTILES:
            note = time_note(name, percentile)
            if note not in notes:
                continue
            took_s = before_rounding(notes[note], TIME_MS).least / 1000
            stated = f"{note}={notes[note]}"
            if took_s > window.most:
                yield stated, f"must be at most window_s={notes['window_s']}"
            elif name == "latency" and clients is not None and "requests" in notes:
                requests = int(notes["requests"])
                as_long = requests - -(-(requests - 1) * percentile // 100)
                if as_long * took_s > clients * window.most:
                    yield (
                        stated,
                        f"is too long: {as_long} of {requests} requests took at least this, at "
                        f"most {clients} at once, in {notes['window_s']} s",
                    )


def _clients(notes: Mapping[str, str]) -> int | None:
    """Returns the clients of a closed loop, None where their number is unknown."""
    if notes.get("arrivals") == Arrivals.ONE_BY_ONE:
        return 1
    if notes.get("arrivals") == Arrivals.CLOSED_LOOP and "at_once" in notes:
        return int(notes["at_once"])
    return None
