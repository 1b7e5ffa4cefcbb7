"""Compares a label with how the requests of a run came, by the sequences that the engine signed.

Pure. A client states how it sent its requests; when they were in the engine, the engine states.
A sidecar may keep some of them back, so less is required of offline than of traces, which show
when a request arrived at the sidecar (`facts.traces.supply`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Final

from orch_sidecar.tools.facts.signing.proof import Proof
from orch_sidecar.tools.facts.tables.row import Label

# Of the sequences that an offline run could have in the engine until its last one arrives. Memory
# and sequences of different lengths cost a part of them, requests that trickle in most.
LACKING: Final = 1 / 3
_ROUNDING_S: Final = 0.001


def load_contradictions(label: Label, proof: Proof) -> Iterator[str]:
    """Yields the reasons why sequences did not come as the label requires."""
    if label is Label.SINGLE_STREAM and (overlaps := _overlaps(proof)):
        yield (
            f"{overlaps} of {len(proof.leaves)} sequences arrived while another was in the engine: "
            "single_stream sends one request after the other"
        )
    if label is Label.OFFLINE:
        target, lacking = _supply(proof)
        if lacking > LACKING:
            yield (
                f"{lacking:.0%} of {target:g} sequences were missing in the engine before the last "
                "one arrived: offline has all of them in flight at once"
            )


def _overlaps(proof: Proof) -> int:
    """Counts the sequences that arrived before the end of an earlier one.

    The engine's wall clock may have been adjusted: the statements show by how much.
    """
    adjusted_s = proof.adjusted_s + _ROUNDING_S
    count, ended_s = 0, 0.0
    for leaf in sorted(proof.leaves, key=lambda leaf: leaf.arrived_s):
        count += leaf.arrived_s < ended_s - adjusted_s
        ended_s = max(ended_s, leaf.ended_s)
    return count


def _supply(proof: Proof) -> tuple[float, float]:
    """Returns how many sequences could be in the engine at once, and which share of these was
    missing over the whole window until the last arrival."""
    changes = sorted(
        change for leaf in proof.leaves for change in ((leaf.arrived_s, 1), (leaf.ended_s, -1))
    )
    in_engine = list(accumulate(change for _, change in changes))
    engine = proof.before.snapshot
    target = float(min(engine.slots_total, max(in_engine)))
    if engine.kv_tokens_total is not None:
        tokens = sum(leaf.prompt_tokens + leaf.generated_tokens for leaf in proof.leaves)
        target = max(1.0, min(target, engine.kv_tokens_total * len(proof.leaves) / tokens))
    last_s = max(leaf.arrived_s for leaf in proof.leaves)
    missing_s = sum(
        max(0.0, target - count) * (until_s - at_s)
        for ((at_s, _), (until_s, _)), count in zip(pairwise(changes), in_engine, strict=False)
        if until_s <= last_s
    )
    return target, missing_s / (target * proof.window_s)
