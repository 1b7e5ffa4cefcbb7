"""When an engine that takes no requests is expected back."""

from __future__ import annotations

from orch_sidecar.admission.availability import FIRST_ABSENCE_S, MAX_RETRY_S, Absence
from orch_sidecar.api.refusal import Reason, Refusal

STARTING, STALE, DOWN = Reason.ENGINE_STARTING, Reason.ENGINE_STALE, Reason.ENGINE_DOWN
STALLED = Reason.ENGINE_STALLED


def test_first_time_it_is_away_as_long_again_as_it_has_been() -> None:
    absence = Absence(10.0)
    assert [absence.remaining_s(now) for now in (10.0, 10.5, 13.0, 40.0)] == [
        FIRST_ABSENCE_S,
        1.0,
        3.0,
        30.0,
    ]
    absence.ended(50.0)
    assert absence.remaining_s(51.0) == 0.0


def test_next_time_it_is_away_as_long_as_the_last_time_and_then_as_long_again() -> None:
    absence = Absence(0.0)
    absence.ended(90.0)
    absence.began(STARTING, 100.0, expected=True)
    assert [absence.remaining_s(now) for now in (100.0, 130.0, 189.0, 200.0)] == [
        90.0,
        60.0,
        1.0,
        100.0,
    ]
    absence.ended(120.0)
    absence.began(STARTING, 200.0, expected=True)
    assert absence.remaining_s(200.0) == 20.0, "the last time counts"


def test_each_way_of_being_away_has_its_own_time_from_its_beginning_to_the_end() -> None:
    absence = Absence(0.0)
    absence.ended(5.0)
    for reason, at in ((STALE, 100.0), (DOWN, 103.0), (STARTING, 110.0)):
        absence.began(reason, at, expected=True)
    absence.ended(150.0)
    absence.began(STALE, 200.0, expected=True)
    assert absence.remaining_s(200.0) == 50.0
    absence.began(DOWN, 201.0, expected=True)
    assert absence.remaining_s(201.0) == 47.0
    assert (absence.last_duration_s(STALE), absence.last_duration_s(STALLED)) == (50.0, 0.0)


def test_what_is_known_of_its_return_is_kept_while_nothing_new_is_known() -> None:
    absence = Absence(0.0)
    assert absence.expected, "it starts"
    absence.ended(1.0)
    absence.began(STALE, 2.0, expected=None)
    assert not absence.expected, "it may have crashed"
    absence.began(DOWN, 3.0, expected=None)
    assert not absence.expected
    absence.began(STARTING, 4.0, expected=True)
    absence.began(STALE, 5.0, expected=None)
    assert absence.expected
    absence.began(Reason.ENGINE_PAUSED, 6.0, expected=False)
    assert not absence.expected


def test_refusal_says_when_to_come_again_and_whether_a_request_would_start_then() -> None:
    absence, away = Absence(0.0), Refusal(STARTING, "it loads")
    found = absence.refusal(away, 8.0)
    assert (found.reason, found.message) == (STARTING, "it loads")
    assert (found.retry_after_ms, found.predicted_start_ms) == (8000, 8000)
    absence.began(Reason.ENGINE_PAUSED, 8.0, expected=False)
    found = absence.refusal(away, 8.0)
    assert (found.retry_after_ms, found.predicted_start_ms) == (1000, None)
    absence.began(STARTING, 500.0, expected=True)
    assert absence.refusal(away, 500.0).retry_after_ms == 1000 * MAX_RETRY_S


def test_addresses_of_a_pool_learn_together() -> None:
    lasted: dict[Reason, float] = {}
    Absence(0.0, lasted).ended(70.0)
    assert Absence(100.0, lasted).remaining_s(110.0) == 60.0
