"""A result in words."""

from __future__ import annotations

from dataclasses import replace

from orch_sidecar.tools.bench.load.call import ClientHealth
from orch_sidecar.tools.bench.load.scenario import Slo
from orch_sidecar.tools.bench.results.identity import IdentityOverrides
from orch_sidecar.tools.bench.results.summary import result_of
from orch_sidecar.tools.bench.results.text import result_text
from orch_sidecar.tools.facts.tables.notes import Arrivals
from tests.orch_sidecar.tools.bench.sample_results import (
    OFFLINE,
    ONLINE,
    SINGLE,
    answered,
    in_a_row,
    refused,
    result,
    run,
    unverified,
)
from tests.orch_sidecar.tools.facts.snapshots import snapshot

CALLS = in_a_row(10)


def test_single_stream_shows_p90_latency_and_tokens_per_stream() -> None:
    text = result_text(result(in_a_row(10, due=False), SINGLE)).splitlines()
    assert text == [
        "single_stream: PRELIMINARY",
        "  too short to publish: 10 queries, MLPerf's estimate of the 90th percentile takes at "
        "least 64",
        "  too short to publish: 1.1 s, MLPerf's minimum duration is 600 s",
        "tiny on vllm 0.32.0, FP32, CPU (test), profile home, slots: 1",
        "one by one, prompts: synthetic, 32 in, 11 out, seed 0",
        "requests: 10 sent, 10 answered, 0 refused, 0 failed, 0 cut",
        "throughput: 100.00 tokens/s, 9.09 requests/s over 1.10 s",
        "tokens/s per stream: p50 55.00",
        "latency: p50 200.00, p90 200.00, p95 200.00, p99 200.00 ms",
        "TTFT: p50 100.00, p90 100.00, p95 100.00, p99 100.00 ms",
        "TPOT: p50 10.00, p90 10.00, p95 10.00, p99 10.00 ms",
        "gap between events: p50 10.00, p90 10.00, p95 10.00, p99 10.00 ms",
        "  by early stopping: p50 10.00, p90 10.00 ms",
        "engine: 80 decode steps, batch mean 1.00, max 1",
        "client: 0.0 ms late (p99), 10% of one core",
    ]


def test_share_of_the_prefix_cache_is_shown() -> None:
    after = snapshot(
        requests_total=110,
        steps_by_batch={"4": [25, 0.5]},
        prefix_cache={"queries_total": 320, "hits_total": 80},
    )
    text = result_text(result(CALLS, after=after))
    assert "\n  25.0% of the prompt tokens were in its prefix cache\n" in text


def test_problems_are_shown() -> None:
    calls = [*CALLS, refused(0.0), answered(0.0, length_as_requested=False, counted_by_events=True)]
    client_health = ClientHealth((0.0,), 0.95)
    text = result_text(
        result(
            calls,
            after=snapshot(epoch="e2"),
            client_health=client_health,
            given=IdentityOverrides(model_name="Tiny"),
        )
    )
    for line in (
        "batched_online: INVALID",
        "  the engine was restarted",
        "  given by the user, not reported by the engine: model_name",
        "  1 x queue_full",
        "  1 did not have the requested number of tokens",
        "  1 reported no usage: their events were counted",
        "  the client may be the bottleneck: it used 95% of one core",
    ):
        assert line in text.splitlines()


def test_offline_shows_throughput_alone() -> None:
    text = result_text(result(CALLS, OFFLINE))
    assert "throughput: 100.00 tokens/s" in text
    assert "TTFT" not in text
    assert "latency" not in text


def test_goodput_is_shown_unless_the_result_is_invalid() -> None:
    slo = replace(ONLINE, slo=Slo(ttft_ms=500.0))
    line = "goodput: 9.09 requests/s, 100.00 tokens/s; 100.0% of the sent requests met the SLO"
    assert line in result_text(result(CALLS, slo))
    assert "goodput" not in result_text(result(CALLS, slo, after=snapshot(epoch="e2")))


def test_arrivals_are_shown() -> None:
    gamma = replace(ONLINE, arrivals=Arrivals.GAMMA, burstiness=0.5)
    closed = replace(ONLINE, arrivals=Arrivals.CLOSED_LOOP, rate_per_s=None, clients=8)
    assert "poisson arrivals at 10/s, prompts" in result_text(result(CALLS))
    assert "gamma arrivals of burstiness 0.5 at 10/s, prompts" in result_text(result(CALLS, gamma))
    assert "closed loop of 8, prompts" in result_text(result(CALLS, closed))


def test_run_without_an_answer_is_shown() -> None:
    text = result_text(result([refused(0.0)]))
    assert "no request was answered completely" in text
    assert "throughput" not in text


def test_endpoint_without_capabilities_is_shown_as_unknown() -> None:
    text = result_text(result_of(unverified(CALLS)))
    assert "tiny on an unknown engine\n" in text
    assert "how its engine batched is unknown" in text
    typed = IdentityOverrides(engine="x 1", precision="BF16", gpu="H100", gpu_count=2)
    assert "tiny on x 1, BF16, 2 x H100\n" in result_text(result_of(unverified(CALLS, given=typed)))


def test_interrupted_run_is_shown_as_incomplete() -> None:
    text = result_text(result_of(run(CALLS, stopped=True)))
    assert text.startswith("batched_online: INCOMPLETE\n  the user interrupted the run\n")
