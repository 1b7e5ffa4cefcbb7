"""Comparing facts that were measured under the same conditions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from orch_sidecar.tools.drawing.picture import drawn
from orch_sidecar.tools.facts.comparison.compare import (
    LINEAR,
    Comparison,
    FigureRange,
    Point,
    charts_of,
    compare,
)
from orch_sidecar.tools.facts.comparison.conditions import CONDITIONS, bands
from orch_sidecar.tools.facts.tables.row import Label, Row
from tests.orch_sidecar.tools.facts.comparison import compared, located, text_of
from tests.orch_sidecar.tools.facts.comparison.real_names import sets
from tests.orch_sidecar.tools.facts.rows import SETTINGS, fact

SINGLE, ONLINE, OFFLINE = Label.SINGLE_STREAM, Label.BATCHED_ONLINE, Label.OFFLINE


def points(found: Comparison) -> tuple[Point, ...]:
    """Returns the points of a comparison of one set with one way."""
    [of_set] = found.sets
    [way] = of_set.ways
    return way.points


def ways(found: Comparison) -> list[str]:
    return [way.name for each in found.sets for way in each.ways]


def at(batch: int, tokens_per_s: float, label: Label = ONLINE, **changes: Any) -> Row:
    changes.setdefault("source_tag", f"{label} {batch} {tokens_per_s}")
    return fact(label, batch=batch, throughput_tokens_per_sec=tokens_per_s, **changes)


def test_speedup_and_efficiency_are_relative_to_the_smallest_batch() -> None:
    found = points(compared(at(32, 1600), at(4, 400), at(8, 700)))
    assert [point.batch for point in found] == [4, 8, 32]
    assert [point.speedup for point in found] == [1, 1.75, 4]
    assert [point.efficiency for point in found] == [1, 0.875, 0.5]
    assert [point.tokens_per_s_per_sequence for point in found] == [100, 87.5, 50]


def test_several_rows_for_one_batch_count_as_their_median() -> None:
    rows = (at(2, 100), at(4, 190), at(4, 210), at(4, 150), at(2, 110))
    two, four = points(compared(*rows))
    assert (two.rows, two.tokens_per_s) == (2, FigureRange(105, 100, 110))
    assert (four.rows, four.tokens_per_s) == (3, FigureRange(190, 150, 210))
    assert four.speedup == pytest.approx(190 / 105)


def test_ways_of_batching_stand_side_by_side_and_are_never_averaged() -> None:
    found = compared(at(1, 90, SINGLE), at(2, 150), at(32, 1800), at(64, 3600, OFFLINE))
    [of_set] = found.sets
    assert [way.measurement_type for way in of_set.ways] == [SINGLE, ONLINE, OFFLINE]
    assert [[each.speedup for each in way.points] for way in of_set.ways] == [[1], [1, 12], [1]]
    related = [each.over_single for way in of_set.ways for each in way.points]
    assert related == pytest.approx([1, 150 / 90, 20, 40])
    assert [point.over_single for point in points(compared(at(2, 150)))] == [None]
    setups = ({"max_num_batched_tokens": 512}, {"max_num_batched_tokens": 8192})
    singles = compared(*(at(1, 90 + n, SINGLE, notes=each) for n, each in enumerate(setups)))
    assert [way.points[0].over_single for way in singles.sets[0].ways] == [1, 91 / 90]


@pytest.mark.parametrize(
    ("condition", "value"),
    [("model_id", "other/model"), ("engine", "vLLM 0.33.0"), ("precision", "FP8"), ("gpu", "A100"),
     ("gpu_count", 2), ("input_tokens", 128), ("output_tokens", 128)],
)  # fmt: skip
def test_rows_that_differ_in_a_condition_are_separate_sets(
    condition: str, value: str | int
) -> None:
    changes: dict[str, Any] = {condition: value}
    [_, other] = compared(at(2, 100), at(4, 180, **changes)).sets
    assert other.conditions[condition] == str(value)


def test_lengths_that_differ_by_a_tenth_are_one_band() -> None:
    assert bands([512, 520, 563, 564, 32, 36, 37]) == {
        32: "32 to 36", 36: "32 to 36", 37: "37",
        512: "512 to 563", 520: "512 to 563", 563: "512 to 563", 564: "564",
    }  # fmt: skip
    rows = (at(2, 100), at(4, 180, input_tokens=515, output_tokens=500))
    found = compared(*rows)
    assert len(points(found)) == 2
    assert "512 to 515 tokens in, 500 to 512 tokens out" in text_of(found)


def came(batch: int, arrivals: str | None, label: Label = ONLINE) -> Row:
    notes = {} if arrivals is None else {"arrivals": arrivals}
    return at(batch, 100.0 * batch, label, notes=notes, source_tag=f"{label} {batch} {arrivals}")


def test_arrivals_stand_side_by_side_and_are_never_averaged() -> None:
    found = compared(
        came(4, "closed_loop"), came(8, "closed_loop"), came(4, "poisson"), came(4, None),
        came(4, "at_once", OFFLINE), came(4, "closed_loop", OFFLINE), came(1, "one_by_one", SINGLE),
        came(1, None, SINGLE),
    )  # fmt: skip
    [of_set] = found.sets
    assert [(way.name, len(way.points)) for way in of_set.ways] == [
        ("single_stream", 1), ("batched_online, open loop", 1), ("batched_online, closed loop", 2),
        ("batched_online, arrivals unknown", 1), ("offline, closed loop", 1), ("offline", 1),
    ]  # fmt: skip
    assert of_set.ways[0].points[0].rows == 2, "a single stream is a closed loop of one"


def test_row_to_be_confirmed_is_excluded_and_reported() -> None:
    found = compared(at(2, 100), at(4, 180, Label.TO_BE_CONFIRMED))
    assert [point.batch for point in points(found)] == [2]
    [left_out] = found.left_out
    assert left_out.place == "t.csv:3"
    assert "Excluded\n  t.csv:3: to_be_confirmed" in text_of(found)


def test_repeated_row_counts_once() -> None:
    found = compare(located(at(2, 100)) + located(at(2, 100), at(4, 180), name="b.csv"))
    assert [point.rows for point in points(found)] == [1, 1]
    assert [each.place for each in found.left_out] == ["b.csv:2"]


def test_ttft_is_the_median_of_the_rows_that_note_it() -> None:
    rows = (
        at(2, 100, notes={"ttft_p50_ms": 10.0, "ttft_p95_ms": 30.0}),
        at(2, 101, notes={"ttft_p50_ms": 20.0}),
        at(2, 102),
        at(4, 180),
    )
    found = points(compared(*rows))
    assert [(each.ttft_p50_ms, each.ttft_p95_ms) for each in found] == [(15, 30), (None, None)]


RUN = "20261121T211711Z-batched_online-4037a0"


def of_run(source_tag: str, tokens_per_s: float, **changes: Any) -> Row:
    """Returns the row of a closed loop of four, with the notes that each row of a run has."""
    scenario = {} if source_tag.startswith("orch-bench") else {"scenario": source_tag[20:]}
    notes = {
        "requests": 100, "window_s": round(51_200 / tokens_per_s, 3), "batch_mean": 4.0,
        "batch_max": 4, "arrivals": "closed_loop", "preliminary": "yes", **scenario,
    }  # fmt: skip
    return at(4, tokens_per_s, source_tag=source_tag, notes=notes, **changes)


def test_run_and_its_traces_meet_in_one_set_and_are_counted_once() -> None:
    rows = (
        of_run(f"orch-bench:{RUN}", 400.0),
        of_run(f"jaeger:orch-sidecar/{RUN}", 399.0, input_tokens=513),
        of_run("jaeger:orch-sidecar/other", 500.0),
    )
    [point] = points(found := compared(*rows))
    assert (point.rows, point.tokens_per_s.median) == (2, 450)
    assert [each.place for each in found.left_out] == ["t.csv:3"]
    assert "is of the same run as t.csv:2" in text_of(found)
    assert compare(located(*rows), {rows[1]}).left_out[0].place == "t.csv:2", "verified ones first"


def test_honest_rows_of_one_model_make_one_set() -> None:
    """A sweep, an open loop, a single user and an offline run, by the client and by traces; of
    lengths that differ a little, at two profiles, some of them short, and one by a slow client."""
    home, cloud = {"max_num_batched_tokens": 8192}, {"max_num_batched_tokens": 2048}
    found = compared(
        at(1, 92.0, SINGLE, notes=SETTINGS | home | {"arrivals": "one_by_one"}),
        at(1, 91.0, SINGLE, notes=SETTINGS | home, input_tokens=513),
        *(
            at(batch, 80.0 * batch, input_tokens=512 + batch, notes=SETTINGS | cloud | more
               | {"arrivals": "closed_loop"})
            for batch, more in ((2, {}), (4, {"preliminary": "yes"}), (8, {}),
                                (16, {"client_bottleneck": "yes"}))
        ),
        *(
            at(6, 470.0 + number, notes=SETTINGS | cloud | {"arrivals": kind})
            for number, kind in enumerate(("poisson", "constant", "open_loop", "trace"))
        ),
        at(120, 5000.0, OFFLINE, notes=SETTINGS | cloud | {"arrivals": "at_once"}),
        at(120, 5010.0, OFFLINE, notes=SETTINGS | cloud | {"arrivals": "at_once"}),
    )  # fmt: skip
    [of_set] = found.sets
    assert [(way.name, sum(point.rows for point in way.points)) for way in of_set.ways] == [
        ("single_stream", 2), ("batched_online, open loop", 4), ("batched_online, closed loop", 4),
        ("offline", 2),
    ]  # fmt: skip
    assert found.left_out == ()


class TestReport:
    def test_set_is_a_table_with_its_conditions_above(self) -> None:
        text = text_of(compared(at(1, 92.72, SINGLE), at(8, 700), at(32, 1400)))
        heading = (
            "meta-llama/Llama-3.1-8B-Instruct, vLLM 0.32.0, BF16, 1 x H100, "
            "512 tokens in, 512 tokens out, engine settings unknown"
        )
        assert text.splitlines()[:7] == [
            heading,
            "",
            "Ways of batching",
            "   batching                          batch  rows  tokens/s  per sequence  speed-up  "
            "efficiency  x single",
            "A  single_stream                         1     1     92.72         92.72      1.00  "
            "      1.00      1.00",
            "B  batched_online, arrivals unknown      8     1    700.00         87.50      1.00  "
            "      1.00      7.55",
            "B  batched_online, arrivals unknown     32     1   1400.00         43.75      2.00  "
            "      0.50     15.10",
        ]

    def test_columns_are_those_that_a_row_has(self) -> None:
        noted = text_of(compared(at(2, 100, notes={"ttft_p50_ms": 10.0}), at(4, 180)))
        assert "TTFT p50 ms" in noted
        assert "p95 ms" not in noted
        assert noted.splitlines()[5].split()[-1] == "-"
        assert "min" not in noted.splitlines()[3].split()
        several = text_of(compared(at(2, 100), at(2, 110), at(4, 180)))
        assert several.splitlines()[3].split()[4:6] == ["min", "max"]

    def test_machine_without_accelerator_is_named(self) -> None:
        text = text_of(compared(at(2, 10, gpu="CPU (some Xeon)", gpu_count=0)))
        assert ", BF16, CPU (some Xeon), 512 tokens in" in text

    def test_document_has_every_field(self) -> None:
        found = asdict(compared(at(1, 92.72, SINGLE), at(8, 700), at(32, 1400, gpu="A100")))
        assert set(found["sets"][0]["conditions"]) == {each.name for each in CONDITIONS}
        [_, way] = found["sets"][0]["ways"]
        assert (way["measurement_type"], way["arrivals"]) == ("batched_online", "arrivals unknown")
        assert way["points"][0] == {
            "batch": 8,
            "batch_mean": 8.0,
            "batch_max": None,
            "rows": 1,
            "tokens_per_s": {"median": 700.0, "least": 700.0, "most": 700.0},
            "tokens_per_s_per_sequence": 87.5,
            "ttft_p50_ms": None,
            "ttft_p95_ms": None,
            "remarks": (),
            "speedup": 1.0,
            "efficiency": 1.0,
            "over_single": pytest.approx(7.55, abs=0.01),
        }
        assert found["left_out"] == ()


class TestCharts:
    def test_title_has_shared_conditions_and_names_the_others(self) -> None:
        found = compared(at(1, 90, SINGLE), at(2, 170), at(2, 150, gpu="A100"))
        assert found.headings[0] == (
            "meta-llama/Llama-3.1-8B-Instruct, vLLM 0.32.0, BF16, accelerators: 1, "
            "512 tokens in, 512 tokens out, engine settings unknown"
        )
        throughput = charts_of(found)[0].series
        assert [each.name for each in throughput] == [
            "A: H100, single_stream", "B: H100, batched_online, arrivals unknown",
            "C: A100, batched_online, arrivals unknown",
        ]  # fmt: skip
        assert [each.letter for each in throughput] == ["A", "B", "C"]
        assert [each.color for each in throughput] == [0, 0, 1], "a color is a set's"
        assert [each.line for each in throughput] == ["-", ":", ":"], "a line that of the arrivals"

    def test_curves_are_by_the_mean_batch(self) -> None:
        """An open loop's point lies where its steps were, not where its largest one was."""

        def measured(batch: int, mean: float, tokens_per_s: float, arrivals: str) -> Row:
            notes = {"batch_mean": mean, "batch_max": 2 * batch, "arrivals": arrivals}
            return at(batch, tokens_per_s, notes=notes)

        found = compared(
            measured(2, 2.5, 100.0, "closed_loop"), measured(10, 10.0, 360.0, "closed_loop"),
            measured(2, 1.65, 170.0, "poisson"),
        )  # fmt: skip
        throughput, speedup = charts_of(found)
        assert [(tuple(each.xs), tuple(each.ys)) for each in throughput.series] == [
            ((1.65,), (170,)), ((2.5, 10), (100, 360)),
        ]  # fmt: skip
        of_closed, linear = speedup.series
        assert (list(of_closed.xs), list(of_closed.ys)) == ([1, 4], [1, 3.6])
        assert (linear.name, linear.xs, linear.ys) == (LINEAR, [1, 4], [1, 4])
        assert speedup.x.log is speedup.y.log is True, "what is proportional is straight"

    def test_thirty_sets_have_a_letter_or_number_each(self) -> None:
        short = [{"preliminary": "yes"}] * 20 + [{}] * 10
        found = compared(*(at(2, 100, gpu=f"gpu {n}", notes=short[n]) for n in range(30)))
        letters = [each.letter for each in charts_of(found)[0].series]
        assert (letters[0], letters[25], letters[26]) == ("A", "Z", "27")
        assert charts_of(found)[0].explained == [], "too many for a legend"
        assert "preliminary: 20 points; letters as in the tables" in charts_of(found)[0].about

    @pytest.mark.parametrize("count", [1, 2, 4, 16])
    def test_real_names_are_drawn_without_a_warning(self, count: int) -> None:
        found = sets(count)
        assert len(drawn(".svg", found.headings[0], charts_of(found))) > 5000
