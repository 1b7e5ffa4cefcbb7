"""Files of other tools that did not earn their label: recorded ones, altered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from orch_sidecar.tools.facts.evidence.imported import Rejection
from tests.orch_sidecar.tools.facts.cheats import Cheat, Gate, said_of
from tests.orch_sidecar.tools.facts.cheats.altered_files import (
    Files,
    another_model,
    changed,
    compressed,
    eight_times_the_prompts,
    files,
    first_token_after_the_last,
    first_token_after_the_last_in_guidellm,
    first_token_before_its_request_in_guidellm,
    first_token_in_a_million_years_in_guidellm,
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
    waited_less_than_nothing,
)

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
    (
        "cloud as single",
        CLOUD,
        changed(measurement_type="single_stream"),
        "must be one_by_one",
    ),
    (
        "cloud as offline",
        CLOUD,
        changed(measurement_type="offline"),
        "must be at_once or",
    ),
    (
        "home as batched",
        HOME,
        changed(measurement_type="batched_online"),
        "cannot be batched_online",
    ),
    ("inconsistent figures", CLOUD, changed(output_throughput=9999.0), "tokens over the duration"),
    ("a ramp-up", CLOUD, changed(ramp_up_strategy="linear"), "the rate must be constant"),
    ("foreign sequences", CLOUD, lambda given: given.states(foreign=1), "foreign sequences"),
    ("offline from a trickle", CLOUD, offline_trickle, "at_once=2 must be at least 8"),
    (
        "offline with empty slots",
        CLOUD,
        offline_burst_that_never_filled_the_slots,
        "offline needs a batch of 8",
    ),
    ("one by one, n=4", CLOUD, one_by_one_for_several_sequences, "came one by one"),
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
        "to the last token at",
    ),
    (
        "a first token before its request",
        GUIDE,
        first_token_before_its_request_in_guidellm,
        "when it was sent, to the last token",
    ),
    (
        "a first token at no time",
        GUIDE,
        first_token_in_a_million_years_in_guidellm,
        "should be less than 100000000000",
    ),
    ("a wait of less than nothing", CLOUD, waited_less_than_nothing, "greater than or equal to 0"),
    (
        "drafts of an engine that makes none",
        CLOUD,
        changed(spec_decode_acceptance_length=2.5),
        "speculative decoding, which the engine does not do",
    ),
)


def said(name: str, change: Callable[[Files], None]) -> Mapping[Gate, str]:
    given = files(name)
    change(given)
    found = outcome(name, given)
    return {Gate.IMPORT: str(found)} if isinstance(found, Rejection) else said_of(found)


CHEATS = [
    Cheat(f"{title} ({name})", {Gate.IMPORT: rule}, partial(said, name, change))
    for title, name, change, rule in IMPORTS
]
