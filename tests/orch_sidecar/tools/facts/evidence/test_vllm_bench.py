"""Parsing files of `vllm bench serve`: recorded ones, with and without changes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orch_sidecar.tools.facts.labels.figures import overlap
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.facts.imports import (
    LEFT_OUT,
    changed,
    document,
    load,
    measured,
    refused,
)

# Fields that `vllm bench serve` omits without --save-detailed.
DETAILS = ("input_lens", "output_lens", "start_times", "ttfts")
HOME, CLOUD = "vllm_bench_home", "vllm_bench_cloud"


def test_single_stream_file_is_one_request_after_the_other() -> None:
    found = measured(HOME)
    assert (load(found).arrivals, load(found).clients, load(found).rate_per_s) == (
        Arrivals.ONE_BY_ONE,
        1,
        None,
    )
    assert (found.claim, overlap(found.served)) == (Label.SINGLE_STREAM, 1)
    assert (found.totals.requests, found.failed, found.totals.output_tokens) == (20, 0, 640)
    assert found.model == "small"


def test_poisson_file_has_a_rate_and_overlapping_answers() -> None:
    found = measured(CLOUD)
    assert (load(found).arrivals, load(found).clients, load(found).rate_per_s) == (
        Arrivals.POISSON,
        None,
        3.0,
    )
    assert found.claim is Label.BATCHED_ONLINE
    assert overlap(found.served) > 1


@pytest.mark.parametrize("name", ["vllm_bench_home", "vllm_bench_cloud"])
def test_figures_of_the_details_agree_with_the_tools_own(name: str) -> None:
    """Where its definitions are ours: percentiles and times per token are the same numbers, and
    the throughput differs by what its duration has before the first request and after the last
    token."""
    file, found = document(name), measured(name)
    assert found.latency_ms["ttft_p50_ms"] == pytest.approx(file["median_ttft_ms"], rel=0.01)
    assert found.latency_ms["ttft_p95_ms"] == pytest.approx(file["p95_ttft_ms"], rel=0.01)
    assert found.latency_ms["tpot_p50_ms"] == pytest.approx(file["median_tpot_ms"], rel=1e-6)
    assert found.latency_ms["latency_p90_ms"] == pytest.approx(file["p90_e2el_ms"], rel=0.01)
    assert found.totals.window_s < file["duration"]
    assert found.totals.tokens_per_s == pytest.approx(file["output_throughput"], rel=0.05)
    assert found.totals.tokens_per_s > file["output_throughput"]


def test_ttft_counts_from_arrival_where_requests_queued_before_being_sent() -> None:
    """vLLM counts from when `--max-concurrency` let it send the request."""
    file = document(CLOUD)
    late = changed(CLOUD, max_concurrency=2, queue_times=[1.0] * file["completed"])
    assert measured(CLOUD, late).latency_ms["ttft_p50_ms"] == pytest.approx(
        1000 + file["median_ttft_ms"], rel=0.01
    )


def test_queue_time_of_a_closed_loop_does_not_move_arrivals() -> None:
    """The tool creates all requests at the start, so its queue times grow during the run."""
    found = measured(HOME)
    assert found.latency_ms["ttft_p95_ms"] < 1000
    assert max(document(HOME)["queue_times"]) > 5


@pytest.mark.parametrize(
    ("fields", "arrivals"),
    [
        ({"burstiness": 0.5}, Arrivals.GAMMA),
        ({"burstiness": float("inf")}, Arrivals.CONSTANT),
        ({"request_rate": "inf"}, Arrivals.AT_ONCE),
        ({"request_rate": "inf", "max_concurrency": 4}, Arrivals.CLOSED_LOOP),
    ],
)
def test_arrivals_follow_from_rate_and_limit(fields: dict[str, Any], arrivals: Arrivals) -> None:
    found = measured(CLOUD, changed(CLOUD, **fields))
    assert load(found).arrivals is arrivals
    assert (load(found).burstiness is not None) == (arrivals is Arrivals.GAMMA)


def test_failed_requests_are_counted_but_not_measured() -> None:
    file = document(CLOUD)
    added = {name: [*file[name], 0] for name in (*DETAILS, "latencies", "queue_times")}
    found = measured(CLOUD, file | added | {"failed": 1})
    assert (found.totals.requests, found.failed) == (45, 1)
    assert found.totals.tokens_per_s == measured(CLOUD, file).totals.tokens_per_s


@pytest.mark.parametrize(
    ("name", "field"), [("vllm_bench_all_failed", "completed"), ("vllm_throughput", "backend")]
)
def test_file_without_an_answer_or_of_another_benchmark_is_rejected(name: str, field: str) -> None:
    assert refused(name, document(name)).startswith(f"{field} is ")


@pytest.mark.parametrize(
    ("fields", "name", "rule"),
    [
        ({"output_throughput": 200.0}, "output_throughput", "must be 1440 tokens over"),
        ({"total_output_tokens": 2000}, "output_throughput", "must be 2000 tokens over"),
        ({"max_concurrency": 0}, "max_concurrency", "greater than 0"),
        ({"burstiness": 0}, "burstiness", "greater than 0"),
        ({"request_rate": -1}, "request_rate", "greater than 0"),
        ({"duration": "long"}, "duration", "valid number"),
        ({"completed": True}, "completed", "valid integer"),
        ({"failed": LEFT_OUT}, "failed", "is missing"),
        ({"backend": "openai-audio"}, "backend", "'vllm', 'openai' or 'openai-chat'"),
        ({"probe_completed": 3}, "probe_completed", "not counted"),
        ({"measurement_type": "fast"}, "measurement_type", "should be 'single_stream', "),
        (dict.fromkeys(DETAILS, LEFT_OUT), "input_lens", "requests, as with --save-detailed"),
        ({"date": "21.11.2026"}, "date", "does not match format '%Y%m%d-%H%M%S'"),
        ({"ttfts": [0.1]}, "ttfts", "for each of 45 requests"),
        ({"output_lens": [32] * 44 + [31]}, "output_lens", "must be 1440 tokens of 45 answers"),
        ({"output_lens": [32] * 44 + [0]}, "output_lens", "must be 1440 tokens of 45 answers"),
    ],
)
def test_unsupported_run_is_rejected_with_field_value_and_rule(
    fields: dict[str, Any], name: str, rule: str
) -> None:
    found = refused(CLOUD, changed(CLOUD, **fields))
    assert re.split("[. ]", found)[0] == name
    assert rule in found


@pytest.mark.parametrize("found", [[], "file", None, {}, {"results": []}])
def test_other_document_is_rejected(found: object) -> None:
    assert refused(CLOUD, found)


@pytest.mark.parametrize("name", ["start_times", "ttfts", "latencies", "queue_times"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_infinite_time_is_rejected(name: str, value: float) -> None:
    file = changed(CLOUD)
    file[name][0] = value
    assert refused(CLOUD, file) == f"{name}.0 is {value}: Input should be a finite number"
