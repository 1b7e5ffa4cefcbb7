"""Whether the engine takes work, of what calls and the engine say."""

from __future__ import annotations

from vllm_plugin.duty import ASLEEP, PAUSED, Duty, Hold

CALL = Hold(PAUSED, "POST /pause was called")


def state(duty: Duty) -> str | None:
    return None if duty.hold is None else duty.hold.state


def ask(duty: Duty, *, sleeping: bool) -> None:
    duty.answered(duty.asking(), sleeping=sleeping)


def test_engine_takes_work_until_something_holds_it_up() -> None:
    duty = Duty()
    assert duty.hold is None
    ask(duty, sleeping=False)
    assert duty.hold is None


def test_pause_is_known_from_the_call_and_then_from_the_engine() -> None:
    duty = Duty()
    key = duty.began(CALL)
    assert duty.hold == CALL
    asked = duty.asking()
    duty.ended(key)
    duty.answered(asked, sleeping=False)
    assert duty.hold == CALL, "the engine was asked before the call had ended"
    ask(duty, sleeping=True)
    assert state(duty) == PAUSED
    ask(duty, sleeping=False)
    assert duty.hold is None


def test_pause_that_came_another_way_is_seen() -> None:
    duty = Duty()
    ask(duty, sleeping=True)
    assert state(duty) == PAUSED


def test_sleep_is_told_from_a_pause_until_the_engine_is_awake() -> None:
    duty = Duty()
    duty.slept()
    assert state(duty) == ASLEEP
    ask(duty, sleeping=True)
    assert state(duty) == ASLEEP
    ask(duty, sleeping=False)
    assert duty.hold is None
    ask(duty, sleeping=True)
    assert state(duty) == PAUSED, "that sleep is over"


def test_update_of_the_weights_lasts_until_its_end() -> None:
    duty = Duty()
    key = duty.began(CALL)
    duty.updating(key)
    ask(duty, sleeping=False)
    assert duty.hold == CALL
    duty.updated()
    ask(duty, sleeping=False)
    assert duty.hold is None
