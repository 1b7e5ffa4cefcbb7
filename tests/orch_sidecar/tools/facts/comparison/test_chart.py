"""Converting a comparison to a chart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.facts.comparison.chart import LINEAR, STYLES, Chart, chart_of
from orch_sidecar.tools.facts.comparison.compare import compare
from orch_sidecar.tools.facts.comparison.series import Kind
from orch_sidecar.tools.facts.tables.check import LocatedRow, valid_rows
from orch_sidecar.tools.facts.tables.row import COLUMNS, Label, Row
from orch_sidecar.tools.facts.tables.table import Table, row_fields, with_records
from tests.orch_sidecar.tools.facts.rows import fact

SINGLE, ONLINE = Label.SINGLE_STREAM, Label.BATCHED_ONLINE


def placed(*rows: Row) -> list[LocatedRow]:
    return valid_rows(with_records(Table("t.csv"), [COLUMNS, *map(row_fields, rows)]))


def shown(*rows: Row) -> Chart:
    return chart_of(compare(placed(*rows)))


def test_title_has_shared_conditions_and_rows_the_others() -> None:
    chart = shown(fact(SINGLE), fact(), fact(gpu="A100"))
    assert chart.title == (
        "meta-llama/Llama-3.1-8B-Instruct, vLLM 0.32.0, BF16, 1 accelerator, "
        "512 tokens in, 512 tokens out, engine settings unknown"
    )
    assert [(row.letter, row.name) for row in chart.rows] == [
        ("A", "H100, single_stream"),
        ("B", "H100, batched_online"),
        ("C", "A100, batched_online"),
    ]


def test_row_of_a_single_set_has_the_way_of_batching() -> None:
    chart = shown(fact())
    assert [row.name for row in chart.rows] == ["batched_online"]
    assert "1 x H100" in chart.title
    assert "batched_online" not in chart.title


def test_way_of_batching_that_all_sets_share_is_in_the_title() -> None:
    chart = shown(fact(), fact(gpu="A100"))
    assert [row.name for row in chart.rows] == ["H100", "A100"]
    assert "batched_online" in chart.title


def test_each_measurement_type_has_a_line_and_a_marker_of_its_own() -> None:
    assert set(STYLES) == set(Label) - {Label.TO_BE_CONFIRMED}
    assert len({look.line for look in STYLES.values()}) == len(STYLES)
    assert len({look.marker for look in STYLES.values()}) == len(STYLES)


def test_color_is_the_machines_and_line_style_the_measurement_types() -> None:
    rows = (fact(SINGLE), fact(), fact(SINGLE, gpu="A100"), fact(gpu="A100"))
    styles = [row.style for row in shown(*rows).rows]
    assert [style.color for style in styles] == [0, 0, 1, 1]
    assert [replace(style, color=0) for style in styles] == 2 * [STYLES[SINGLE], STYLES[ONLINE]]


def test_sets_of_one_batch_have_no_curves() -> None:
    assert shown(fact(), fact(gpu="A100")).panels == ()


def at(batch: int, mean: float, tokens_per_s: float, **changes: Any) -> Row:
    notes = {
        "batch_mean": mean,
        "batch_max": 2 * batch,
        "arrivals": changes.pop("arrivals", "closed_loop"),
    }
    return fact(batch=batch, throughput_tokens_per_sec=tokens_per_s, notes=notes, **changes)


def test_curves_are_by_the_mean_batch() -> None:
    """An open loop's point lies where its steps were, not where its largest one was."""
    closed = (at(2, 2.5, 100.0), at(10, 10.0, 360.0))
    throughput, speedup = shown(*closed, at(2, 1.65, 170.0, arrivals="poisson")).panels
    assert [(series.letter, series.xs, series.ys) for series in throughput.series] == [
        ("A", (2.5, 10), (100, 360)),
        ("B", (1.65,), (170,)),
    ]
    of_closed, linear = speedup.series
    assert (of_closed.letter, of_closed.xs, of_closed.ys) == ("A", (1, 4), (1, 3.6))
    assert (linear.name, linear.kind, linear.xs, linear.ys) == (LINEAR, Kind.CURVE, (1, 4), (1, 4))
    # Otherwise what is proportional would be bent.
    assert speedup.same_scale


def test_sets_have_a_letter_or_number_each() -> None:
    rows = shown(*(fact(gpu=f"gpu {number}") for number in range(30))).rows
    letters = [row.letter for row in rows]
    assert (letters[0], letters[25], letters[26]) == ("A", "Z", "27")


def test_comparison_without_a_set_is_rejected() -> None:
    with pytest.raises(ValueError, match="no set to draw"):
        chart_of(compare([]))
