"""The label of a row, and the load and the batches that its notes state.

Pure. The engine's work is judged before a row is made (`facts.evidence`, `facts.traces`); a row
must not state anything else than what was judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from orch_sidecar.tools.facts.tables.agreement import rounding
from orch_sidecar.tools.facts.tables.notes import (
    BATCH_MAX,
    BATCH_MEAN,
    REPLAYED,
    Arrivals,
    arrivals_of,
)
from orch_sidecar.tools.facts.tables.row import Label

# Requests arrive by a schedule in all others.
_UNSCHEDULED: Final = (Arrivals.ONE_BY_ONE, Arrivals.CLOSED_LOOP, Arrivals.AT_ONCE)
_ARRIVALS: Final[Mapping[Label, tuple[Arrivals, ...]]] = {
    Label.SINGLE_STREAM: (Arrivals.ONE_BY_ONE,),
    Label.BATCHED_ONLINE: tuple(each for each in Arrivals if each is not Arrivals.ONE_BY_ONE),
    Label.OFFLINE: (Arrivals.AT_ONCE, Arrivals.CLOSED_LOOP),
}
# The profiles that this project ships; others may have any label.
PROFILE_LABELS: Final = {
    "home": Label.SINGLE_STREAM,
    "cloud": Label.BATCHED_ONLINE,
    "offline": Label.OFFLINE,
}
# Notes of rows whose batching is known, and of those to be confirmed.
_CONFIRMED_NOTES: Final = (BATCH_MEAN, BATCH_MAX)
_CLAIM_NOTES: Final = ("claim", "batch_is")

# A note as `name=value` (or the name of a missing one), and the rule that it violates.
Finding = tuple[str, str]


def label_contradictions(label: Label, notes: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the notes about the load that contradict the label, or the label that is claimed."""
    row = f"in a row labelled {label}"
    misplaced = _CONFIRMED_NOTES if label is Label.TO_BE_CONFIRMED else _CLAIM_NOTES
    for name in misplaced:
        if name in notes:
            yield _noted(name, notes), f"must be absent {row}"
    if label is Label.TO_BE_CONFIRMED:
        claim = notes.get("claim", "none")
        if claim in (*_ARRIVALS,):
            yield from _load(Label(claim), notes, f"in a row that claims {claim}")
        return
    yield from _load(label, notes, row)
    profile = notes.get("profile", "")
    if PROFILE_LABELS.get(profile, label) is not label:
        yield (
            _noted("profile", notes),
            f"must not be {profile} {row}: it is {PROFILE_LABELS[profile]}",
        )


def _load(label: Label, notes: Mapping[str, str], row: str) -> Iterator[Finding]:
    if "arrivals" in notes and arrivals_of(notes) not in _ARRIVALS[label]:
        yield _noted("arrivals", notes), f"must be {' or '.join(_ARRIVALS[label])} {row}"
    single, alone = label is Label.SINGLE_STREAM, notes.get("at_once", "") == "1"
    if "at_once" in notes and alone is not single:
        yield _noted("at_once", notes), f"must be {'1' if single else 'above 1'} {row}"
    if label is not Label.BATCHED_ONLINE and "rate_per_s" in notes:
        yield _noted("rate_per_s", notes), f"must be absent {row}: its requests have no schedule"


def load_contradiction(
    label: Label, arrivals: Arrivals, at_once: int | None, *, at_least: int = 2
) -> str | None:
    """Returns why a load cannot have earned a label, whatever the engine did; None if it can.

    An engine decodes one sequence at a time under any load if requests queue in front of it.
    `at_once`: the limit of concurrent requests, None without one. `at_least`: those that an offline
    run needs, where that is known: as many as the engine has slots, or all of them.
    """
    limit = "no limit of" if at_once is None else f"a limit of {at_once}"
    actual = f"the load was {arrivals}, with {limit} concurrent requests"
    if label is Label.SINGLE_STREAM and arrivals is not Arrivals.ONE_BY_ONE:
        return f"requires one request at a time; {actual}"
    alone = arrivals is Arrivals.ONE_BY_ONE or at_once == 1
    if label in (Label.BATCHED_ONLINE, Label.OFFLINE) and alone:
        return f"requires several requests at a time; {actual}"
    if label is Label.OFFLINE and arrivals not in _ARRIVALS[label]:
        return f"requires all requests at once, or as many as the limit allows; {actual}"
    if label is Label.OFFLINE and at_once is not None and at_once < at_least:
        return f"requires at least {at_least} concurrent requests of this engine; {actual}"
    return None


