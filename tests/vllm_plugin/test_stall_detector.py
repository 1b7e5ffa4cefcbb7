"""What is a stall, and what only looks like one."""

from __future__ import annotations

import pytest

from vllm_plugin.stall_detector import (
    RECENT_STEPS,
    STALLED_AFTER_LONGEST,
    STALLED_AFTER_S,
    STALLED_AFTER_STEPS,
    StallDetector,
)

NOW = 1000.0


def test_engine_that_was_never_asked_for_anything_is_not_stalled() -> None:
    assert not StallDetector().stalled(NOW, 0.0)


def test_sequences_without_a_step_for_too_long_are_a_stall_until_the_next_step() -> None:
    stall_detector = StallDetector()
    stall_detector.report(NOW, 3, 0.01)
    assert not stall_detector.stalled(NOW + STALLED_AFTER_S, 0.01)
    assert stall_detector.stalled(NOW + STALLED_AFTER_S + 0.1, 0.01)
    stall_detector.report(NOW + 100, 3, 0.01)
    assert not stall_detector.stalled(NOW + 101, 0.01)
    assert stall_detector.stalled(NOW + 131, 0.01)
    stall_detector.report(NOW + 200, 0, None)
    assert not stall_detector.stalled(NOW + 1000, 0.01), "idle"


def test_request_that_nothing_is_heard_of_is_a_stall() -> None:
    stall_detector = StallDetector()
    stall_detector.report(NOW, 0, None)
    stall_detector.expect_report(1, NOW + 500)
    stall_detector.expect_report(2, NOW + 520)
    assert not stall_detector.stalled(NOW + 525, 0.01), (
        "its own time counts, not that of the last report"
    )
    assert stall_detector.stalled(NOW + 531, 0.01)
    stall_detector.forget(1)
    assert not stall_detector.stalled(NOW + 531, 0.01), "the other has waited for 11 s"
    assert stall_detector.stalled(NOW + 551, 0.01)
    stall_detector.forget(2)
    assert not stall_detector.stalled(NOW + 999, 0.01)


def test_slow_reader_of_a_finished_answer_is_no_stall() -> None:
    stall_detector = StallDetector()
    stall_detector.expect_report(1, NOW)
    stall_detector.report(NOW + 1, 1, 0.01)
    stall_detector.report(NOW + 2, 0, 0.01)
    assert not stall_detector.stalled(NOW + 3600, 0.01)
    stall_detector.forget(1)
    assert not stall_detector.stalled(NOW + 3600, 0.01)


def test_steps_that_are_expected_to_be_long_get_longer() -> None:
    stall_detector = StallDetector()
    stall_detector.report(NOW, 3, 0.01)
    assert not stall_detector.stalled(NOW + 10 * STALLED_AFTER_STEPS, 10.0)
    assert stall_detector.stalled(NOW + 10 * STALLED_AFTER_STEPS + 1, 10.0)


def test_long_steps_of_late_are_given_time_to_come_again() -> None:
    """Prefill of a long prompt on a slow machine; forgotten when steps are short again."""
    stall_detector = StallDetector()
    stall_detector.report(NOW, 3, 40.0)
    assert not stall_detector.stalled(NOW + STALLED_AFTER_LONGEST * 40.0, 0.01)
    assert stall_detector.stalled(NOW + STALLED_AFTER_LONGEST * 40.0 + 1, 0.01)
    for _ in range(RECENT_STEPS):
        stall_detector.report(NOW, 3, 0.01)
    assert stall_detector.stalled(NOW + STALLED_AFTER_S + 1, 0.01)


@pytest.mark.parametrize("now_s", [NOW - 3600, NOW])
def test_clock_that_was_set_back_is_no_stall(now_s: float) -> None:
    stall_detector = StallDetector()
    stall_detector.report(NOW, 3, 0.01)
    assert not stall_detector.stalled(now_s, 0.01)
