"""Converting a comparison to the panels of a plot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orch_sidecar.tools.facts.comparison.compare import compare
from orch_sidecar.tools.facts.comparison.panels import STYLES, title_and_panels
from orch_sidecar.tools.facts.comparison.plot import Panel, draw
from orch_sidecar.tools.facts.tables.check import LocatedRow, valid_rows
from orch_sidecar.tools.facts.tables.row import COLUMNS, Label, Row
from orch_sidecar.tools.facts.tables.table import Table, row_fields, with_records
from tests.orch_sidecar.tools.facts.rows import fact

SINGLE, ONLINE = Label.SINGLE_STREAM, Label.BATCHED_ONLINE


def placed(*rows: Row) -> list[LocatedRow]:
    return valid_rows(with_records(Table("t.csv"), [COLUMNS, *map(row_fields, rows)]))


def shown(*rows: Row) -> tuple[str, list[Panel]]:
    return title_and_panels(compare(placed(*rows)))


def test_title_has_shared_conditions_and_legend_the_others() -> None:
    title, [panel] = shown(fact(SINGLE), fact(), fact(gpu="A100"))
    assert title == (
        "meta-llama/Llama-3.1-8B-Instruct, vLLM 0.32.0, BF16, 1 accelerator, "
        "512 tokens in, 512 tokens out"
    )
    assert [(series.letter, series.name) for series in panel.series] == [
        ("A", "H100, single_stream"),
        ("B", "H100, batched_online"),
        ("C", "A100, batched_online"),
    ]


def test_legend_of_a_single_set_has_the_way_of_batching() -> None:
    title, [panel] = shown(fact())
    assert [series.name for series in panel.series] == ["batched_online"]
    assert "1 x H100" in title
    assert "batched_online" not in title


def test_each_measurement_type_has_a_line_and_a_marker_of_its_own() -> None:
    assert set(STYLES) == set(Label) - {Label.TO_BE_CONFIRMED}
    assert len({look.line for look in STYLES.values()}) == len(STYLES)
    assert len({look.marker for look in STYLES.values()}) == len(STYLES)


def test_color_is_the_machines_and_line_style_the_measurement_types() -> None:
    rows = (fact(SINGLE), fact(), fact(SINGLE, gpu="A100"), fact(gpu="A100"))
    _, [panel] = shown(*rows)
    styles = [series.style for series in panel.series]
    assert [style.color for style in styles] == [0, 0, 1, 1]
    assert [replace(style, color=0) for style in styles] == 2 * [STYLES[SINGLE], STYLES[ONLINE]]


def test_points_are_medians_with_the_range_of_several_rows() -> None:
    figures = (100.0, 120.0, 110.0)
    rows = [fact(batch=2, throughput_tokens_per_sec=each) for each in figures]
    _, [panel] = shown(*rows, fact(batch=4, throughput_tokens_per_sec=200.0))
    [series] = panel.series
    assert (series.xs, series.ys) == ((2, 4), (110, 200))
    assert series.ranges == ((100, 120), (200, 200))
    assert series.name == "batched_online (median, min to max)"


def test_ttft_has_a_panel_with_hollow_markers_for_the_p95() -> None:
    rows = (
        fact(batch=2, notes={"ttft_p50_ms": 10.0, "ttft_p95_ms": 30.0}),
        fact(batch=4, notes={"ttft_p50_ms": 12.0}),
        fact(SINGLE),
    )
    _, panels = shown(*rows)
    assert [panel.y_label for panel in panels] == ["generated tokens/s", "TTFT (ms)"]
    p50, p95 = panels[1].series
    assert (p50.name, p50.xs, p50.ys) == ("batched_online, p50", (2, 4), (10, 12))
    assert (p95.name, p95.xs, p95.ys) == ("batched_online, p95", (2,), (30,))
    assert (p50.style.hollow, p95.style.hollow) == (False, True)
    assert p50.letter == panels[0].series[0].letter == "A"


def test_many_sets_are_drawn_with_a_letter_or_number_each(tmp_path: Path) -> None:
    title, panels = shown(*(fact(gpu=f"gpu {number}") for number in range(30)))
    letters = [series.letter for series in panels[0].series]
    assert (letters[0], letters[25], letters[26]) == ("A", "Z", "27")
    draw(tmp_path / "p.svg", title, panels)


def test_comparison_without_a_set_is_rejected() -> None:
    with pytest.raises(ValueError, match="no set to draw"):
        title_and_panels(compare([]))