def arrivals_contradictions(notes: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the notes that contradict the arrivals."""
    if "burstiness" in notes and notes.get("arrivals", Arrivals.GAMMA) != Arrivals.GAMMA:
        yield _noted("burstiness", notes), f"must be absent with {_noted('arrivals', notes)}"
    arrivals = notes.get("arrivals")
    if arrivals in _UNSCHEDULED and "rate_per_s" in notes:
        yield _noted("rate_per_s", notes), f"must be absent with arrivals={arrivals}"
    for name in REPLAYED:
        if name in notes and arrivals_of(notes) != Arrivals.TRACE:
            yield _noted(name, notes), "must be absent without arrivals=trace"
    alone = notes.get("at_once", "") == "1"
    if arrivals == Arrivals.ONE_BY_ONE and "at_once" in notes and not alone:
        yield _noted("at_once", notes), f"must be 1 with arrivals={arrivals}"
    if arrivals == Arrivals.CLOSED_LOOP and alone:
        yield _noted("at_once", notes), f"must be above 1 with arrivals={arrivals}"


def batch_contradictions(
    label: Label | None, batch: int, notes: Mapping[str, str]
) -> Iterator[Finding]:
    """Yields the contradictions between the column `batch`, the label and the notes.

    Those of the column begin with `batch=`. `label`: None where it is unknown.
    """
    column = f"batch={batch}"
    row = f"in a row labelled {label}"
    mean, largest = notes.get(BATCH_MEAN), notes.get(BATCH_MAX)
    if label is Label.SINGLE_STREAM:
        if batch != 1:
            yield column, f"must be 1 {row}"
        for name in (BATCH_MEAN, BATCH_MAX):
            if name in notes and float(notes[name]) != 1:
                yield _noted(name, notes), f"must be 1 {row}"
    elif label in (Label.BATCHED_ONLINE, Label.OFFLINE):
        if largest is not None and int(largest) < 2:
            yield _noted(BATCH_MAX, notes), f"must be above 1 {row}"
        if largest is None and batch == 1:
            yield column, f"must be above 1 {row}"
    if mean is not None and largest is not None:
        yield from _mean_and_largest(batch, mean, int(largest))
    elif mean is not None:
        yield _noted(BATCH_MEAN, notes), f"must have the note {BATCH_MAX} beside it"
    elif largest is not None:
        yield _noted(BATCH_MAX, notes), f"must have the note {BATCH_MEAN} beside it"
    if notes.get("batch_is") == "overlap":
        yield from _overlap(batch, notes)


def _mean_and_largest(batch: int, mean: str, largest: int) -> Iterator[Finding]:
    found = _mean(mean)
    if not max(1, round(found.least)) <= batch <= max(1, round(found.most)):
        yield f"batch={batch}", f"must be {BATCH_MEAN}={mean}, rounded, and at least 1"
    if largest < found.least:
        yield f"{BATCH_MAX}={largest}", f"must be at least {BATCH_MEAN}={mean}"


def _mean(text: str) -> rounding.Interval:
    return rounding.before_rounding(text, rounding.BATCH_MEAN)


def _overlap(batch: int, notes: Mapping[str, str]) -> Iterator[Finding]:
    """Compares the answers that overlapped with the requests that could be answered at once.

    By a schedule, an answer that was not streamed may count from before it was sent.
    """
    limits = ["requests"] if "requests" in notes else []
    if notes.get("arrivals") in _UNSCHEDULED and "at_once" in notes:
        limits.append("at_once")
    for name in limits:
        if batch > int(notes[name]):
            yield f"batch={batch}", f"must be at most {_noted(name, notes)}"


def _noted(name: str, notes: Mapping[str, str]) -> str:
    return f"{name}={notes[name]}"
