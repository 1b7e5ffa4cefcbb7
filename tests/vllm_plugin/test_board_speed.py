"""What the board says of the engine's speed, and of an engine that has none any more."""

from __future__ import annotations

import pytest

from tests.vllm_plugin.test_board import FACTS, LEASE, US, report
from vllm_plugin.board import Board, StepReport
from vllm_plugin.pulse import STALLED_AFTER_S


def decode(board: Board, at_s: float, batch: int, elapsed_s: float, **more: bool) -> None:
    """A step that did nothing but decode."""
    board.stepped(
        StepReport(at_s, batch, 0, 0.0, 0, batch, True, elapsed_s, decoding=batch, **more)
    )


def prefill(board: Board, at_s: float, tokens: int, decoding: int, elapsed_s: float) -> None:
    """A step that computed a prompt beside what it decoded."""
    batch = decoding + 1
    board.stepped(StepReport(at_s, batch, 0, 0.0, 0, batch, False, elapsed_s, tokens, decoding))


def warmed_up() -> Board:
    """A board that has seen steps of 10 ms plus 1 ms per sequence, and fitted them."""
    board = Board(FACTS)
    for index in range(200):
        batch = 1 + index % 8
        decode(board, 100.0 + index * 0.02, batch, 0.010 + 0.001 * batch)
    return board


def test_before_any_step_nothing_is_said_about_speed() -> None:
    slow = Board(FACTS).slow(100.0)
    assert slow == {
        "state": "ready",
        "message": None,
        "requests_total": 0,
        "steps_by_batch": {},
        "steps_total": 0,
        "busy_seconds_total": 0.0,
        "step_time": None,
        "generated_tokens_total": 0,
        "prefill": {"tokens": 0, "seconds": 0.0},
        "prefill_tokens_per_s": None,
    }


def test_state_has_the_step_time_that_was_fitted_to_the_steps() -> None:
    state = warmed_up().state(None, 110.0)
    assert state["step_time"] == {
        "t0_ms": pytest.approx(10.0, rel=0.01),
        "c_ms": pytest.approx(1.0, rel=0.01),
        "alpha": pytest.approx(1.0, rel=0.01),
        "samples": 200,
        "batches": 8,
        "largest": 8,
        "tokens": 1.0,
        "error": pytest.approx(0.0, abs=1e-3),
        "quality": "good",
    }
    assert state["steps_total"] == 200
    assert state["busy_seconds_total"] == pytest.approx(200 * 0.0145)


def test_fit_is_made_at_most_once_a_second_and_only_of_news() -> None:
    board = Board(FACTS)
    for index in range(10):
        decode(board, 100.0 + index * 0.01, 1, 0.01)
    first = board.step_time
    assert first is None, "of the first step"
    assert board.slow(100.5)["step_time"] is None
    told = board.slow(101.1)["step_time"]
    assert told["samples"] == 10
    made = board.step_time
    board.slow(200.0)
    assert board.step_time is made, "nothing new"
    decode(board, 200.1, 1, 0.01)
    assert board.step_time is not made


def test_clock_that_was_set_back_does_not_stop_the_fits() -> None:
    board = warmed_up()
    made = board.step_time
    decode(board, 50.0, 1, 0.01)
    assert board.step_time is not made


def test_prefill_and_recomputation_are_kept_out_of_the_fit() -> None:
    board = warmed_up()
    for index in range(100):
        prefill(board, 200.0 + index, 512, 3, 5.0)
        decode(board, 200.5 + index, 3, 5.0, recomputing=True)
    assert board.slow(1000.0)["step_time"]["samples"] == 200


def test_prefill_is_what_the_fit_does_not_explain() -> None:
    board = warmed_up()
    board.slow(110.0)
    prefill(board, 111.0, 256, 4, 0.114)
    prefill(board, 112.0, 256, 0, 0.100)
    slow = board.slow(113.0)
    assert slow["prefill"] == {"tokens": 512, "seconds": pytest.approx(0.2, rel=0.01)}
    assert slow["prefill_tokens_per_s"] == pytest.approx(2560, rel=0.01)


def test_without_a_good_fit_the_whole_step_was_prefill() -> None:
    board = Board(FACTS)
    prefill(board, 100.0, 256, 4, 0.114)
    for index in range(20):
        decode(board, 101.0 + index, 4, 0.014)
    assert board.slow(130.0)["step_time"]["quality"] == "poor"
    prefill(board, 131.0, 256, 4, 0.114)
    assert board.slow(132.0)["prefill"]["seconds"] == pytest.approx(0.228)


def test_engine_that_stops_stepping_is_stalled_until_the_next_step() -> None:
    board = warmed_up()
    late = 104.0 + STALLED_AFTER_S
    assert board.slow(late - 1)["state"] == "ready"
    assert board.state(US, late)["state"] == "stalled"
    decode(board, late, 8, 0.018)
    assert board.slow(late + 1)["state"] == "ready"
    board.stepped(report(0, at_s=late + 2))
    assert board.slow(late + 1000)["state"] == "ready", "idle"


def test_request_that_the_scheduler_never_mentions_is_a_stall() -> None:
    board = Board(FACTS)
    key = board.entered(LEASE)
    assert key is not None
    assert board.slow(1000.0)["state"] == "ready", "its client may still be sending it"
    board.submitted(key, 1000.0)
    assert board.slow(1000.0 + STALLED_AFTER_S)["state"] == "ready"
    assert board.slow(1001.0 + STALLED_AFTER_S)["state"] == "stalled"
    board.left(key)
    assert board.slow(1001.0 + STALLED_AFTER_S)["state"] == "ready"


def test_slow_reader_is_no_stall() -> None:
    board = Board(FACTS)
    key = board.entered(None)
    assert key is not None
    board.submitted(key, 100.0)
    decode(board, 101.0, 1, 0.01)
    board.stepped(report(0, at_s=102.0))
    assert board.slow(10_000.0)["state"] == "ready"


def test_without_a_time_nothing_takes_too_long() -> None:
    assert warmed_up().state(None)["state"] == "ready"
