"""Readiness, derived from admin calls and the engine's answers."""

from __future__ import annotations

from vllm_plugin.state.readiness import ASLEEP, PAUSED, NotReady, Readiness

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
