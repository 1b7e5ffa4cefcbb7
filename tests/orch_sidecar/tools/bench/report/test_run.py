"""The report of a run: complete, readable, and harmless whatever names it contains."""

from __future__ import annotations

from orch_sidecar.tools.bench.report.run import run_report
from orch_sidecar.tools.bench.results.result import Status, Trial
from orch_sidecar.tools.bench.results.summary import result_of
from tests.orch_sidecar.tools.bench.drawing.html_reader import Page
from tests.orch_sidecar.tools.bench.report.sample_reports import (
    HOSTILE,
    hostile,
    of_two_classes,
    online,
)
from tests.orch_sidecar.tools.bench.sample_results import (
    OFFLINE,
    SINGLE,
    in_a_row,
    refused,
    result,
    unverified,
)

TIMES = ["Time to first token", "Time per output token", "Latency, until the last token"]


def test_report_states_what_was_measured_and_how() -> None:
    found = online()
    page = Page(run_report(found))
    assert page.loads_nothing()
    for text in (
        found.engine.model_name, "batched_online", "preliminary", "poisson arrivals at 10/s",
        "synthetic, 32 in, 11 out", "ttft ≤ 200 ms", found.engine.gpu or "", found.id,
        "many requests merged into each decode step", "at least 1 requests and 0 s", "95 %",
    ):  # fmt: skip
        assert text in page.text, text
    for missing in found.shortfalls:
        assert missing in page.text


def test_report_shows_the_figures_of_the_result_with_intervals() -> None:
    found = online()
    assert found.figures is not None
    assert found.figures.ttft_ms is not None
    text = Page(run_report(found)).text
    assert f"{found.figures.ttft_ms.p95:.4g}"[:4] in text
    assert f"{found.figures.tokens_per_s:.4g}"[:4] in text
    assert " to " in text


def test_report_has_every_picture() -> None:
    assert Page(run_report(online())).charts == [
        *TIMES, "Wait for a slot, by the sidecar's report", "Throughput", "Batch and queue",
        "Decode steps by batch",
    ]  # fmt: skip


def test_search_for_a_rate_shows_goodput_by_rate() -> None:
    trials = [
        Trial(rate_per_s=rate, requests=100, share=share, kept=share >= 0.99)
        for rate, share in ((4.0, 1.0), (8.0, 1.0), (16.0, 0.4), (11.3, 0.97))
    ]
    page = Page(run_report(online().model_copy(update={"trials": trials})))
    assert page.charts[-1] == "Goodput by rate"
    assert "not met: 6.4 at 16 requests sent per second" in page.texts
    assert "largest 8/s" in page.texts


def test_model_name_that_is_markup_is_shown_as_text() -> None:
    text = run_report(hostile())
    page = Page(text)
    assert page.loads_nothing()
    assert "<script" not in text
    assert HOSTILE in page.text


def test_two_classes_have_distributions_of_their_own() -> None:
    page = Page(run_report(of_two_classes()))
    text = page.text
    assert page.texts.count("SLO 200") == 1, "it is that of interactive requests"
    assert "Distributions, interactive requests" in text
    assert "Distributions, bulk requests" in text


def test_invalid_run_is_marked_before_any_figure() -> None:
    found = online().model_copy(
        update={"status": Status.INVALID, "reasons": ["the engine served other clients"]}
    )
    text = Page(run_report(found)).text
    assert text.index("the engine served other clients") < text.index("tokens/s")
    assert "its figures do not hold" in text


def test_offline_run_shows_no_latency() -> None:
    page = Page(run_report(result(in_a_row(40), OFFLINE)))
    assert not set(TIMES) & set(page.charts)
    assert "Throughput" in page.charts


def test_single_stream_run_has_a_report() -> None:
    page = Page(run_report(result(in_a_row(70, every_s=0.5, due=False), SINGLE)))
    assert "one request at a time" in page.text
    assert page.charts[:3] == TIMES


def test_run_without_an_answer_still_states_why() -> None:
    found = result([refused(0.0, "queue_full")])
    page = Page(run_report(found))
    assert "no request was answered completely" in page.text
    assert "1 x queue_full" in page.text
    assert "Time to first token" not in page.charts


def test_run_without_reports_of_the_engine_shows_no_batches() -> None:
    page = Page(run_report(result_of(unverified(in_a_row(30)))))
    assert "Decode steps by batch" not in page.charts
    assert "does not report what its engine did" in page.text


def test_restarted_engine_has_no_picture_of_its_steps() -> None:
    found = online(30)
    before, after = found.capabilities
    swapped = found.model_copy(update={"capabilities": [after, before]})
    assert "Decode steps by batch" not in Page(run_report(swapped)).charts


def test_single_answer_of_one_token_has_a_report() -> None:
    found = result([*in_a_row(1, tokens=1)])
    assert "Time per output token" not in Page(run_report(found)).charts


def test_report_of_many_requests_stays_small() -> None:
    assert len(run_report(online(5000))) < 200_000
