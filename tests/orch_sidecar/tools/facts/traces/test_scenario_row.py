"""Converting a scenario to a row: figures, notes and the names of its model."""

from __future__ import annotations

from typing import Any

from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.tables.row import Label, Row, parse_notes
from orch_sidecar.tools.facts.traces.scenarios import group_scenarios
from orch_sidecar.tools.facts.traces.spans import Span, Value
from orch_sidecar.tools.facts.traces.verdict import judge_scenario
from tests.orch_sidecar.tools.facts import spans as made
from tests.orch_sidecar.tools.facts.objections import judged
from tests.orch_sidecar.tools.facts.spans import ALONE, traffic_from

JAEGER = "jaeger:orch-sidecar"
RUN: dict[str, Value] = {"orch.scenario": "run-1"}


def one(number: int, start_s: float, end_s: float, **more: Any) -> list[Span]:
    """Returns a request that was alone in its engine."""
    return made.one(number, start_s, end_s, **{**ALONE, **more})


def many(number: int, start_s: float, end_s: float, **more: Any) -> list[Span]:
    """Returns a request for several sequences that shared their steps."""
    return made.one(number, start_s, end_s, **{"batch": (4, 4, 2.0), **more})


def row_of(*requests: list[Span], given: Source | None = None) -> Row:
    found = judged(*requests, given=given or Source(JAEGER))
    assert isinstance(found, Row), found
    return found


def objections_of(*requests: list[Span], given: Source | None = None) -> list[tuple[str, str]]:
    found = judged(*requests, given=given)
    assert isinstance(found, list)
    return [(each.reason.value, each.detail) for each in found]


def test_throughput_is_generated_tokens_over_first_arrival_to_last_end() -> None:
    row = row_of(
        many(1, 10, 17, sequences=3, tokens=(100, 10), batch=(9, 4, 3.0), server=RUN),
        many(2, 12, 20, sequences=3, tokens=(103, 20), batch=(19, 6, 4.0), server=RUN),
    )
    notes = parse_notes(row.scenario_notes)
    assert row == Row(
        model_id="model",
        model_name="model",
        engine="vLLM 0.32.0",
        precision="BF16",
        gpu="H100",
        gpu_count=1,
        batch=4,  # the mean, rounded
        input_tokens=102,  # 101.5, rounded
        output_tokens=45,
        throughput_tokens_per_sec=9.0,  # 90 tokens in 10 s
        measurement_type=Label.BATCHED_ONLINE,
        scenario_notes=row.scenario_notes,
        source_tag="jaeger:orch-sidecar/run-1",
    )
    assert list(notes)[:3] == ["input_tokens", "output_tokens", "batching"]
    assert notes == {
        "input_tokens": "102",
        "output_tokens": "45",
        "batching": "on",
        "scenario": "run-1",
        "requests": "2",
        "window_s": "10",
        "profile": "profile",
        "ttft_p50_ms": "3750",  # 3.5 s and 4 s
        "ttft_p95_ms": "3975",
        "tpot_p50_ms": "299.708",  # 3.5 s / 9 and 4 s / 19: per sequence
        "tpot_p95_ms": "379.971",
        "latency_p50_ms": "7500",  # 7 s and 8 s
        "latency_p90_ms": "7900",
        "latency_p95_ms": "7950",
        "batch_mean": "4",  # 76 sequences in 19 steps
        "batch_requests": "1.5",  # five of ten seconds were of both
        "batch_max": "6",
        "speculative": "none",
        "quantization": "none",
        "kv_cache_dtype": "bfloat16",
        "prefix_caching": "on",
        "attention_backend": "FLASH_ATTN",
        "tensor_parallel": "1",
        "pipeline_parallel": "1",
        "prefix_hit_ratio": "0",
        "preliminary": "yes",
    }


def test_without_an_id_the_start_names_it() -> None:
    row = row_of(one(1, 1_795_295_486.3957, 1_795_295_488))
    assert row.source_tag == "jaeger:orch-sidecar/2026-11-21T21:11:26.395Z"


def test_hits_that_the_engine_no_longer_remembers_are_no_note() -> None:
    forgotten: dict[str, Any] = {"orch.prefix_cache.hits_before": None}
    assert "prefix_hit_ratio" not in parse_notes(
        row_of(one(1, 0, 1, decode=forgotten)).scenario_notes
    )


