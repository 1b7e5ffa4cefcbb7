"""Ways to a label that was not earned, by files of other tools and by `orch bench`.

Each way is one line of a table: what is done to a true run, and why it becomes no row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.fact import NoFact, row_of
from orch_sidecar.tools.bench.results.identity import IdentityOverrides, contradictions
from orch_sidecar.tools.bench.results.result import Status
from orch_sidecar.tools.facts.evidence.imported import Rejection
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label, Row, parse_notes
from tests.orch_sidecar.tools.bench.sample_results import OFFLINE, ONLINE, SINGLE, in_a_row, result
from tests.orch_sidecar.tools.facts.evidence.altered_files import (
    Files,
    another_model,
    changed,
    compressed,
    counted,
    eight_times_the_prompts,
    files,
    first_token_after_the_last,
    first_token_after_the_last_in_guidellm,
    half_cut,
    longer_than_the_states_are_apart,
    offline_burst_that_never_filled_the_slots,
    offline_trickle,
    one_by_one_for_several_sequences,
    outcome,
    same_state_twice,
    saved_before_the_end,
    saved_during_the_run,
    shortened,
    swapped,
    twice_the_tokens,
)
from tests.orch_sidecar.tools.facts.snapshots import home, snapshot

CONDITIONS: Final = {
    "speculative": "none",
    "quantization": "awq",
    "kv_cache_dtype": "float32",
    "prefix_caching": "off",
    "attention_backend": "CPU_ATTN",
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
}

CLOUD, HOME, GUIDE = "vllm_bench_cloud", "vllm_bench_home", "guidellm_cloud"
IMPORTS: Final[tuple[tuple[str, str, Callable[[Files], None], str], ...]] = (
    ("another engine", CLOUD, lambda given: given.ended(epoch="x"), "the engine was restarted"),
    ("states swapped", CLOUD, swapped, "the second state is older"),
    ("one state twice", CLOUD, same_state_twice, "but the engine accepted 0"),
    ("half of the requests cut", CLOUD, half_cut, "the engine served other clients"),
    ("cloud as single", CLOUD, changed(measurement_type="single_stream"), "one request at a time"),
    ("cloud as offline", CLOUD, changed(measurement_type="offline"), "all requests at once"),
    ("home as batched", HOME, changed(measurement_type="batched_online"), "several requests"),
    ("inconsistent figures", CLOUD, changed(output_throughput=9999.0), "tokens over the duration"),
    ("a ramp-up", CLOUD, changed(ramp_up_strategy="linear"), "the rate must be constant"),
    ("foreign sequences", CLOUD, lambda given: given.states(foreign=1), "foreign sequences"),
    ("offline from a trickle", CLOUD, offline_trickle, "at least 8 concurrent requests"),
    (
        "offline with empty slots",
        CLOUD,
        offline_burst_that_never_filled_the_slots,
        "offline needs a batch of 8",
    ),
    ("one by one, n=4", CLOUD, one_by_one_for_several_sequences, "requires several requests"),
    ("a model that is not served", CLOUD, another_model, "the engine serves small"),
    ("a stale state", CLOUD, lambda given: given.ended(age_ms=60_000), "60000 ms old"),
    ("a state of no engine", CLOUD, lambda given: given.ended(state="stale"), "was stale after"),
    ("a first state from within the run", GUIDE, saved_during_the_run, "the run began at"),
    ("a last state from within the run", GUIDE, saved_before_the_end, "the run ended at"),
    ("states too close together", CLOUD, longer_than_the_states_are_apart, "s apart, but the run"),
    ("a tenth of the duration", CLOUD, shortened, "the engine was busy for 13.2 s"),
    ("twice the tokens", CLOUD, twice_the_tokens, "tokens in the window, but this measurement"),
    ("eight times the prompts", CLOUD, eight_times_the_prompts, "prompt tokens in the window and"),
    # Beyond the ways that are known to have been tried:
    ("every request a tenth as long", CLOUD, compressed, "the engine was busy for 13.2 s"),
    ("the file of another day", CLOUD, changed(date="20261123-213438"), "in some time zone"),
    ("the file of another minute", CLOUD, changed(date="20261121-214038"), "in some time zone"),
    (
        "an engine that was reconfigured",
        CLOUD,
        lambda given: given.ended(conditions=CONDITIONS),
        "its configuration changed",
    ),
    ("other weights", CLOUD, lambda given: given.ended(weights="/models/other"), "model or its"),
    ("a first token after the last", CLOUD, first_token_after_the_last, "from 0 to the latency"),
    (
        "a first token after the last",
        GUIDE,
        first_token_after_the_last_in_guidellm,
        "must not be after the last token",
    ),
    (
        "drafts of an engine that makes none",
        CLOUD,
        changed(spec_decode_acceptance_length=2.5),
        "speculative decoding, which the engine does not do",
    ),
)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [each[1:] for each in IMPORTS],
    ids=[f"{each[0]} ({each[1]})" for each in IMPORTS],
)
def test_file_that_did_not_earn_its_label_makes_no_row(
    name: str, change: Callable[[Files], None], reason: str
) -> None:
    assert isinstance(outcome(name, files(name)), Row), "the file as it was recorded"
    given = files(name)
    change(given)
    found = outcome(name, given)
    assert isinstance(found, Rejection), found
    assert reason in str(found)


def test_file_whose_tokens_are_those_of_the_engine_makes_a_row() -> None:
    given = files(CLOUD)
    counted(given)
    assert outcome(CLOUD, given) == outcome(CLOUD, files(CLOUD))


def test_file_of_requests_for_several_sequences_has_no_tpot() -> None:
    """Its tokens per request are those of all sequences, and the length of none is known."""
    given = files(CLOUD)
    given.file |= {"request_rate": "inf", "max_concurrency": 2}
    made = outcome(CLOUD, given)
    assert isinstance(made, Row), made
    notes = parse_notes(made.scenario_notes)
    assert (notes["at_once"], notes["batch_max"]) == ("2", "5")
    assert "ttft_p50_ms" in notes
    assert [name for name in notes if name.startswith("tpot")] == []


CALLS, AT_ONCE = in_a_row(10), in_a_row(10, 0.0)
CLOSED = replace(ONLINE, arrivals=Arrivals.CLOSED_LOOP, rate_per_s=None, clients=4)
ALONE = replace(CLOSED, clients=1)
STEPS = {"1": [20, 0.2], "4": [20, 0.4]}
DONE = {"requests_total": 110, "steps_by_batch": STEPS}
OFFLINE_DONE = DONE | {"measurement_type": "offline", "profile": "offline"}
RUNS: Final[tuple[tuple[str, Scenario, Mapping[str, Any], str], ...]] = (
    ("a second client", CLOSED, DONE | {"requests_total": 111}, "served other clients"),
    ("coalesced answers", CLOSED, DONE | {"requests_total": 109}, "were shared (coalesced)"),
    ("an engine that was killed", CLOSED, DONE | {"epoch": "e2"}, "was restarted"),
    ("another profile", CLOSED, DONE | {"profile": "offline"}, "the profile changed"),
    ("another slot", CLOSED, DONE | {"slots_total": 9}, "the number of slots changed"),
    ("strangers afterwards", CLOSED, DONE | {"foreign": 1}, "foreign sequences in the engine"),
    ("more decoded", CLOSED, DONE | {"steps_by_batch": {"4": [60, 1]}}, "decoded at least 220"),
    ("nothing batched", CLOSED, DONE | {"steps_by_batch": {"1": [90, 1]}}, "nothing was batched"),
    ("single on cloud", SINGLE, DONE | {"pool": "home"}, "decoded up to 4 sequences"),
    ("one by one, n=4", ALONE, DONE, "the requests came one by one"),
    ("offline with empty slots", OFFLINE, OFFLINE_DONE, "offline needs a batch of 8"),
    ("drafts from now on", CLOSED, DONE | {"conditions": CONDITIONS}, "configuration changed"),
    ("other weights", CLOSED, DONE | {"weights": "/models/b"}, "configuration changed"),
)


@pytest.mark.parametrize(
    ("scenario", "after", "reason"), [each[1:] for each in RUNS], ids=[each[0] for each in RUNS]
)
def test_run_that_did_not_earn_its_label_is_invalid_and_makes_no_row(
    scenario: Scenario, after: Mapping[str, Any], reason: str
) -> None:
    calls = AT_ONCE if scenario is OFFLINE else CALLS
    assert result(calls, scenario).status is not Status.INVALID or scenario is ALONE
    engine = home if scenario is SINGLE else snapshot
    found = result(calls, scenario, after=engine(**after))
    assert found.status is Status.INVALID
    assert reason in "; ".join(found.reasons)
    with pytest.raises(NoFact):
        row_of(found)


def test_offline_run_that_memory_or_prompts_limited_keeps_its_label() -> None:
    """What the engine can do at most is what offline measures."""
    full = {"measurement_type": "offline", "requests_total": 110}
    limits: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({}, {"steps_by_batch": STEPS, "preemptions_total": 3}),
        ({"kv_tokens_total": 300}, {"steps_by_batch": STEPS, "kv_tokens_total": 300}),
        ({}, {"steps_by_batch": {"1": [20, 0.2], "4": [8, 0.4]}}),  # most steps read prompts
    )
    for before, after in limits:
        first = snapshot(measurement_type="offline", **before)
        found = result(AT_ONCE, OFFLINE, before=first, after=snapshot(**full | after))
        assert found.reasons == []
    roomy = {"kv_tokens_total": 3000}
    first = snapshot(measurement_type="offline", **roomy)
    found = result(
        AT_ONCE, OFFLINE, before=first, after=snapshot(**full | roomy | {"steps_by_batch": STEPS})
    )
    assert len(found.reasons) == 1


CLAIMS: Final = {
    "hardware": IdentityOverrides(gpu="NVIDIA H100", gpu_count=8),
    "a precision": IdentityOverrides(precision="BF16"),
    "an engine": IdentityOverrides(engine="vLLM 0.99.0"),
    "a model": IdentityOverrides(model_id="meta-llama/Llama-3.1-70B-Instruct"),
}


@pytest.mark.parametrize("given", CLAIMS.values(), ids=CLAIMS)
def test_claim_that_the_engine_contradicts_is_in_no_row(given: IdentityOverrides) -> None:
    """`measure` ends with these before anything is sent; what is reported wins in any case."""
    assert contradictions(snapshot(), given) != []
    made = result(CALLS, given=replace(given, model_id=None))
    row = row_of(made)
    assert (row.engine, row.gpu, row.gpu_count) == ("vLLM 0.32.0", "CPU (test)", 0)
    assert row.precision == "FP32"
    assert row.measurement_type is Label.BATCHED_ONLINE
