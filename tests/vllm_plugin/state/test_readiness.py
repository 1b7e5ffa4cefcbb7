"""Readiness, from admin calls and the engine's answers; stalls, and what only looks like one."""

from __future__ import annotations

import pytest

from vllm_plugin.state.readiness import (
    ASLEEP,
    PAUSED,
    RECENT_STEPS,
    STALLED_AFTER_LONGEST,
    STALLED_AFTER_S,
    STALLED_AFTER_STEPS,
    NotReady,
    Readiness,
    StallDetector,
)

CALL = NotReady(PAUSED, "POST /pause was called")


def state(readiness: Readiness) -> str | None:
    return None if readiness.not_ready is None else readiness.not_ready.state


def query(readiness: Readiness, *, sleeping: bool) -> None:
    readiness.query_answered(readiness.query_began(), sleeping=sleeping)


def test_engine_is_ready_by_default() -> None:
    readiness = Readiness()
    assert readiness.not_ready is None
    query(readiness, sleeping=False)
    assert readiness.not_ready is None


def test_pause_is_known_from_the_call_and_then_from_the_engine() -> None:
    readiness = Readiness()
    key = readiness.call_began(CALL)
    assert readiness.not_ready == CALL
    ended = readiness.query_began()
    readiness.call_ended(key)
    readiness.query_answered(ended, sleeping=False)
    assert readiness.not_ready == CALL, "the query began before the call had ended"
    query(readiness, sleeping=True)
    assert state(readiness) == PAUSED
    query(readiness, sleeping=False)
    assert readiness.not_ready is None


def test_pause_not_requested_over_http_is_detected() -> None:
    readiness = Readiness()
    query(readiness, sleeping=True)
    assert state(readiness) == PAUSED


def test_sleep_differs_from_a_pause_until_the_engine_is_awake() -> None:
    readiness = Readiness()
    readiness.sleep_called()
    assert state(readiness) == ASLEEP
    query(readiness, sleeping=True)
    assert state(readiness) == ASLEEP
    query(readiness, sleeping=False)
    assert readiness.not_ready is None
    query(readiness, sleeping=True)
    assert state(readiness) == PAUSED, "the sleep has ended"


def test_update_of_the_weights_lasts_until_its_end() -> None:
    readiness = Readiness()
    key = readiness.call_began(CALL)
    readiness.update_began(key)
    query(readiness, sleeping=False)
    assert readiness.not_ready == CALL
    readiness.update_ended()
    query(readiness, sleeping=False)
    assert readiness.not_ready is None


NOW = 1000.0


def test_engine_without_requests_is_not_stalled() -> None:
    assert not StallDetector().stalled(NOW, 0.0)


def test_sequences_without_a_step_for_too_long_are_a_stall_until_the_next_step() -> None:
    detector = StallDetector()
    detector.report(NOW, 3, 0.01)
    assert not detector.stalled(NOW + STALLED_AFTER_S, 0.01)
    assert detector.stalled(NOW + STALLED_AFTER_S + 0.1, 0.01)
    detector.report(NOW + 100, 3, 0.01)
    assert not detector.stalled(NOW + 101, 0.01)
    assert detector.stalled(NOW + 131, 0.01)
    detector.report(NOW + 200, 0, None)
    assert not detector.stalled(NOW + 1000, 0.01), "idle"


def test_submitted_request_without_a_report_is_a_stall() -> None:
    detector = StallDetector()
    detector.report(NOW, 0, None)
    detector.expect_report(1, NOW + 500)
    detector.expect_report(2, NOW + 520)
    assert not detector.stalled(NOW + 525, 0.01), "its own time counts, not that of the last report"
    assert detector.stalled(NOW + 531, 0.01)
    detector.forget(1)
    assert not detector.stalled(NOW + 531, 0.01), "the other has waited for 11 s"
    assert detector.stalled(NOW + 551, 0.01)
    detector.forget(2)
    assert not detector.stalled(NOW + 999, 0.01)


def test_slow_reader_of_a_finished_response_is_not_a_stall() -> None:
    detector = StallDetector()
    detector.expect_report(1, NOW)
    detector.report(NOW + 1, 1, 0.01)
    detector.report(NOW + 2, 0, 0.01)
    assert not detector.stalled(NOW + 3600, 0.01)
    detector.forget(1)
    assert not detector.stalled(NOW + 3600, 0.01)


def test_limit_grows_with_the_expected_duration_of_a_step() -> None:
    detector = StallDetector()
    detector.report(NOW, 3, 0.01)
    assert not detector.stalled(NOW + 10 * STALLED_AFTER_STEPS, 10.0)
    assert detector.stalled(NOW + 10 * STALLED_AFTER_STEPS + 1, 10.0)


def test_limit_grows_with_the_longest_recent_step() -> None:
    """Such as the prefill of a long prompt on a slow machine, until steps are short again."""
    detector = StallDetector()
    detector.report(NOW, 3, 40.0)
    assert not detector.stalled(NOW + STALLED_AFTER_LONGEST * 40.0, 0.01)
    assert detector.stalled(NOW + STALLED_AFTER_LONGEST * 40.0 + 1, 0.01)
    for _ in range(RECENT_STEPS):
        detector.report(NOW, 3, 0.01)
    assert detector.stalled(NOW + STALLED_AFTER_S + 1, 0.01)


@pytest.mark.parametrize("now_s", [NOW - 3600, NOW])
def test_clock_that_is_set_back_is_not_a_stall(now_s: float) -> None:
    detector = StallDetector()
    detector.report(NOW, 3, 0.01)
    assert not detector.stalled(now_s, 0.01)
