"""What a document reports for admission, and the rates and mean batches of several."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.admission.types import EngineReport, StepTime
from orch_sidecar.engine_state.document import InvalidReport
from orch_sidecar.engine_state.report import (
    FIELDS,
    StepHistory,
    decode_steps_of,
    models_of,
    report_of,
    step_time_of,
)
from vllm_plugin.contracts.kv_cache import KvCache, KvGroup

NEEDED: dict[str, Any] = {"epoch": "e", "slots_total": 4, "foreign": 1}
FIT: dict[str, Any] = {
    "t0_ms": 3.1, "c_ms": 0.4, "alpha": 0.8, "largest": 32, "samples": 512, "batches": 9,
    "error": 0.02, "quality": "good", "traffic": 1.5, "prompt_share": 0.25,
}  # fmt: skip

GROUPS: list[dict[str, Any]] = [
    {"block_tokens": 16},
    {"count": 5, "block_tokens": 16, "blocks_most": 65, "blocks_reading": 193, "blocks_extra": 1},
]


def test_document_of_an_older_engine_is_enough() -> None:
    assert report_of(NEEDED) == EngineReport("e", 4, 1)


def test_only_changes_of_what_a_report_is_read_from_concern_admission() -> None:
    class Noted(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return super().get(name, default)

        def __getitem__(self, name: str) -> Any:
            read.add(name)
            return super().__getitem__(name)

    read = set[str]()
    report_of(Noted(NEEDED | {"kv_blocks_total": 4096}))
    assert read == FIELDS


def test_all_known_fields_are_reported() -> None:
    document = NEEDED | {
        "ctx_max": 2048, "kv_cache_usage": 0.25, "kv_blocks_total": 4096, "kv_groups": GROUPS,
        "preemptions_total": 3, "prefilling": 2, "running": 4, "waiting": 2, "step_time": FIT,
        "batch_seen": 16,
        "prefill_tokens_per_s": 9000.5,
    }  # fmt: skip
    assert report_of(document) == EngineReport(
        "e",
        4,
        1,
        2048,
        KvCache(4096, (KvGroup(16), KvGroup(16, 65, 193, 1, 5))),
        0.25,
        3,
        16,
        StepTime(3.1, 0.4, 0.8, 32, traffic=1.5, prompt_share=0.25),
        9000.5,
        prefilling=2,
        waiting=2,
        scheduled=5,
    )


@pytest.mark.parametrize(
    ("workloads", "batch_seen"),
    [
        (["embedding", "pooling", "score", "rerank"], 4),
        (["classification"], 4),
        (["completion", "chat"], 2),
        (["completion", "pooling"], 2),
        ([], 2),
    ],
)
def test_engine_that_generates_nothing_has_no_batch_to_begin_with(
    workloads: list[str], batch_seen: int
) -> None:
    found = report_of(NEEDED | {"supported_workloads": workloads, "batch_seen": 2})
    assert found.batch_seen == batch_seen


def test_report_of_a_ready_engine_without_slots_is_invalid() -> None:
    with pytest.raises(InvalidReport, match="slots_total is 0"):
        report_of(NEEDED | {"slots_total": 0})


def test_cache_without_blocks_and_a_prefill_rate_of_zero_are_unknown() -> None:
    document = NEEDED | {"prefill_tokens_per_s": 0, "kv_blocks_total": 0, "kv_groups": GROUPS}
    assert report_of(document) == EngineReport("e", 4, 1)
    assert report_of(document | {"kv_blocks_total": 10, "kv_groups": []}).kv is None
    kept = report_of(document | {"kv_blocks_total": 10, "kv_blocks_kept": 2}).kv
    assert kept is not None
    assert kept.blocks_kept == 2


@pytest.mark.parametrize(
    ("features", "tokens"),
    [
        ({}, None),
        ({"max_num_batched_tokens": 2048}, 2048),
        ({"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 0}, 2048),
        ({"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 256}, 256),
        ({"long_prefill_token_threshold": 256}, 256),
        ({"max_num_batched_tokens": "many", "long_prefill_token_threshold": -1}, None),
    ],
)
def test_chunk_is_the_most_of_one_prompt_in_a_step(
    features: dict[str, Any], tokens: int | None
) -> None:
    assert report_of(NEEDED | {"features": features}).chunk_tokens == tokens


@pytest.mark.parametrize("poor", [{"largest": 0}, {"t0_ms": 0, "c_ms": 0}])
def test_a_fit_of_nothing_is_none(poor: dict[str, Any]) -> None:
    assert step_time_of({"step_time": FIT}) == StepTime(
        3.1, 0.4, 0.8, 32, traffic=1.5, prompt_share=0.25
    )
    assert step_time_of({"step_time": FIT | poor}) is None
    assert step_time_of({"step_time": None}) is step_time_of({}) is None


@pytest.mark.parametrize(("reported", "tokens"), [(1.6, 1.6), (0.5, 1.0), (2, 2.0)])
def test_step_makes_several_tokens_of_a_sequence_with_accepted_drafts(
    reported: float, tokens: float
) -> None:
    fit = {"step_time": FIT | {"tokens": reported}}
    assert step_time_of(fit) == StepTime(3.1, 0.4, 0.8, 32, tokens, traffic=1.5, prompt_share=0.25)


def test_steps_are_by_batch() -> None:
    assert decode_steps_of({"steps_by_batch": {"1": [5, 0.1], "12": [1, 2]}}) == [
        (1, 5, 0.1),
        (12, 1, 2),
    ]
    assert decode_steps_of({}) is None


def test_models_are_in_the_engines_order() -> None:
    assert models_of({"models": ["b", "a"]}) == ("b", "a")
    assert models_of({"models": []}) is models_of({}) is None


def test_a_poor_fit_is_marked() -> None:
    """It bounds a batch, and predicts nothing."""
    found = step_time_of({"step_time": FIT | {"quality": "poor"}})
    assert found is not None
    assert not found.good


CHANGES: list[dict[str, Any]] = [
    {"foreign": 3, "running": 2},
    {"step_time": FIT | {"t0_ms": 9.0}},
    {"step_time": None},
    {"kv_groups": GROUPS, "kv_blocks_total": 9},
    {"kv_blocks_kept": 3},
    {"features": {"max_num_batched_tokens": 64}},
    {"slots_total": 8, "contended": True, "sidecars": 3, "epoch": "f"},
    {"models": ["x"]},
]


@pytest.mark.parametrize("change", CHANGES)
def test_report_of_a_change_equals_that_of_the_whole_document(change: dict[str, Any]) -> None:
    features = {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 256}
    document = NEEDED | {
        "kv_blocks_total": 4096, "kv_groups": GROUPS[:1], "step_time": FIT, "features": features,
    }  # fmt: skip
    before = report_of(document)
    assert report_of(document | change, before, change) == report_of(document | change)


def test_what_did_not_change_is_not_computed_again() -> None:
    document = NEEDED | {"kv_blocks_total": 4096, "kv_groups": GROUPS, "step_time": FIT}
    before = report_of(document)
    after = report_of(document | {"foreign": 2}, before, {"foreign": 2})
    assert after.foreign == 2
    assert after.kv is before.kv
    assert after.step_time is before.step_time


def counts(steps: dict[str, int], epoch: str = "a") -> dict[str, Any]:
    return {
        "epoch": epoch,
        "steps_by_batch": {batch: [number, 0.01 * number] for batch, number in steps.items()},
    }


def history(*reports: tuple[float, dict[str, Any]]) -> StepHistory:
    made = StepHistory()
    for at, document in reports:
        made.add(document, at)
    return made


def test_nothing_is_known_before_the_first_report() -> None:
    assert StepHistory().mean_batch(0.0, 1.0) is None
    assert StepHistory().known_until < 0


def test_mean_batch_weighs_the_steps_of_the_time() -> None:
    made = history(
        (10.0, counts({"1": 10})),
        (12.0, counts({"1": 10, "4": 30})),
        (14.0, counts({"1": 10, "4": 30, "8": 10})),
    )
    assert made.mean_batch(10.0, 12.0) == 4.0
    assert made.mean_batch(11.0, 14.0) == pytest.approx((15 * 4 + 10 * 8) / 25, abs=0.05)
    assert made.known_until == 14.0


def test_mean_batch_is_unknown_outside_of_the_reports_and_without_steps() -> None:
    made = history((10.0, counts({"1": 10})), (11.0, counts({"1": 10})))
    assert made.mean_batch(9.0, 10.5) is None
    assert made.mean_batch(10.5, 11.5) is None
    assert made.mean_batch(10.2, 10.8) is None


def test_engine_that_restarted_begins_anew() -> None:
    made = history((10.0, counts({"1": 90})), (11.0, counts({"2": 3}, "b")))
    made.add(counts({"2": 6}, "b"), 12.0)
    assert made.mean_batch(10.5, 12.0) is None
    assert made.mean_batch(11.0, 12.0) == 2.0


def tokens_counted(tokens: int, epoch: str = "a") -> dict[str, Any]:
    return {
        "epoch": epoch,
        "generated_tokens_total": tokens,
        "prefill": {"tokens": 10 * tokens, "seconds": 1.0},
    }


def rates(*reports: tuple[float, dict[str, Any]]) -> StepHistory:
    made = StepHistory()
    for at, document in reports:
        made.add(document, at)
    return made


def test_token_rates_need_two_reports() -> None:
    for each in (StepHistory(), rates((1.0, tokens_counted(5)))):
        assert each.token_rates() == {"tokens_per_s": None, "prompt_tokens_per_s": None}


def test_token_rates_are_those_of_the_last_seconds() -> None:
    tokens = [100] * 5 + [100 * each for each in range(2, 9)]
    reports = [(float(at), tokens_counted(each)) for at, each in enumerate(tokens)]
    assert rates(*reports).token_rates() == {"tokens_per_s": 100.0, "prompt_tokens_per_s": 1000.0}
    apart = rates((0.0, tokens_counted(0)), (60.0, tokens_counted(600)))
    assert apart.token_rates()["tokens_per_s"] == 10.0


def test_token_rates_of_an_engine_that_restarted_begin_anew() -> None:
    made = rates((10.0, tokens_counted(900)), (11.0, tokens_counted(6, "b")))
    assert made.token_rates()["tokens_per_s"] is None
    made.add(tokens_counted(12, "b"), 12.0)
    assert made.token_rates()["tokens_per_s"] == 6.0
