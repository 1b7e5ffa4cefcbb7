"""Two results side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch_sidecar.tools.bench.report.measures import Estimate, Measure, measures_of
from orch_sidecar.tools.bench.report.run import compare_report, differing
from orch_sidecar.tools.bench.results.result import Result
from tests.orch_sidecar.tools.bench.report.sample_reports import HOSTILE, hostile, online
from tests.orch_sidecar.tools.drawing.html_reader import Page


def verdicts(before: Result, after: Result) -> dict[str, str]:
    """Of the figures by their names."""
    second = measures_of(after)
    return {name: each.verdict(second[name]) for name, each in measures_of(before).items()}


def change(before: Estimate, after: Estimate, unit: str = "ms") -> tuple[float, ...]:
    return Measure("a", unit, before).change(Measure("a", unit, after))


def test_faster_run_is_better_and_how_much_is_within_the_interval() -> None:
    before, after = measures_of(online()), measures_of(online(seed=1, faster=1.25))
    assert before["TTFT p50"].verdict(after["TTFT p50"]) == "better"
    _, low, high = before["TTFT p50"].change(after["TTFT p50"])
    assert low < 1 / 1.25 - 1 < high
    share, other = before["within the SLO"], after["within the SLO"]
    assert share.verdict(other) in ("better", "no difference shown")
    assert "points" in share.change_text(other)
    assert verdicts(online(faster=1.25), online(seed=1))["TPOT p50"] == "worse"


def test_runs_of_the_same_system_show_no_difference() -> None:
    found = [text for text in verdicts(online(), online(seed=1)).values() if "unknown" not in text]
    assert found.count("no difference shown") >= len(found) - 2 > 5, "95 of 100"


def test_short_runs_are_not_judged() -> None:
    found = verdicts(online(15), online(15, seed=1))
    assert found["TTFT p50"] == "unknown: too short"
    assert "TTFT p95" not in found, "no request can be beyond it"


def test_conditions_that_differ_are_listed() -> None:
    before, after = online(), online(seed=1)
    scenario = replace(after.scenario, rate_per_s=20.0, seed=7)
    engine = after.engine.model_copy(
        update={
            "precision": "FP8",
            "conditions": {**(after.engine.conditions or {}), "data_parallel": 2},
        }
    )
    after = after.model_copy(update={"scenario": scenario, "engine": engine})
    found = list(differing(before, after))
    assert found == [
        ("rate per s", "10", "20"),
        ("seed", "0", "7"),
        ("precision", before.engine.precision, "FP8"),
        ("data parallel", "unknown", "2"),
    ]
    text = compare_report(before, after).plain
    [line] = [line for line in text.splitlines() if line.startswith("precision ")]
    assert line.split() == ["precision", before.engine.precision, "FP8"]


def test_page_has_both_distributions_and_all_conditions() -> None:
    before, after = online(), online(seed=1, faster=1.25)
    page = Page(compare_report(before, after).html)
    assert page.loads_nothing()
    assert page.charts[:3] == [
        "Time to first token", "Time per output token", "Latency, to the last token",
    ]  # fmt: skip
    assert {"better", "a", "b", "SLO 200"} <= set(page.texts)
    assert "What differs in their conditions" in page.text
    assert "All conditions of a" in page.text


def test_result_compared_with_itself_differs_in_nothing() -> None:
    assert not list(differing(online(), online()))
    found = {*verdicts(online(), online()).values()}
    assert found - {"unknown: drifts", "unknown: too short"} == {"no difference shown"}
    assert "Nothing that the results record." in Page(compare_report(online(), online()).html).text


def test_names_that_are_markup_and_results_without_a_common_figure_are_compared() -> None:
    page = Page(compare_report(online(40), hostile()).html)
    assert page.loads_nothing()
    assert HOSTILE in page.text
    silent = online().model_copy(update={"calls": [], "figures": None})
    assert "There is no figure that both have." in compare_report(online(), silent).plain


def test_interval_of_a_change_follows_from_those_of_both_figures() -> None:
    less, low, high = change(Estimate(100, 5), Estimate(90, 3))
    assert less == pytest.approx(-0.1)
    assert low < -0.1 < high < 0
    assert change(Estimate(100, None), Estimate(200, 1)) == (1.0,)
    assert change(Estimate(0, 0), Estimate(1, 0)) == ()
    points = change(Estimate(0.0, 0.0), Estimate(0.5, 0.1), "%")
    assert points == pytest.approx((0.5, 0.4, 0.6)), "of a share, the difference"
    assert Measure("a", "%", Estimate(0.99, 0.05)).text == "99.0 % (94.0 % to 100.0 %)"
    assert Measure("a", "ms", Estimate(2, 5)).text == "2 (0 to 7)"


def test_figure_that_drifts_in_one_of_both_runs_is_not_judged() -> None:
    steady, drifting = (
        Measure("a", "ms", Estimate(9, 1)),
        Measure("a", "ms", Estimate(5, None, True)),
    )
    assert steady.verdict(drifting) == drifting.verdict(steady) == "unknown: drifts"


@pytest.mark.parametrize("margin", [0.4, 356.0])
def test_ratio_to_a_figure_that_may_be_0_has_no_interval(margin: float) -> None:
    """As of a median wait of 0.3 ms where some sections of the run waited for half a second."""
    one, other = Estimate(0.34, margin), Estimate(2, 0.1)
    assert len(change(one, other)) == len(change(other, one)) == 1
