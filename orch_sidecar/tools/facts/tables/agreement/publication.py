"""The minimum of a run whose figures may be published, after MLPerf Inference.

Pure. A valid run below it is preliminary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from orch_sidecar.tools.facts.tables.agreement.rounding import WINDOW_S, before_rounding
from orch_sidecar.tools.facts.tables.notes import PRELIMINARY
from orch_sidecar.tools.facts.tables.row import Label

# The fewest samples of which early stopping estimates a percentile (`labels.early_stopping`).
LEAST_SAMPLES: Final = {50: 11, 90: 64, 95: 130, 99: 662}
# The percentiles by which MLPerf Inference judges its scenarios SingleStream and Server.
_JUDGED_BY: Final = {Label.SINGLE_STREAM: 90, Label.BATCHED_ONLINE: 99}
# The fewest queries for which early stopping, MLPerf's test of a percentile, can give a value at
# all. No percentile is judged offline: MLPerf requires one query there, of 24 576 samples at least.
# A request is a sample here, and their number is not required: the duration is.
MIN_QUERIES: Final[Mapping[Label, int]] = {
    **{label: LEAST_SAMPLES[at] for label, at in _JUDGED_BY.items()},
    Label.OFFLINE: 1,
}
# MLPerf's minimum duration of a run.
MIN_DURATION_S: Final = 600.0


def shortfalls(label: Label, queries: int, seconds: float) -> list[str]:
    """Returns what a valid measurement lacks for publication; with any it is preliminary."""
    minimum = MIN_QUERIES[label]
    missing = []
    if queries < minimum:
        at = f"{_JUDGED_BY[label]}th percentile" if label in _JUDGED_BY else "throughput"
        missing.append(f"{queries} queries, MLPerf's estimate of the {at} takes at least {minimum}")
    if seconds < MIN_DURATION_S:
        missing.append(f"{seconds:.1f} s, MLPerf's minimum duration is {MIN_DURATION_S:.0f} s")
    return missing


def contradictions(label: Label, notes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the note `preliminary` where it contradicts the length of the run, and the rule.

    A length that was rounded to the minimum may have been on either side of it.
    """
    if label not in MIN_QUERIES or "requests" not in notes or "window_s" not in notes:
        return
    requests, window = int(notes["requests"]), before_rounding(notes["window_s"], WINDOW_S)
    stated = f"{PRELIMINARY}={notes[PRELIMINARY]}" if PRELIMINARY in notes else ""
    missing = shortfalls(label, requests, window.most)
    if missing and not stated:
        yield stated, f"the note {PRELIMINARY}=yes is missing: {'; '.join(missing)}"
    if stated and not shortfalls(label, requests, window.least):
        rule = f"must be absent: {requests} queries in {notes['window_s']} s are the minimum"
        yield stated, f"{rule} or more"
