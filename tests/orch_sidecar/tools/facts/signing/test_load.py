"""How sequences came, by the engine's own record: what a label requires, whatever a row states."""

from __future__ import annotations

from dataclasses import replace

from orch_sidecar.tools.facts.signing.load import load_contradictions
from orch_sidecar.tools.facts.signing.proof import Proof, prove
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.facts.signing.signed import SigningEngine
from tests.vllm_plugin.examples import FACTS

OFFLINE = replace(FACTS, profile="offline", pool="offline", measurement_type="offline")


def served(*batches: int) -> Proof:
    """What an engine of 8 slots states after it served these batches, one after the other."""
    engine = SigningEngine(facts=OFFLINE)
    before = engine.ask()
    engine.wait(0.02)
    for batch in batches:
        engine.decode(batch, 6)
        engine.wait(0.001)
    return prove(engine.signed(before, engine.ask(since=1)), {})


def found(label: Label, proof: Proof) -> str:
    return "; ".join(load_contradictions(label, proof))


def test_offline_from_a_trickle_is_a_contradiction_although_one_batch_was_full() -> None:
    text = found(Label.OFFLINE, served(*[1] * 12, 8))
    assert "% of 8 sequences were missing in the engine before the last one arrived" in text


def test_offline_of_full_batches_is_none() -> None:
    assert found(Label.OFFLINE, served(8, 8, 8, 3)) == ""


def test_offline_of_fewer_requests_than_slots_is_none() -> None:
    assert found(Label.OFFLINE, served(5)) == ""


def test_offline_that_memory_limits_is_measured_against_the_sequences_that_fit() -> None:
    proof = served(8, *[2] * 40)
    assert "missing" in found(Label.OFFLINE, proof)
    small = replace(proof.before, snapshot=replace(proof.before.snapshot, kv_tokens_total=52))
    assert found(Label.OFFLINE, replace(proof, before=small)) == ""


def test_single_stream_of_overlapping_sequences_is_a_contradiction() -> None:
    assert "2 of 3 sequences arrived while another" in found(Label.SINGLE_STREAM, served(3))
    assert found(Label.SINGLE_STREAM, served(1, 1, 1)) == ""


def test_adjustment_of_the_clock_is_no_overlap() -> None:
    proof = served(1, 1, 1)
    first, second, third = proof.leaves
    early = second._replace(arrived_s=second.arrived_s - 0.01, ended_s=second.ended_s - 0.01)
    proof = replace(proof, leaves=(first, early, third))
    assert "1 of 3 sequences" in found(Label.SINGLE_STREAM, proof)
    adjusted = replace(proof, after=replace(proof.after, wall_s=proof.after.wall_s - 0.01))
    assert found(Label.SINGLE_STREAM, adjusted) == ""
