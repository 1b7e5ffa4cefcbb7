"""Rows of scenarios, recorded and constructed: figures, conditions and the names of the model."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.tables.notes import RowNotes
from orch_sidecar.tools.facts.tables.row import Label, Row, parse_notes
from orch_sidecar.tools.facts.traces.spans import Span, Value
from tests.orch_sidecar.tools.facts.cheats.alterations import (
    ATTEMPT,
    SEQUENCE,
    SERVER,
    Alteration,
    both,
    changed,
    copied,
    moved,
    raised,
    reasons,
    recounted,
    set_to,
    verdict,
)
from tests.orch_sidecar.tools.facts.objections import judged
from tests.orch_sidecar.tools.facts.spans import alone, one

JAEGER = "jaeger:orch-sidecar"
RUN: dict[str, Value] = {"orch.scenario": "run-1"}


def many(number: int, start_s: float, end_s: float, **more: Any) -> list[Span]:
    """Returns a request for several sequences that shared their steps."""
    return one(number, start_s, end_s, **{"batch": (4, 4, 2.0), **more})


def row_of(*requests: list[Span], given: Source | None = None) -> Row:
    found = judged(*requests, given=given or Source(JAEGER))
    assert isinstance(found, Row), found
    return found


def notes_of(*requests: list[Span], **given: Any) -> RowNotes:
    return parse_notes(row_of(*requests, **given).scenario_notes)


def recorded(name: str, *alterations: Alteration) -> RowNotes:
    """Returns the notes of the row of a recording."""
    found = verdict(name, *alterations)
    assert isinstance(found, Row), found
    return parse_notes(found.scenario_notes)


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
    row = row_of(alone(1, 1_795_295_486.3957, 1_795_295_488))
    assert row.source_tag == "jaeger:orch-sidecar/2026-11-21T21:11:26.395Z"


@pytest.mark.parametrize(
    ("decode", "note", "expected"),
    [
        # Hits that the engine no longer remembers.
        ({"orch.prefix_cache.hits_before": None}, "prefix_hit_ratio", None),
        # A figure of one rank.
        ({"orch.data_parallel": 8}, "data_parallel", "8"),
        ({"orch.data_parallel": 1}, "data_parallel", None),
        ({"orch.speculative": "ngram:3", "orch.tokens_per_step": 4}, "speculative", "ngram:3"),
    ],
)
def test_conditions_are_notes(decode: dict[str, Any], note: str, expected: str | None) -> None:
    assert notes_of(alone(1, 0, 1, decode=decode)).get(note) == expected


# The id of a model that is a path; what was loaded may have another.
PATH: dict[str, Value] = {"gen_ai.request.model": "/models/m"}


@pytest.mark.parametrize(
    ("loaded", "server", "given", "names"),
    [
        ("org/Model-1B", {}, ("org/Model-1B", None), ("org/Model-1B", "Model-1B", "model", None)),
        ("org/Model-1B", {}, ("org/Model-1B", "Model"),
         ("org/Model-1B", "Model", "model", "model_name")),
        ("/models/m", PATH, ("m", None), ("m", "m", "/models/m", "model_id")),
        ("org/m", PATH, ("org/m", None), ("org/m", "m", "/models/m", None)),
    ],
)  # fmt: skip
def test_names_of_the_model_are_those_of_the_engine_or_noted_as_given(
    loaded: str,
    server: dict[str, Value],
    given: tuple[str, str | None],
    names: tuple[str | None, ...],
) -> None:
    served = alone(1, 0, 1, server=server, decode={**server, "orch.weights": loaded})
    row = row_of(served, given=Source(JAEGER, *given))
    notes = parse_notes(row.scenario_notes)
    assert (row.model_id, row.model_name, notes["served_as"], notes.get("given")) == names


@pytest.mark.parametrize(
    ("loaded", "server", "model_id", "expected"),
    [
        ("model", {}, "org/Model-70B", ("contradiction", "the model 'org/Model-70B': the engine "
                                        "serves model (loaded as model), not this")),
        ("/models/m", PATH, None, ("not_said", "the model '/models/m': is a path: name the model "
                                   "with --model-id")),
        # What was loaded has an id: no other is possible.
        ("org/m", PATH, "m", ("contradiction", "the model 'm': the engine serves /models/m (loaded "
                              "as org/m), not this")),
    ],
)  # fmt: skip
def test_model_that_the_engine_does_not_serve_or_a_path_makes_no_row(
    loaded: str, server: dict[str, Value], model_id: str | None, expected: tuple[str, str]
) -> None:
    served = alone(1, 0, 1, server=server, decode={**server, "orch.weights": loaded})
    assert objections_of(served, given=Source(JAEGER, model_id=model_id)) == [expected]


def test_only_complete_answers_count_and_the_others_are_noted() -> None:
    row = row_of(
        alone(1, 0, 10, tokens=(10, 25), batch=(24, 1, 1.0)),
        alone(2, 1, 99, outcome="cancelled"),
        alone(3, 1, 99, outcome="engine_failed"),
        alone(4, 1, 99, outcome="engine_timeout"),
        alone(5, 1, 1, outcome="queue_full"),
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
    notes = notes_of(alone(1, 0, 2), alone(2, 2, 3, stream=False))
    assert not {"ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms"} & set(notes)
    assert notes["latency_p50_ms"] == "1500"


def test_invalid_row_is_an_objection() -> None:
    semicolon: dict[str, Value] = {"orch.scenario": "a;b"}
    [(reason, reasons)] = objections_of(alone(1, 0, 1, server=semicolon))
    assert (reason, "scenario='a;b'" in reasons) == ("unsound_row", True)
    [(reason, reasons)] = objections_of(alone(1, 5, 5))
    assert (reason, reasons) == (
        "unsound_row",
        "the window from the first arrival to the last end has no length",
    )


# Rows of recorded scenarios.
def test_clocks_are_compared_by_how_much_they_differ() -> None:
    found = verdict("home", moved(-100, SEQUENCE))
    assert isinstance(found, list)
    [clocks] = [each.detail for each in found if "clock" in each.detail]
    assert re.match(r"5 of its sequences lie outside of their requests by up to 99\.99\d s", clocks)
    assert reasons(verdict("home", moved(-0.9, SEQUENCE))) == set()


def test_hits_of_the_prefix_cache_are_a_note() -> None:
    assert recorded("home")["prefix_hit_ratio"] == "0"
    # 23 + 22 + 22 + 3 + 3 tokens of prompts; the second and third were cached but for six tokens.
    hits = both(
        *(
            raised(f"orch.prefix_cache.hits_{at}", 16, later)
            for first in (1, 2)
            for at, later in (("total", range(first, 5)), ("before", range(first + 1, 5)))
        ),
    )
    notes = recorded("home", hits)
    assert notes["prefix_hit_ratio"] == f"{32 / 73:.6g}"


def test_batch_is_the_mean_over_the_decode_steps() -> None:
    notes = recorded("cloud")
    assert (notes["batch_mean"], notes["batch_max"]) == (f"{157 / 28:.6g}", "6")


def test_request_ends_with_its_last_token() -> None:
    """The end of HTTP can come much later."""
    last_s = 0.2
    ends = both(
        set_to(SERVER, {"orch.last_token_s": last_s}),
        *(
            changed(name, lambda span: replace(span, end_ns=span.end_ns + 5 * 10**9))
            for name in (SERVER, ATTEMPT)
        ),
    )
    notes = recorded("cloud", ends)
    assert (notes["latency_p50_ms"], notes["window_s"]) == ("200", "0.206")


def test_offline_row_has_no_latencies() -> None:
    notes = recorded("offline")
    assert [name for name in notes if name.endswith("_ms")] == []


def test_time_per_token_of_several_sequences_is_that_of_one() -> None:
    """A request for two sequences, beside those of a recorded run."""
    sequence = "f" * 16

    def doubled(spans: list[Span]) -> list[Span]:
        copies = [replace(span, span_id=sequence) for span in spans if span.name == SEQUENCE]
        return [*spans, *copies]

    two = both(
        *(copied(n, 0.0, doubled, set_to(SERVER, {"orch.cost": 2}), keep=False) for n in (0,)),
        set_to(SEQUENCE, {"orch.batch_size.max": 7, "orch.batch_size.mean": 6.5}),
        recounted,
    )
    times = [float(recorded("cloud", *each)["tpot_p50_ms"]) for each in ((), (two,))]
    assert times[1] == pytest.approx(times[0], rel=0.01)
