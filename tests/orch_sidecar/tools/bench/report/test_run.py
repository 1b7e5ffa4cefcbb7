"""The report of a run: complete, readable, and harmless whatever names it contains."""

from __future__ import annotations

import re
from functools import cache

import pytest

from orch_sidecar.tools.bench.report.run import over_time, run_report
from orch_sidecar.tools.bench.results.result import Result, Status, Trial
from orch_sidecar.tools.bench.results.summary import result_of
from orch_sidecar.tools.facts.labels.recorded import answers
from tests.orch_sidecar.tools.bench.report.sample_reports import (
    HOSTILE,
    hostile,
    of_two_classes,
    online,
)
from tests.orch_sidecar.tools.bench.sample_results import (
    OFFLINE,
    SINGLE,
    answered,
    in_a_row,
    refused,
    result,
    unverified,
)
from tests.orch_sidecar.tools.drawing.html_reader import Page
from tests.orch_sidecar.tools.facts.snapshots import snapshot


@cache
def of_online() -> Page:
    return Page(run_report(online()).html)


TIMES = ["Time to first token", "Time per output token", "Latency, to the last token"]


def test_report_states_what_was_measured_and_how() -> None:
    found = online()
    page = of_online()
    assert page.loads_nothing()
    for text in (
        found.engine.model_name, "batched_online", "preliminary", "poisson arrivals at 10/s",
        "synthetic, 32 in, 11 out", "ttft 200, tpot 20", found.engine.gpu or "", found.id,
        "many requests merged into each decode step", "least seconds", "95 %",
    ):  # fmt: skip
        assert text in page.text, text
    for missing in found.shortfalls:
        assert missing in page.text


def test_report_shows_the_figures_of_the_result_with_intervals_and_every_picture() -> None:
    found = online()
    assert found.figures is not None
    ttft = found.figures.times_s["ttft"]
    assert ttft is not None
    for text in (f"{1000 * ttft.p95:.4g}"[:4], f"{found.tokens_per_s:.4g}"[:4], " to "):
        assert text in of_online().text
    assert of_online().charts == [
        *TIMES, "Wait for a slot, by the sidecar's report", "Throughput", "Batch and queue",
        "Decode steps by batch",
    ]  # fmt: skip


def test_batch_over_time_adds_up_to_the_time_of_generation() -> None:
    result = online()
    _, batch = over_time(result)
    generating, waiting = batch.series
    width_s = generating.xs[1] - generating.xs[0]
    expected = [each.generation for each in answers(result.calls)]
    seconds = sum(each.end - each.start for each in expected)
    assert sum(generating.ys) * width_s == pytest.approx(seconds)
    waited_ms = [each.queue_ms for each in result.calls if each.queue_ms is not None]
    assert sum(waiting.ys) * width_s == pytest.approx(sum(waited_ms) / 1000)


def test_search_for_a_rate_shows_goodput_by_rate() -> None:
    trials = [
        Trial(rate_per_s=rate, requests=100, share=share, kept=share >= 0.99)
        for rate, share in ((4.0, 1.0), (8.0, 1.0), (16.0, 0.4), (11.3, 0.97))
    ]
    lines = run_report(online().model_copy(update={"trials": trials})).plain.splitlines()
    found = [line.split() for line in lines[lines.index("The search for the rate") + 3 :][:4]]
    assert found == [["4", "100.0", "%", "yes"], ["8", "100.0", "%", "yes"],
                     ["16", "40.0", "%", "no"], ["11.3", "97.0", "%", "no"]]  # fmt: skip


def test_model_name_that_is_markup_is_shown_as_text() -> None:
    text = run_report(hostile()).html
    page = Page(text)
    assert page.loads_nothing()
    assert "<script" not in text
    assert HOSTILE in page.text


def test_requests_of_two_classes_are_counted_apart() -> None:
    counted = [line.split()[:2] for line in run_report(of_two_classes()).plain.splitlines()]
    assert ["interactive", "80"] in counted
    assert ["bulk", "40"] in counted


def test_invalid_run_is_marked_before_any_figure() -> None:
    found = online().model_copy(
        update={"status": Status.INVALID, "reasons": ["the engine served other clients"]}
    )
    text = Page(run_report(found).html).text
    assert text.index("the engine served other clients") < text.index("tokens/s")
    assert "its figures do not hold" in text


RESTARTED = snapshot(epoch="e2", steps_by_batch={"4": [1, 0.1]})


