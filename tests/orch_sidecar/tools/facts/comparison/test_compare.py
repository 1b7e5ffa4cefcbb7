"""Comparing facts that were measured under the same conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.facts.comparison.compare import Comparison, FigureRange, compare
from orch_sidecar.tools.facts.comparison.conditions import DIFFERENCES, Conditions, Loop
from orch_sidecar.tools.facts.comparison.report import as_document, as_text
from orch_sidecar.tools.facts.tables.check import LocatedRow, valid_rows
from orch_sidecar.tools.facts.tables.row import COLUMNS, Label, Row
from orch_sidecar.tools.facts.tables.table import Table, row_fields, with_records
from tests.orch_sidecar.tools.facts.rows import fact

SINGLE, ONLINE, OFFLINE = Label.SINGLE_STREAM, Label.BATCHED_ONLINE, Label.OFFLINE


def placed(*rows: Row, name: str = "t.csv") -> list[LocatedRow]:
    found = valid_rows(with_records(Table(name), [COLUMNS, *map(row_fields, rows)]))
    assert len(found) == len(rows)
    return found


def compared(*rows: Row) -> Comparison:
    return compare(placed(*rows))


def at(batch: int, tokens_per_s: float, label: Label = ONLINE, **changes: Any) -> Row:
    changes.setdefault("source_tag", f"{label} {batch} {tokens_per_s}")
    return fact(label, batch=batch, throughput_tokens_per_sec=tokens_per_s, **changes)


def test_speedup_and_efficiency_are_relative_to_the_smallest_batch() -> None:
    [found] = compared(at(32, 1600), at(4, 400), at(8, 700)).sets
    assert [point.batch for point in found.points] == [4, 8, 32]
    assert [point.speedup for point in found.points] == [1, 1.75, 4]
    assert [point.efficiency for point in found.points] == [1, 0.875, 0.5]
    assert [point.tokens_per_s_per_sequence for point in found.points] == [100, 87.5, 50]


def test_several_rows_for_one_batch_count_as_their_median() -> None:
    rows = (at(2, 100), at(4, 190), at(4, 210), at(4, 150), at(2, 110))
    [found] = compared(*rows).sets
    two, four = found.points
    assert (two.rows, two.tokens_per_s) == (2, FigureRange(105, 100, 110))
    assert (four.rows, four.tokens_per_s) == (3, FigureRange(190, 150, 210))
    assert four.speedup == pytest.approx(190 / 105)


def test_single_stream_is_never_compared_with_a_batch() -> None:
    found = compared(at(1, 92.72, SINGLE), at(32, 2461.67), at(64, 3000, OFFLINE))
    assert [each.conditions.measurement_type for each in found.sets] == [SINGLE, ONLINE, OFFLINE]
    assert all(point.speedup == 1 for each in found.sets for point in each.points)
    [apart] = found.apart
    assert (apart.condition, apart.values) == ("measurement_type", (SINGLE, ONLINE, OFFLINE))


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("model_id", "other/model"),
        ("engine", "vLLM 0.33.0"),
        ("precision", "FP8"),
        ("gpu", "A100"),
        ("gpu_count", 2),
        ("input_tokens", 128),
        ("output_tokens", 128),
    ],
)
def test_rows_that_differ_in_a_condition_are_separate_sets(
    condition: str, value: str | int
) -> None:
    changes: dict[str, Any] = {condition: value}
    found = compared(at(2, 100), at(4, 180, **changes))
    assert len(found.sets) == 2
    assert [(each.condition, each.values[1]) for each in found.apart] == [(condition, value)]
    assert DIFFERENCES[condition] in as_text(found)


def test_sets_that_differ_in_two_conditions_are_not_listed() -> None:
    found = compared(at(2, 100), at(4, 180, gpu="A100", precision="FP8"))
    assert (len(found.sets), found.apart) == (2, ())


def test_names_notes_and_sources_do_not_separate_rows() -> None:
    [found] = compared(at(2, 100), at(4, 180, model_name="Llama", notes={"slots": 8})).sets
    assert len(found.points) == 2


def test_closed_and_open_loops_are_separate_sets() -> None:
    def came(batch: int, arrivals: str) -> Row:
        row = at(batch, 100.0 * batch)
        return replace(row, scenario_notes=f"{row.scenario_notes}; arrivals={arrivals}")

    found = compared(came(4, "closed_loop"), came(8, "closed_loop"), came(6, "poisson"))
    assert [len(each.points) for each in found.sets] == [2, 1]
    [apart] = found.apart
    assert (apart.condition, apart.values) == ("arrivals", (Loop.CLOSED, Loop.OPEN))
    assert "closed loop" in as_text(found)
    # Rows with other labels are separated by the label.
    label = compared(at(1, 90, SINGLE), came(4, "closed_loop"), came(6, "poisson")).apart[0]
    assert (label.condition, label.values) == ("measurement_type", (SINGLE, ONLINE))


def test_open_loops_make_one_set() -> None:
    def came(batch: int, arrivals: str) -> Row:
        return at(batch, 100.0 * batch, notes={"arrivals": arrivals})

    [found] = compared(came(4, "poisson"), came(6, "constant"), came(8, "trace")).sets
    assert (found.conditions.arrivals, len(found.points)) == (Loop.OPEN, 3)


@pytest.mark.parametrize("label", [ONLINE, Label.OFFLINE])
def test_row_without_arrivals_is_separate(label: Label) -> None:
    stated = at(4, 100, label, notes={"arrivals": "closed_loop"})
    silent = at(6, 90, label)
    once = at(8, 300, label, notes={"arrivals": "at_once"})
    found = compared(stated, silent, once)
    assert [len(each.points) for each in found.sets] == [1, 1, 1]
    [apart] = found.apart
    assert apart.values == (Loop.CLOSED, Loop.UNKNOWN, Loop.AT_ONCE)
    assert "closed loop, unknown, all at once" in as_text(found)


def test_every_condition_has_its_reason() -> None:
    assert tuple(DIFFERENCES) == Conditions.__match_args__


def test_row_to_be_confirmed_is_excluded_and_reported() -> None:
    found = compared(at(2, 100), at(4, 180, Label.TO_BE_CONFIRMED))
    [of_set] = found.sets
    assert [point.batch for point in of_set.points] == [2]
    [left_out] = found.left_out
    assert left_out.place == "t.csv:3"
    assert "excluded:\n  t.csv:3: to_be_confirmed" in as_text(found)


def test_repeated_row_counts_once() -> None:
    found = compare(placed(at(2, 100)) + placed(at(2, 100), at(4, 180), name="b.csv"))
    [of_set] = found.sets
    assert [point.rows for point in of_set.points] == [1, 1]
    assert [each.place for each in found.left_out] == ["b.csv:2"]


def test_ttft_is_the_median_of_the_rows_that_note_it() -> None:
    rows = (
        at(2, 100, notes={"ttft_p50_ms": 10.0, "ttft_p95_ms": 30.0}),
        at(2, 101, notes={"ttft_p50_ms": 20.0}),
        at(2, 102),
        at(4, 180),
    )
    [found] = compared(*rows).sets
    assert [(each.ttft_p50_ms, each.ttft_p95_ms) for each in found.points] == [
        (15, 30),
        (None, None),
    ]


def test_no_rows_make_no_set() -> None:
    assert compare([]) == Comparison((), (), ())


class TestReport:
    def test_set_is_a_table_with_its_conditions_above(self) -> None:
        text = as_text(compared(at(1, 92.72, SINGLE), at(8, 700), at(32, 1400)))
        assert text.splitlines()[:9] == [
            "meta-llama/Llama-3.1-8B-Instruct, vLLM 0.32.0, BF16, 1 x H100, "
            "512 tokens in, 512 tokens out, single_stream, engine settings unknown",
            "",
            "batch  rows  tokens/s    min    max  per sequence  speed-up  efficiency",
            "    1     1     92.72  92.72  92.72         92.72      1.00        1.00",
            "only one batch: there is no other to compare it with",
            "",
            "meta-llama/Llama-3.1-8B-Instruct, vLLM 0.32.0, BF16, 1 x H100, "
            "512 tokens in, 512 tokens out, batched_online, engine settings unknown",
            "",
            "batch  rows  tokens/s      min      max  per sequence  speed-up  efficiency",
        ]
        assert "   32     1   1400.00  1400.00  1400.00         43.75      2.00        0.50" in text
        assert "speed-up and efficiency relative to batch 8" in text

    def test_ttft_has_columns_where_a_row_notes_it(self) -> None:
        noted = as_text(compared(at(2, 100, notes={"ttft_p50_ms": 10.0}), at(4, 180)))
        assert "TTFT p50 ms  p95 ms" in noted
        assert noted.splitlines()[3].split()[-2:] == ["10.0", "-"]
        assert "TTFT" not in as_text(compared(at(2, 100)))

    def test_separated_sets_are_listed_by_condition(self) -> None:
        rows = (
            at(1, 90, SINGLE),
            at(2, 170),
            at(1, 80, SINGLE, gpu="A100"),
            at(2, 150, gpu="A100"),
        )
        text = as_text(compared(*rows))
        assert text.split("not compared")[1].splitlines()[1:] == [
            "  gpu: different accelerators",
            "    H100, A100 (single_stream)",
            "    H100, A100 (batched_online)",
            f"  measurement_type: {DIFFERENCES['measurement_type']}",
            "    single_stream, batched_online (H100)",
            "    single_stream, batched_online (A100)",
        ]

    def test_machine_without_accelerator_is_named(self) -> None:
        text = as_text(compared(at(2, 10, gpu="CPU (some Xeon)", gpu_count=0)))
        assert ", BF16, CPU (some Xeon), 512 tokens in" in text

    def test_document_has_every_field(self) -> None:
        found = as_document(compared(at(1, 92.72, SINGLE), at(8, 700), at(32, 1400)))
        assert found["sets"][1]["conditions"]["measurement_type"] == "batched_online"
        assert found["sets"][1]["points"][1] == {
            "batch": 32,
            "batch_mean": 32.0,
            "batch_max": None,
            "rows": 1,
            "tokens_per_s": {"median": 1400.0, "least": 1400.0, "most": 1400.0},
            "tokens_per_s_per_sequence": 43.75,
            "speedup": 2.0,
            "efficiency": 0.5,
            "ttft_p50_ms": None,
            "ttft_p95_ms": None,
        }
        assert found["apart"][0]["why"] == DIFFERENCES["measurement_type"]
        assert found["left_out"] == ()
