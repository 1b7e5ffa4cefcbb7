"""Whether a label was earned: what the engine did in a window against what the label says.

Pure. A label is never changed for another one: what was not measured as it says is invalid, and
the reasons say why (DESIGN, "What is honest to say").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orch_sidecar.tools.facts.evidence.snapshot import Snapshot
from orch_sidecar.tools.facts.tables.row import Label

# MLPerf Inference: the fewest queries of SingleStream and Server, and the shortest run (seconds)
# of which figures may be published.
MIN_QUERIES: Final = {Label.SINGLE_STREAM: 64, Label.BATCHED_ONLINE: 662, Label.OFFLINE: 1}
MIN_DURATION_S: Final = 600.0

# What is said of a batch of one where there should be more; one client of a sweep is meant to be.
NEVER_BATCHED: Final = "no step decoded more than one sequence: nothing was batched"


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """The requests of a measurement. `sent` at most reached the engine, `answered` surely did.

    `output_tokens`: of all of them; None where of some nobody knows, as of one that failed.
    """

    sent: int
    answered: int
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Batches:
    """The decode steps of a window: how many, the largest and the mean batch (sequences)."""

    steps: int
    largest: int
    mean: float


def objections(label: Label, before: Snapshot) -> list[str]:
    """Why nothing of that label can be measured on this engine, if so."""
    said, slots = before.measurement_type, before.slots_total
    reasons = []
    if said != label:
        reasons.append(
            f"the pool {before.pool!r} (profile {before.profile}) is {said}: "
            f"nothing measured there is {label}"
        )
    if label is Label.SINGLE_STREAM and slots != 1:
        reasons.append(f"single_stream needs an engine with one slot, this one has {slots}")
    if label is not Label.SINGLE_STREAM and slots < 2:
        reasons.append(f"{label} needs an engine with more than one slot, this one has {slots}")
    return reasons


def judge(label: Label, before: Snapshot, after: Snapshot, own: RequestCounts) -> list[str]:
    """Why the label was not earned between the two snapshots; empty if it was.

    Both are to be taken while the engine is idle: before the first request, after the last.
    """
    reasons = [text for differs, text in _CHANGES if differs(before, after)]
    if reasons:
        return reasons  # nothing that was counted can be compared
    reasons = objections(label, before)
    reasons += _traffic(before, after, own)
    batches = batches_between(before, after)
    if label is Label.SINGLE_STREAM and batches.largest > 1:
        reasons.append(
            f"the engine decoded up to {batches.largest} sequences in one step: "
            "single_stream is one at a time"
        )
    if label is not Label.SINGLE_STREAM and batches.largest == 1:
        reasons.append(NEVER_BATCHED)
    if not batches.steps:
        reasons.append("the engine says that it ran no decode step in the window")
    return reasons + _surplus(batches, own)


def shortfalls(label: Label, queries: int, seconds: float) -> list[str]:
    """What a valid measurement lacks to be published; then it is preliminary."""
    least = MIN_QUERIES[label]
    missing = []
    if queries < least:
        missing.append(f"{queries} queries, and at least {least} are needed")
    if seconds < MIN_DURATION_S:
        missing.append(f"{seconds:.1f} s, and at least {MIN_DURATION_S:.0f} s are needed")
    return missing


def batches_between(before: Snapshot, after: Snapshot) -> Batches:
    """The decode steps between two snapshots of one engine. Steps that also read prompts are not
    among them."""
    steps = sequences = largest = 0
    for batch, (count, _) in after.steps_by_batch.items():
        ran = count - before.steps_by_batch.get(batch, (0, 0.0))[0]
        if ran > 0:
            steps += ran
            sequences += ran * batch
            largest = max(largest, batch)
    return Batches(steps, largest, sequences / steps if steps else 0.0)


def _traffic(before: Snapshot, after: Snapshot, own: RequestCounts) -> list[str]:
    reasons = []
    for when, snapshot in (("before", before), ("after", after)):
        if snapshot.foreign:
            reasons.append(f"{snapshot.foreign} foreign sequences were in the engine {when} it")
        if snapshot.leased:
            reasons.append(f"{snapshot.leased} sequences were still in the engine {when} it")
    taken = after.requests_total - before.requests_total
    if taken > own.sent:
        reasons.append(
            f"the engine took {taken} requests in the window, and {own.sent} were of this "
            "measurement: others used it at the same time"
        )
    if taken < own.answered:
        reasons.append(
            f"{own.answered} requests were answered, and the engine took {taken}: answers were "
            "shared (coalesced), or came from elsewhere"
        )
    return reasons


def _surplus(batches: Batches, own: RequestCounts) -> list[str]:
    """What was decoded for others: requests that began before the window are not in its count.

    Each sequence of a step generates a token at least, and each prompt's first token is made by
    a step that also read a prompt, which is not counted.
    """
    decoded = round(batches.steps * batches.mean)
    if own.output_tokens is None or decoded <= own.output_tokens:
        return []
    return [
        f"the engine decoded {decoded} times a sequence in the window, and this measurement has "
        f"{own.output_tokens} tokens: it decoded for others, or this is of another run"
    ]


_CHANGES: Final[tuple[tuple[Callable[[Snapshot, Snapshot], bool], str], ...]] = (
    (lambda a, b: a.epoch != b.epoch, "the engine was restarted"),
    (
        lambda a, b: (a.profile, a.measurement_type) != (b.profile, b.measurement_type),
        "the profile changed",
    ),
    (lambda a, b: a.slots_total != b.slots_total, "the number of slots changed"),
    (lambda a, b: a.generation != b.generation, "the sidecar's configuration was reloaded"),
    (
        lambda a, b: b.requests_total < a.requests_total,
        "the second snapshot is older than the first",
    ),
)
