"""The report of a sweep."""

from __future__ import annotations

from orch_sidecar.tools.bench.report.sweep import sweep_charts, sweep_report
from orch_sidecar.tools.bench.results.sweep import sweep_of
from tests.orch_sidecar.tools.bench.report.sample_reports import sweep
from tests.orch_sidecar.tools.drawing.html_reader import Page


def test_report_has_the_curves_with_the_fit() -> None:
    found = sweep()
    assert found.fit is not None
    page = Page(sweep_report(found).html)
    assert page.loads_nothing()
    assert page.charts == [
        "Throughput", "Time to first token", "Time per output token", "Goodput",
        "Throughput and speed",
    ]  # fmt: skip
    assert any(text.startswith("fit: ") for text in page.texts)
    assert "largest deviation" in page.text
    for point in found.points:
        assert str(point.clients) in page.texts
    assert "Throughput" in Page(sweep_report(sweep(clients=(2,))).html).charts, "of one point"


def test_points_of_one_batch_are_drawn_beside_each_other() -> None:
    found = sweep()
    same = [each.model_copy(update={"batches": found.results[1].batches}) for each in found.results]
    [tpot] = [each for each in sweep_charts(sweep_of(same)) if each.title.startswith("Time per")]
    [measured] = [each for each in tpot.series if each.name == "p50"]
    assert set(measured.xs) == {2.0}


def test_throughput_of_an_accelerator_stands_against_the_speed_of_a_user() -> None:
    found = sweep()
    engine = found.results[0].engine.model_copy(update={"gpu_count": 2})
    results = [each.model_copy(update={"engine": engine}) for each in found.results]
    assert sweep_charts(found)[-1].y.label == "tokens/s of the machine", "it has no accelerator"
    pareto = sweep_charts(sweep_of(results))[-1]
    assert pareto.y.label == "tokens/s per accelerator"
    [measured, *_] = pareto.series
    sound = [point for point in found.points if point.result.is_sound]
    assert measured.xs == tuple(1000 / (point.tpot_p50_ms or 0) for point in sound)
    assert measured.ys == tuple(point.figures.tokens_per_s / 2 for point in sound)