def test_figure_of_one_rank_is_noted_as_such() -> None:
    rank: dict[str, Value] = {"orch.data_parallel": 8}
    assert parse_notes(row_of(one(1, 0, 1, decode=rank)).scenario_notes)["data_parallel"] == "8"
    whole: dict[str, Value] = {"orch.data_parallel": 1}
    assert "data_parallel" not in parse_notes(row_of(one(1, 0, 1, decode=whole)).scenario_notes)


def test_served_model_name_is_noted_where_the_id_differs() -> None:
    loaded: dict[str, Value] = {"orch.weights": "org/Model-1B"}
    row = row_of(one(1, 0, 1, decode=loaded), given=Source(JAEGER, model_id="org/Model-1B"))
    assert "given" not in parse_notes(row.scenario_notes)
    assert (row.model_id, row.model_name) == ("org/Model-1B", "Model-1B")
    assert parse_notes(row.scenario_notes)["served_as"] == "model"
    declared = Source(JAEGER, model_id="org/Model-1B", model_name="Model")
    named = row_of(one(1, 0, 1, decode=loaded), given=declared)
    assert named.model_name == "Model"
    assert parse_notes(named.scenario_notes)["given"] == "model_name"
    assert "given" not in parse_notes(row.scenario_notes)


def test_model_that_the_engine_does_not_serve_is_an_objection() -> None:
    assert objections_of(one(1, 0, 1), given=Source(JAEGER, model_id="org/Model-70B")) == [
        (
            "contradiction",
            "the model 'org/Model-70B': the engine serves model (loaded as model), not this",
        )
    ]


def test_path_is_rejected_as_a_model_id() -> None:
    path: dict[str, Value] = {"gen_ai.request.model": "/models/m"}
    served = one(1, 0, 1, server=path, decode={**path, "orch.weights": "/models/m"})
    [(reason, reasons)] = objections_of(served)
    assert (reason, "is a path" in reasons) == ("not_said", True)
    row = row_of(served, given=Source(JAEGER, model_id="m"))
    assert (row.model_id, parse_notes(row.scenario_notes)["given"]) == ("m", "model_id")
    # What was loaded has an id: no other is possible.
    loaded = one(1, 0, 1, server=path, decode={**path, "orch.weights": "org/m"})
    row = row_of(loaded, given=Source(JAEGER, model_id="org/m"))
    assert "given" not in parse_notes(row.scenario_notes)
    [(reason, _)] = objections_of(loaded, given=Source(JAEGER, model_id="m"))
    assert reason == "contradiction"


def test_only_complete_answers_count_and_the_others_are_noted() -> None:
    row = row_of(
        one(1, 0, 10, tokens=(10, 25), batch=(24, 1, 1.0)),
        one(2, 1, 99, outcome="cancelled"),
        one(3, 1, 99, outcome="engine_failed"),
        one(4, 1, 99, outcome="engine_timeout"),
        one(5, 1, 1, outcome="queue_full"),
    )
    notes = parse_notes(row.scenario_notes)
    assert row.throughput_tokens_per_sec == 2.5
    assert {name: notes.get(name) for name in ("requests", "failed", "cancelled", "refused")} == {
        "requests": "1",
        "failed": "2",
        "cancelled": "1",
        "refused": "1",
    }


def test_ttft_is_noted_only_where_every_answer_was_streamed() -> None:
    notes = parse_notes(row_of(one(1, 0, 2), one(2, 2, 3, stream=False)).scenario_notes)
    assert not {"ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms"} & set(notes)
    assert notes["latency_p50_ms"] == "1500"


def test_cut_scenario_notes_which_end_is_missing() -> None:
    traffic = traffic_from(*(one(number, number, number + 0.5) for number in range(1, 6)))
    ends = [(2, 4, "before,after"), (2, 9, "before"), (0, 4, "after"), (1, 5, None)]
    for first, last, cut in ends:
        [scenario] = group_scenarios(traffic, 60.0, first * 10**9, last * 10**9)
        row = judge_scenario(scenario, Source("s"))
        assert isinstance(row, Row)
        assert parse_notes(row.scenario_notes).get("cut") == cut


def test_invalid_row_is_an_objection() -> None:
    semicolon: dict[str, Value] = {"orch.scenario": "a;b"}
    [(reason, reasons)] = objections_of(one(1, 0, 1, server=semicolon))
    assert (reason, "scenario='a;b'" in reasons) == ("unsound_row", True)
    [(reason, reasons)] = objections_of(one(1, 5, 5))
    assert (reason, reasons) == (
        "unsound_row",
        "the window from the first arrival to the last end has no length",
    )
