"""Whether the engine takes work, of what calls and the engine say."""

from __future__ import annotations

from vllm_plugin.readiness import ASLEEP, PAUSED, NotReady, Readiness

CALL = NotReady(PAUSED, "POST /pause was called")


def state(readiness: Readiness) -> str | None:
    return None if readiness.not_ready is None else readiness.not_ready.state


def ask(readiness: Readiness, *, sleeping: bool) -> None:
    readiness.query_answered(readiness.query_began(), sleeping=sleeping)


def test_engine_takes_work_until_something_holds_it_up() -> None:
    readiness = Readiness()
    assert readiness.not_ready is None
    ask(readiness, sleeping=False)
    assert readiness.not_ready is None


def test_pause_is_known_from_the_call_and_then_from_the_engine() -> None:
    readiness = Readiness()
    key = readiness.call_began(CALL)
    assert readiness.not_ready == CALL
    asked = readiness.query_began()
    readiness.call_ended(key)
    readiness.query_answered(asked, sleeping=False)
    assert readiness.not_ready == CALL, "the engine was asked before the call had ended"
    ask(readiness, sleeping=True)
    assert state(readiness) == PAUSED
    ask(readiness, sleeping=False)
    assert readiness.not_ready is None


def test_pause_that_came_another_way_is_seen() -> None:
    readiness = Readiness()
    ask(readiness, sleeping=True)
    assert state(readiness) == PAUSED


def test_sleep_is_told_from_a_pause_until_the_engine_is_awake() -> None:
    readiness = Readiness()
    readiness.sleep_called()
    assert state(readiness) == ASLEEP
    ask(readiness, sleeping=True)
    assert state(readiness) == ASLEEP
    ask(readiness, sleeping=False)
    assert readiness.not_ready is None
    ask(readiness, sleeping=True)
    assert state(readiness) == PAUSED, "that sleep is over"


def test_update_of_the_weights_lasts_until_its_end() -> None:
    readiness = Readiness()
    key = readiness.call_began(CALL)
    readiness.update_began(key)
    ask(readiness, sleeping=False)
    assert readiness.not_ready == CALL
    readiness.update_ended()
    ask(readiness, sleeping=False)
    assert readiness.not_ready is None
