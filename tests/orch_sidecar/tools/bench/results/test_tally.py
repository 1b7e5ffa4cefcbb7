"""What calls come to."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.bench.load.call import Call, ClientHealth, Fate
from orch_sidecar.tools.bench.results.tally import (
    client_of,
    counts_of,
    figures_of,
    goodput_of,
)
from tests.orch_sidecar.tools.bench.sample_results import HOST, IDLE, answered, in_a_row, refused

# A TTFT of 100 ms; 11 tokens, the last 200 ms after the request.
CALLS = in_a_row(10)


def test_figures_are_those_of_the_window_from_first_arrival_to_last_end() -> None:
    found = figures_of(CALLS)
    assert found is not None
    assert found.window_s == pytest.approx(1.1)
    assert found.tokens_per_s == pytest.approx(110 / 1.1)
    assert found.requests_per_s == pytest.approx(10 / 1.1, abs=1e-3)
    assert (found.requests, found.input_tokens, found.output_tokens) == (10, 320, 110)
    assert found.latency_ms.p90 == pytest.approx(200)
    assert found.ttft_ms is not None
    assert found.tpot_ms is not None
    assert found.itl_ms is not None
    assert found.ttft_ms.p50 == pytest.approx(100)
    assert found.tpot_ms.p50 == pytest.approx(10)
    assert found.itl_ms.max == pytest.approx(10)
    assert found.queue_ms is None


def test_tokens_per_stream_are_of_an_answer_over_its_latency() -> None:
    found = figures_of([*CALLS, answered(0.0, first_s=1.0)])
    assert found is not None
    assert found.tokens_per_s_per_stream == pytest.approx(11 / 0.2)


def test_answers_that_were_being_generated_at_once_are_counted() -> None:
    found = figures_of([answered(0.0), answered(0.01), answered(0.02), answered(5.0)])
    assert found is not None
    assert found.overlap == 3


def test_prompts_of_unknown_length_make_no_sum() -> None:
    found = figures_of([*CALLS, answered(0.0, input_tokens=None)])
    assert found is not None
    assert found.input_tokens is None
    assert found.output_tokens == 121


def test_waits_for_a_slot_are_the_reported_ones() -> None:
    found = figures_of([answered(0.0, queue_ms=3.0), answered(0.0, queue_ms=5.0), answered(0.0)])
    assert found is not None
    assert found.queue_ms is not None
    assert found.queue_ms.mean == pytest.approx(4)


def test_nothing_answered_has_no_figures() -> None:
    assert figures_of([refused(0.0)]) is None
    assert goodput_of([refused(0.0)], {"ttft": 1.0}) is None


def test_goodput_is_of_all_that_were_sent_and_not_of_all_that_were_answered() -> None:
    slow = [answered(1.0, first_s=0.3), answered(1.0, first_s=0.3)]
    turned_away = [refused(0.5) for _ in range(8)]
    found = goodput_of([*CALLS, *slow, *turned_away], {"ttft": 200.0})
    assert found is not None
    assert (found.requests, found.share) == (10, 0.5)
    assert found.requests_per_s == pytest.approx(10 / 1.4, abs=1e-3)
    assert found.tokens_per_s == pytest.approx(110 / 1.4, abs=1e-3)


def test_without_a_bound_there_is_no_goodput() -> None:
    assert goodput_of(CALLS, {}) is None


def test_requests_are_counted_by_their_fate_and_the_reasons_by_how_often() -> None:
    calls = [
        *CALLS,
        refused(0.0),
        refused(0.0),
        refused(0.0, "too_late"),
        Call(due_s=1.0, sent_s=1.0, ended_s=2.0, fate=Fate.CUT),
        Call(due_s=1.0, fate=Fate.CUT),
        answered(0.0, length_as_requested=False),
        answered(0.0, counted_by_events=True),
    ]
    found = counts_of(calls)
    assert (found.sent, found.answered, found.refused, found.cut) == (16, 12, 3, 2)
    assert found.reasons == {"queue_full": 2, "too_late": 1}
    assert (found.of_other_length, found.counted_by_events) == (1, 1)


def test_only_the_most_frequent_reasons_are_kept() -> None:
    found = counts_of([refused(0.0, f"reason {number}") for number in range(100)])
    assert len(found.reasons) == 20


def test_client_that_keeps_up_is_not_a_bottleneck() -> None:
    found = client_of(CALLS, HOST, IDLE, 1.1, at_once=False)
    assert found.bottleneck == []
    assert found.late_ms is not None
    assert found.late_ms.max == 0
    assert found.host == HOST


@pytest.mark.parametrize(
    ("calls", "client_health", "cause"),
    [
        ([answered(0.0, sent_s=0.02)], IDLE, "requests were sent 20.0 ms late (p99)"),
        (CALLS, ClientHealth((0.03,), 0.1), "its event loop woke 30.0 ms late (p99)"),
        (CALLS, ClientHealth((0.0,), 0.97), "it used 97% of one core"),
    ],
)
def test_slow_client_is_reported_as_the_bottleneck(
    calls: list[Call], client_health: ClientHealth, cause: str
) -> None:
    assert client_of(calls, HOST, client_health, 10.0, at_once=False).bottleneck == [cause]


def test_sending_all_at_once_may_take_a_hundredth_of_the_whole() -> None:
    """10 s of answers: 90 ms of sending are little, 110 ms are not."""
    last = answered(0.0, first_s=9.9)
    for late_s, causes in ((0.09, 0), (0.11, 1)):
        calls = [last, *(answered(0.0, sent_s=late_s) for _ in range(50))]
        assert len(client_of(calls, HOST, IDLE, 10.0, at_once=True).bottleneck) == causes
        assert len(client_of(calls, HOST, IDLE, 10.0, at_once=False).bottleneck) == 1


def test_client_may_be_blocked_for_a_hundredth_of_the_window() -> None:
    """Of 10 s, and once in 200 looks: no percentile would tell."""
    calls = [answered(0.0), answered(0.0, first_s=9.9)]
    for stood_s, causes in ((0.09, []), (0.11, ["its event loop was blocked for 110.0 ms"])):
        client_health = ClientHealth((*(0.0 for _ in range(199)), stood_s), 0.1)
        assert client_of(calls, HOST, client_health, 10.0, at_once=False).bottleneck == causes