@pytest.mark.parametrize(
    ("found", "texts", "charts", "others"),
    [
        (result(in_a_row(40), OFFLINE), [], ["Throughput"], TIMES),
        (result(in_a_row(70, every_s=0.5, due=False), SINGLE), ["one request at a time"], TIMES,
         []),
        (result([refused(0.0, "queue_full")]),
         ["no request was answered completely", "1 x queue_full"], [], ["Throughput", TIMES[0]]),
        (result_of(unverified(in_a_row(30))), ["does not report what its engine did"], TIMES,
         ["Decode steps by batch"]),
        (result(in_a_row(10), after=RESTARTED), [], TIMES, ["Decode steps by batch"]),
        (result(in_a_row(1, tokens=1)), [], ["Throughput"], ["Time per output token"]),
    ],
    ids=["offline", "single stream", "no answer", "unknown engine", "restarted", "one token"],
)  # fmt: skip
def test_report_has_what_a_run_has(
    found: Result, texts: list[str], charts: list[str], others: list[str]
) -> None:
    page = Page(run_report(found).html)
    assert {*charts} <= {*page.charts}
    assert not {*others} & {*page.charts}
    for text in texts:
        assert text in page.text


def test_report_of_many_requests_stays_small() -> None:
    assert len(run_report(online(5000)).html) < 300_000


class TestTerminal:
    def test_run_is_told_in_a_few_lines(self) -> None:
        lines = run_report(result(in_a_row(10, due=False), SINGLE)).plain.splitlines()
        assert lines[:6] == [
            "tiny: single stream",
            "single_stream: preliminary · The label is earned, but the run is too short to be "
            "published.",
            "vLLM 0.32.0, FP32, CPU (test), profile home, slots: 1 · one by one, prompts: "
            "synthetic, 32 in, 11 out · 2026-11-21 21:17:15 UTC",
            "What it lacks to be published:",
            "  10 queries, MLPerf's estimate of the 90th percentile takes at least 64",
            "  1.1 s, MLPerf's minimum duration is 600 s",
        ]
        split = [re.split(" {2,}", line) for line in lines]
        cells = {cell[0]: cell[1] for cell in split if len(cell) > 2}
        assert (cells["throughput, tokens/s"], cells["latency p90, ms"]) == ("100", "200")
        assert cells["per stream p50, tokens/s"] == "55"
        assert "  gap between events: p50 10.00 ms, p99 10.00 ms" in lines
        assert "  decode steps of the engine: batch mean 1.00, largest 1, 80 steps" in lines
        assert "  client: 0.0 ms late (p99), 10% of one core" in lines

    def test_percentiles_that_a_short_run_cannot_give_are_hidden(self) -> None:
        text = run_report(result(in_a_row(19))).plain
        assert "TTFT p90" in text
        assert "TTFT p95" not in text
        assert "TTFT p95" in run_report(result(in_a_row(20))).plain

    def test_share_of_the_prefix_cache_is_shown(self) -> None:
        cache = {"queries_total": 320, "hits_total": 80}
        steps = {"4": [25, 0.5]}
        after = snapshot(requests_total=110, steps_by_batch=steps, prefix_cache=cache)
        text = run_report(result(in_a_row(10), after=after)).plain
        assert "  25.0% of the prompt tokens were in its prefix cache\n" in text

    def test_problems_are_shown(self) -> None:
        odd = answered(0.0, length_as_requested=False, counted_by_events=True)
        text = run_report(
            result(
                [*in_a_row(10), refused(0.0), odd],
                after=snapshot(epoch="e2"),
                cpu_share=0.95,
                given={"model_name": "Tiny"},
            )
        ).plain
        for line in (
            "Why:",
            "  the engine was restarted",
            "Given by the user, not reported by the engine:",
            "  model_name",
            "  1 x queue_full",
            "  1 did not have the requested number of tokens",
            "  1 reported no usage: their events were counted",
            "The client may be the bottleneck:",
            "  it used 95% of one core",
        ):
            assert line in text.splitlines()
        assert "goodput" not in text, "an SLO is not kept by what was not measured"

    def test_endpoint_without_capabilities_is_unknown(self) -> None:
        text = run_report(result_of(unverified(in_a_row(10)))).plain
        assert "\nan unknown engine · " in text
        assert "how its engine batched is unknown" in text
        typed = {"engine": "x 1", "precision": "BF16", "gpu": "H100", "gpu_count": 2}
        text = run_report(result_of(unverified(in_a_row(10), given=typed))).plain
        assert "\nx 1, BF16, 2 x H100 · " in text
