"""An engine's document in, a report for admission out."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.admission.ask import EngineReport, StepTime
from orch_sidecar.report import number, report_of, step_time_of, texts

NEEDED: dict[str, Any] = {"epoch": "e", "slots_total": 4, "foreign": 1}
FIT: dict[str, Any] = {
    "t0_ms": 3.1, "c_ms": 0.4, "alpha": 0.8, "largest": 32, "samples": 512, "batches": 9,
    "error": 0.02, "quality": "good",
}  # fmt: skip


def test_document_of_an_older_engine_is_enough() -> None:
    assert report_of(NEEDED) == EngineReport("e", 4, 1)


def test_everything_that_is_known_is_reported() -> None:
    document = NEEDED | {
        "ctx_max": 2048, "kv_tokens_total": 65536, "kv_cache_usage": 0.25,
        "preemptions_total": 3, "prefilling": 2, "running": 4, "waiting": 2, "step_time": FIT,
        "prefill_tokens_per_s": 9000.5,
    }  # fmt: skip
    assert report_of(document) == EngineReport(
        "e",
        4,
        1,
        2048,
        65536,
        0.25,
        3,
        StepTime(3.1, 0.4, 0.8, 32),
        9000.5,
        prefilling=2,
        scheduled=5,
    )


@pytest.mark.parametrize("name", NEEDED)
def test_report_without_what_is_needed_is_none(name: str) -> None:
    with pytest.raises(KeyError):
        report_of({key: value for key, value in NEEDED.items() if key != name})


@pytest.mark.parametrize(
    "wrong",
    [
        {"slots_total": "4"}, {"slots_total": 4.0}, {"slots_total": True}, {"slots_total": 0},
        {"foreign": None}, {"foreign": -1},
    ],
)  # fmt: skip
def test_slots_that_are_no_count_are_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        report_of(NEEDED | wrong)


@pytest.mark.parametrize("wrong", ["x", [], {}, None, True, -1, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "name",
    ["ctx_max", "kv_tokens_total", "kv_cache_usage", "preemptions_total", "step_time",
     "prefill_tokens_per_s", "prefilling"],
)  # fmt: skip
def test_optional_field_that_is_not_what_it_should_be_is_not_said(name: str, wrong: Any) -> None:
    assert report_of(NEEDED | {name: wrong}) == EngineReport("e", 4, 1)


def test_usage_above_the_whole_is_the_whole() -> None:
    assert report_of(NEEDED | {"kv_cache_usage": 1.7}).kv_usage == 1.0


def test_prefill_rate_of_zero_is_unknown() -> None:
    assert report_of(NEEDED | {"prefill_tokens_per_s": 0}).prefill_tokens_per_s is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"quality": "poor"}, {"quality": None}, {"t0_ms": "3"}, {"c_ms": -1}, {"alpha": None},
        {"largest": 0}, {"largest": 2.5}, {"t0_ms": 0, "c_ms": 0},
    ],
)  # fmt: skip
def test_only_a_good_fit_is_believed(wrong: dict[str, Any]) -> None:
    assert step_time_of(FIT) == StepTime(3.1, 0.4, 0.8, 32)
    assert step_time_of(FIT | wrong) is None


def test_numbers_are_finite_and_not_negative() -> None:
    document = {"a": 1, "b": 2.5, "c": True, "d": "1", "e": 10**400, "f": -0.1}
    assert [number(document, name) for name in "abcdefg"] == [
        1.0,
        2.5,
        None,
        None,
        None,
        None,
        None,
    ]


def test_texts_are_those_of_a_list() -> None:
    assert texts({"m": ["a", "b", 3, None]}, "m") == {"a", "b"}
    assert texts({"m": "ab"}, "m") == texts({}, "m") == frozenset()
