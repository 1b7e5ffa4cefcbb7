"""Rows that were not measured alike are in no common figure, whatever their notes.

Each way was, or could be, a false median, ratio or division.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest

from orch_sidecar.tools.facts.comparison.compare import Comparison, Point, compare
from orch_sidecar.tools.facts.tables.notes import SETTINGS as DECLARED
from orch_sidecar.tools.facts.tables.row import Row
from tests.orch_sidecar.tools.facts.comparison import compared, located, text_of
from tests.orch_sidecar.tools.facts.rows import SETTINGS, fact

EVIDENCE = f"sha256:{64 * 'a'}"


def measured(tokens_per_s: float, batch: int = 8, **notes: Any) -> Row:
    """Returns a row of an engine that reports its settings; a note that is None is left out."""
    named = {**SETTINGS, "arrivals": "closed_loop", **notes}
    return fact(
        gpu_count=4,
        batch=batch,
        throughput_tokens_per_sec=tokens_per_s,
        source_tag=f"{tokens_per_s} {batch} {notes}",
        notes={name: value for name, value in named.items() if value is not None},
    )


def points(found: Comparison) -> list[Point]:
    return [point for each in found.sets for way in each.ways for point in way.points]


@dataclass(frozen=True)
class Way:
    """Two rows for one batch that differ in notes, and the condition in which they do.

    `values`: of the condition in each, where they are not those of its note. `in_text`: how the
    first of them reads.
    """

    name: str
    first: dict[str, Any]
    second: dict[str, Any]
    condition: str
    in_text: str
    values: tuple[str, ...] = ()

    @property
    def expected(self) -> tuple[str, ...]:
        noted = ({**SETTINGS, **each}.get(self.condition) for each in (self.first, self.second))
        return self.values or tuple("unknown" if each is None else str(each) for each in noted)


TRACE = "trace:0123456789abcdef"
WAYS: Final = (
    Way("a trace at half its times", {"arrivals": TRACE, "trace_time": "0.5"}, {"arrivals": TRACE},
        "traffic", "trace_time=0.5", (f"{TRACE} trace_time=0.5", TRACE)),
    Way("a trace beside bulk work", {"arrivals": TRACE, "bulk_clients": "8"}, {"arrivals": "trace"},
        "traffic", "bulk_clients=8", (f"{TRACE} bulk_clients=8", "none")),
    Way("speculative decoding beside plain decoding", {"speculative": "ngram:3"}, {},
        "speculative", "speculative decoding ngram:3"),
    Way("two drafts per step beside five", {"speculative": "eagle:2"}, {"speculative": "eagle:5"},
        "speculative", "speculative decoding eagle:2"),
    Way("quantized weights", {"quantization": "awq", "given": "precision"}, {"given": "precision"},
        "quantization", "quantization awq"),
    Way("a quantized KV cache", {"kv_cache_dtype": "fp8_e4m3"}, {}, "kv_cache_dtype",
        "KV cache fp8_e4m3"),
    Way("no prefix cache", {"prefix_caching": "off"}, {}, "prefix_caching", "prefix cache off"),
    Way("another attention backend", {"attention_backend": "FLASHINFER"}, {}, "attention_backend",
        "attention FLASHINFER"),
    Way("tensor parallel", {"tensor_parallel": 4}, {}, "tensor_parallel", "tensor parallel 4"),
    Way("pipeline parallel", {"pipeline_parallel": 2}, {}, "pipeline_parallel",
        "pipeline parallel 2"),
    Way("one rank of several", {"data_parallel": 8}, {"data_parallel": None}, "data_parallel",
        "one rank of data parallel 8", ("8", "1")),
    Way("one layer of four of the same folder", {"loaded": "0" * 16}, {"loaded": "1" * 16},
        "loaded", "loaded as 0000000000000000"),
    Way("dummy weights beside real ones", {"loaded": "dummy:" + "0" * 16}, {"loaded": "0" * 16},
        "loaded", "loaded as dummy:0000000000000000"),
    Way("random weights beside unknown ones", {"loaded": "random:" + "0" * 16}, {}, "loaded",
        "loaded as random:0000000000000000"),
    Way("scheduling between steps", {"async_scheduling": "off"}, {"async_scheduling": "on"},
        "async_scheduling", "asynchronous scheduling off"),
    Way("an eager engine", {"execution": "eager"}, {"execution": "vllm_compile+full"},
        "execution", "execution eager"),
    Way("a KV cache in the host's memory", {"kv_offload": "OffloadingConnector:8"},
        {"kv_offload": "none"}, "kv_offload", "KV offload OffloadingConnector:8"),
    Way("adapters", {"max_loras": 4}, {"max_loras": 0}, "max_loras", "LoRA adapters 4"),
    Way("a setting beside an older engine, which does not report it", {"max_loras": 0}, {},
        "max_loras", "LoRA adapters unknown"),
    Way("an engine that does not report it", {"speculative": None}, {}, "speculative",
        "speculative decoding unknown"),
    Way("one repeated prompt", {"prefix_hit_ratio": 0.97}, {}, "prefix_hit_ratio",
        "prefix cache hits about 100 %", ("about 100 %", "none")),
    Way("prompts that share a half", {"prefix_hit_ratio": 0.52}, {"prefix_hit_ratio": 0.9},
        "prefix_hit_ratio", "prefix cache hits about 50 %", ("about 50 %", "about 90 %")),
    Way("few hits", {"prefix_hit_ratio": 0.03}, {"prefix_hit_ratio": 0.009},
        "prefix_hit_ratio", "prefix cache hits below 5 %", ("below 5 %", "none")),
    Way("hits that are not reported", {"prefix_hit_ratio": None}, {}, "prefix_hit_ratio",
        "prefix cache hits unknown", ("unknown", "none")),
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_rows_that_were_not_measured_alike_make_no_common_median(way: Way) -> None:
    found = compared(measured(610, **way.first), measured(147, **way.second))
    assert [point.tokens_per_s.median for point in points(found)] == [610, 147]
    values = tuple(each.conditions[way.condition] for each in found.sets)
    assert values == way.expected
    text = text_of(found)
    assert way.in_text in text
    assert "378" not in text


LIMITS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "declared hardware": ({"given": "gpu,gpu_count"}, "gpu, gpu_count given by the user"),
    "a declared precision": ({"given": "precision"}, "precision given by the user"),
    "too short to be published": ({"preliminary": "yes"}, "preliminary"),
    "a part of a scenario": ({"cut": "before"}, "requests cut off"),
    "a client that was too slow": (
        {"client_bottleneck": "yes"},
        "the client may be the bottleneck",
    ),
    "another tool's run": ({"states": "unsigned"}, "states of the engine unsigned"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_rows_that_are_not_trusted_alike_are_points_of_their_own_with_a_remark(name: str) -> None:
    notes, remark = LIMITS[name]
    found = compared(measured(610), measured(147, **notes))
    assert len(found.sets) == 1
    assert [(each.tokens_per_s.median, each.remarks) for each in points(found)] == [
        (610, ()),
        (147, (remark,)),
    ]
    text = text_of(found)
    assert text.count(remark) == 1
    assert "378" not in text


@pytest.mark.parametrize("notes", [{"cut": "before"}, {"client_bottleneck": "yes"}])
def test_nothing_is_related_to_what_was_cut_or_limited_by_the_client(notes: dict[str, Any]) -> None:
    both = compared(measured(100, batch=2, **notes), measured(400, batch=8))
    assert [each.speedup for each in points(both)] == [None, 1]
    alone = compared(measured(100, batch=2, **notes))
    assert [each.speedup for each in points(alone)] == [None]
    assert ["Speed-up" in text_of(each) for each in (both, alone)] == [True, False]


def test_ways_cover_every_note_that_is_a_condition() -> None:
    noted = {each.name for each in DECLARED if not each.beside} | {"prefix_hit_ratio"}
    assert noted <= {way.condition for way in WAYS}


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("max_num_batched_tokens", (512, 8192), "steps of 512 tokens"),
        ("long_prefill_token_threshold", (256, 0), "long prompts by 256 tokens"),
        ("prefill_schedule_interval", (4, None), "prompts every 4 steps"),
    ],
)
def test_schedulers_that_are_set_up_otherwise_stand_side_by_side(
    name: str, values: tuple[int, int | None], words: str
) -> None:
    first: dict[str, Any] = {name: values[0]}
    second: dict[str, Any] = {name: values[1]}
    found = compared(measured(610, **first), measured(147, **second))
    assert len(found.sets) == 1
    assert [point.tokens_per_s.median for point in points(found)] in ([610, 147], [147, 610])
    text = text_of(found)
    assert words in text
    assert "steps of" not in text_of(compared(measured(610, **first))), "alone it is no word worth"
    assert "378" not in text


def test_same_conditions_are_one_set_however_they_are_spelled() -> None:
    rows = (
        measured(100, prefix_hit_ratio=0.0),
        measured(110, prefix_hit_ratio=0.0099),
        measured(120, tensor_parallel="1"),
    )
    [point] = points(compared(*rows))
    assert point.rows == 3
    declared = (measured(100, given="gpu,engine"), measured(110, given="engine,gpu"))
    assert len(points(compared(*declared))) == 1
    half_hit = (measured(100, prefix_hit_ratio=0.46), measured(110, prefix_hit_ratio=0.54))
    assert len(compared(*half_hit).sets) == 1


def test_rank_is_unknown_where_the_engines_configuration_is() -> None:
    [reported] = compared(measured(100)).sets
    nothing: dict[str, Any] = dict.fromkeys(SETTINGS)
    [silent] = compared(measured(100, **nothing)).sets
    found = tuple(each.conditions["data_parallel"] for each in (reported, silent))
    assert found == ("1", "unknown")


def test_no_hits_are_unknown_where_the_cache_is_off() -> None:
    [found] = compared(measured(100, prefix_caching="off", prefix_hit_ratio=None)).sets
    assert found.conditions["prefix_hit_ratio"] == "none"


def test_verified_evidence_is_apart_from_evidence_that_was_not_verified_and_from_none() -> None:
    rows = located(
        measured(100, evidence=EVIDENCE), measured(900, evidence=f"sha256:{64 * 'b'}"),
        measured(800),
    )  # fmt: skip
    found = compare(rows, {rows[0].row})
    assert [(each.rows, each.remarks) for each in points(found)] == [
        (2, ()),
        (1, ("evidence verified",)),
    ]
    assert text_of(found).count("evidence verified") == 1


class TestBatch:
    def test_open_loop_is_divided_by_its_mean_batch_and_not_by_its_largest(self) -> None:
        """Mean 1.65, peak 5: 170 tokens/s are 103 per sequence, not 34."""
        row = measured(170, batch=2, arrivals="poisson", batch_mean=1.65, batch_max=5)
        [point] = points(found := compared(row))
        assert (point.batch, point.batch_mean, point.batch_max) == (2, 1.65, 5)
        assert point.tokens_per_s_per_sequence == pytest.approx(170 / 1.65)
        header, values = text_of(found).splitlines()[3:5]
        assert header.split()[:4] == ["batching", "batch", "peak", "rows"]
        assert values.split()[4:7] == ["1.65", "5", "1"]
        assert "103.03" in values

    def test_means_that_round_to_one_batch_are_one_point(self) -> None:
        rows = (
            measured(200, batch=2, batch_mean=2.0, batch_max=2),
            measured(600, batch=8, batch_mean=7.8, batch_max=8),
            measured(620, batch=8, batch_mean=7.9, batch_max=9),
        )
        two, eight = points(compared(*rows))
        assert (eight.batch, eight.batch_max) == (8, 9)
        assert eight.batch_mean == pytest.approx(7.85)
        assert eight.tokens_per_s_per_sequence == pytest.approx(610 / 7.85)
        assert eight.speedup == pytest.approx(3.05)
        assert eight.efficiency == pytest.approx(3.05 / (7.85 / 2))
        assert two.efficiency == 1

    def test_row_without_the_mean_counts_by_its_column(self) -> None:
        [point] = points(found := compared(measured(200, batch=2)))
        assert (point.batch_mean, point.batch_max) == (2, None)
        assert "peak" not in text_of(found)


def test_usual_conditions_are_named_beside_another_one_only_and_unknown_ones_once() -> None:
    heading = text_of(compared(measured(100))).splitlines()[0]
    assert heading == (
        "meta-llama/Llama-3.1-8B-Instruct, vLLM 0.32.0, BF16, 4 x H100, 512 tokens in, "
        "512 tokens out, loaded as unknown"
    )
    text = text_of(compared(measured(100), measured(300, speculative="ngram:3")))
    assert "\n\nno speculative decoding\n" in text
    assert "\n\nspeculative decoding ngram:3\n" in text
    assert "quantization" not in text
    text = text_of(compared(fact(gpu_count=4), measured(100)))
    assert "512 tokens out, engine settings unknown\n" in text
