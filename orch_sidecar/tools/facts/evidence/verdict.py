"""Judges whether a measurement earned its label: what the engine did, against what the label means.

Pure. A label is never replaced by another one: a measurement that does not meet its label is
invalid, and the reasons are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.tables.row import Label

# Of the tokens after the first ones, from steps that only decode.
_DECODED_SHARE: Final = 0.5

# Of prompt tokens, those that were the only one of their prompt in a step.
_CHUNK_ENDS: Final = 0.02

# A sweep ignores this reason at one client, where it is expected.
NEVER_BATCHED: Final = "no step decoded more than one sequence: nothing was batched"


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """The requests of a measurement. At most `sent` reached the engine, at least `answered` did.

    `output_tokens`: of all of them; None where some are unknown, as those of a failed request.
    `input_tokens`: of the answered ones, None where unknown. `one_by_one`: each was sent after the
    answer to the one before.
    """

    sent: int
    answered: int
    output_tokens: int | None = None
    input_tokens: int | None = None
    one_by_one: bool = False


@dataclass(frozen=True, slots=True)
class Batches:
    """The decode steps of a window: how many, the largest and the mean batch (sequences)."""

    steps: int
    largest: int
    mean: float


def objections(label: Label, before: Snapshot) -> list[str]:
    """Returns the reasons why this engine cannot earn that label, empty if it can."""
    engine_label, slots = before.measurement_type, before.slots_total
    reasons = []
    if engine_label != label:
        reasons.append(
            f"the pool {before.pool!r} (profile {before.profile}) is {engine_label}: "
            f"a measurement of it cannot be {label}"
        )
    if label is Label.SINGLE_STREAM and slots != 1:
        reasons.append(f"single_stream needs an engine with one slot, this one has {slots}")
    if label is not Label.SINGLE_STREAM and slots < 2:
        reasons.append(f"{label} needs an engine with more than one slot, this one has {slots}")
    return reasons


def judge(label: Label, before: Snapshot, after: Snapshot, own: RequestCounts) -> list[str]:
    """Returns the reasons why the label was not earned between two snapshots, empty if it was.

    Both snapshots must be taken while the engine is idle: before the first request, after the last.
    """
    reasons = [text for differs, text in _CHANGES if differs(before, after)]
    if reasons:
        return reasons  # the counts of the two snapshots cannot be compared
    reasons = objections(label, before)
    reasons += _traffic(before, after, own)
    batches = batches_between(before, after)
    if label is Label.SINGLE_STREAM and batches.largest > 1:
        reasons.append(
            f"the engine decoded up to {batches.largest} sequences in one step: "
            "single_stream must decode one at a time"
        )
    elif label is not Label.SINGLE_STREAM and batches.largest == 1:
        reasons.append(NEVER_BATCHED)
    elif label is not Label.SINGLE_STREAM and own.one_by_one:
        reasons.append(
            f"the requests came one by one: the batch of up to {batches.largest} sequences was "
            f"that of a single request, and {label} needs several requests at a time"
        )
    elif label is Label.OFFLINE and batches.steps:
        reasons += _not_full(before, after, own, batches)
    if not batches.steps:
        reasons.append("the engine reports no decode step in the window")
    return reasons + _other_tokens(before, after, own) + _surplus(batches, own)


def prefix_hit_ratio(before: Snapshot, after: Snapshot) -> float:
    """Returns the share of the prompt tokens that were found in the prefix cache, of those that
    were looked up there between two snapshots; 0 if none was."""
    looked_up = after.prefix_queries - before.prefix_queries
    return (after.prefix_hits - before.prefix_hits) / looked_up if looked_up > 0 else 0.0


def batches_between(before: Snapshot, after: Snapshot) -> Batches:
    """Returns the decode steps between two snapshots of one engine.

    Steps that also prefilled prompts are not counted.
    """
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
            count = snapshot.foreign
            reasons.append(f"foreign sequences in the engine {when} the measurement: {count}")
        if snapshot.leased:
            count = snapshot.leased
            reasons.append(f"sequences still in the engine {when} the measurement: {count}")
    accepted = after.requests_total - before.requests_total
    if accepted > own.sent:
        reasons.append(
            f"the engine accepted {accepted} requests in the window, but this measurement sent "
            f"{own.sent}: the engine served other clients, too"
        )
    if accepted < own.answered:
        reasons.append(
            f"{own.answered} requests were answered, but the engine accepted {accepted}: answers "
            "were shared (coalesced), or came from another engine"
        )
    return reasons


def offline_batch(slots: int, requests: int) -> int:
    """Returns the batch that an offline run has to reach: all slots, or all requests."""
    return min(slots, requests)


def _not_full(before: Snapshot, after: Snapshot, own: RequestCounts, batches: Batches) -> list[str]:
    """Returns a reason where the engine could have decoded more sequences at once.

    What may limit the batch below slots and requests: memory, which shows in preemptions, or in a
    KV cache that holds fewer sequences of this length; and prompts so long, or answers so short,
    that the engine read prompts in most steps. Those steps are not counted, so that the tokens of
    the counted ones are then less than half of all.
    """
    needed = offline_batch(before.slots_total, own.answered)
    if batches.largest >= needed or after.preemptions_total > before.preemptions_total:
        return []
    if own.output_tokens is not None:
        later_tokens = own.output_tokens - own.answered
        if batches.steps * batches.mean < later_tokens * _DECODED_SHARE:
            return []
        if own.input_tokens is not None and before.kv_tokens_total is not None:
            each = (own.input_tokens + own.output_tokens) / own.answered
            if before.kv_tokens_total < needed * each:
                return []
    return [
        f"the engine decoded at most {batches.largest} sequences in one step, but had "
        f"{before.slots_total} slots and {own.answered} requests: offline needs a batch of {needed}"
    ]


def _other_tokens(before: Snapshot, after: Snapshot, own: RequestCounts) -> list[str]:
    """Returns the reasons why the tokens are not those that the engine counted, where it did.

    A prompt was read or found in the cache, once for each sequence of its request. What remains of
    a prompt after a chunk may be one token, which vLLM counts like a generated one.
    """
    reasons = []
    generated = _between(before.generated_tokens, after.generated_tokens)
    if None not in (generated, own.output_tokens) and generated != own.output_tokens:
        reasons.append(
            f"the engine generated {generated} tokens in the window, but this measurement states "
            f"{own.output_tokens}"
        )
    read = _between(before.prefilled_tokens, after.prefilled_tokens)
    if read is not None and own.input_tokens is not None:
        found = after.prefix_hits - before.prefix_hits
        if own.input_tokens > (read + found) * (1 + _CHUNK_ENDS) + own.sent:
            reasons.append(
                f"the engine read {read} prompt tokens in the window and found {found} in its "
                f"cache, but this measurement states {own.input_tokens}"
            )
    return reasons


def _between(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _surplus(batches: Batches, own: RequestCounts) -> list[str]:
    """Returns a reason where the engine decoded more than the requests account for.

    Requests of others that began before the window are not in its request count. Each sequence of
    a step generates at least one token, and the first token of a prompt comes from a step that
    also prefilled, which is not counted.
    """
    decoded = round(batches.steps * batches.mean)
    if own.output_tokens is None or decoded <= own.output_tokens:
        return []
    return [
        f"the engine decoded at least {decoded} tokens in the window, but this measurement "
        f"received {own.output_tokens}: the engine served other clients, or the snapshots are of "
        "another run"
    ]


_CHANGES: Final[tuple[tuple[Callable[[Snapshot, Snapshot], bool], str], ...]] = (
    (lambda a, b: a.epoch != b.epoch, "the engine was restarted"),
    (
        lambda a, b: (a.profile, a.measurement_type) != (b.profile, b.measurement_type),
        "the profile changed",
    ),
    (
        lambda a, b: (a.conditions, a.weights) != (b.conditions, b.weights),
        "the engine's model or its configuration changed",
    ),
    (lambda a, b: a.slots_total != b.slots_total, "the number of slots changed"),
    (lambda a, b: a.generation != b.generation, "the sidecar's configuration was reloaded"),
    (
        lambda a, b: b.requests_total < a.requests_total,
        "the second snapshot is older than the first",
    ),
)
