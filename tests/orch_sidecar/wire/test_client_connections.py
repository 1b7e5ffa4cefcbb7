"""Checks of many connections, in parts between which the event loop runs; and of their responses:
those that make no progress are ended, independently of each other.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.pool import LONGEST_SILENCE_S
from orch_sidecar.wire.client_connection import ClientConnection
from orch_sidecar.wire.client_connections import (
    CHECKED_PER_TURN,
    ActiveResponse,
    ClientConnections,
    StallWatchdog,
)


class Unread:
    """A connection whose client reads nothing of what was sent."""

    transport: asyncio.Transport | None = None
    response: ActiveResponse | None = None
    is_idle = reads_ahead = False

    def __init__(self) -> None:
        self.unsent_bytes = 1000
        self.aborted = False

    def force_close(self) -> None:
        raise AssertionError("it is not idle")

    def close_after_current(self) -> None:
        raise AssertionError("it reads nothing ahead")

    def abort(self) -> None:
        self.aborted = True

    def refuse_upload(self, refusal: Refusal) -> None:
        raise AssertionError("nothing arrives")


async def test_event_loop_runs_between_parts_of_a_check() -> None:
    connections = ClientConnections(limit=10_000, name="clients")
    unread = [Unread() for _ in range(2 * CHECKED_PER_TURN + 1)]
    for connection in unread:
        assert connections.enter(connection)
    for _ in range(2):
        list(connections.check(1.0, 1.0))
    assert not any(connection.aborted for connection in unread)
    unread[0].unsent_bytes -= 1  # this one reads again
    check = connections.check(1.0, 1.0)
    next(check)
    assert sum(connection.aborted for connection in unread) == CHECKED_PER_TURN - 1
    connections.leave(unread[-1])  # it ends meanwhile
    unread[-1].unsent_bytes = 0
    assert len(list(check)) == 2
    assert connections.closed_stalled == 2 * CHECKED_PER_TURN - 1
    assert not unread[0].aborted


async def test_client_that_has_left_does_not_fail_the_end_of_its_connection() -> None:
    """asyncio's own event loop says that nobody is there."""

    def gone() -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    connection = SimpleNamespace(
        transport=SimpleNamespace(
            is_closing=lambda: False, write_eof=gone, resume_reading=lambda: None
        ),
        _loop=asyncio.get_running_loop(),
        _lingering_time=0.0,
    )
    last = SimpleNamespace(asks_to_close=False)
    assert not await ClientConnection._linger(cast(Any, connection), cast(Any, last))


class Answer:
    """A response that records how it was ended; or cannot be ended."""

    def __init__(self, *, broken: bool = False, paused: bool = False) -> None:
        self.paused = paused
        self.keep_alive = True
        self.silence_limit_s: Callable[[], float] | None = lambda: LONGEST_SILENCE_S
        self.progress = (0, 0)
        self.aborted = False
        self.failures: list[Reason] = []
        self._broken = broken

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def abort_client(self) -> None:
        self.aborted = True

    def fail(self, refusal: Refusal) -> None:
        if self._broken:
            raise ValueError("it cannot be ended")
        self.failures.append(refusal.reason)


def watched(*answers: Answer) -> StallWatchdog:
    watch = StallWatchdog(engine_silence_s=2.0, client_stall_s=3.0)
    for answer in answers:
        watch.add(answer)
    return watch


def test_silent_engine_ends_the_response_after_its_timeout() -> None:
    answer = Answer()
    watch = watched(answer)
    for _ in range(2):
        list(watch.check(1.0))
    assert answer.failures == []
    list(watch.check(1.0))
    assert answer.failures == [Reason.ENGINE_TIMEOUT]
    assert not answer.aborted


def test_client_that_does_not_read_is_dropped_after_its_timeout() -> None:
    answer = Answer(paused=True)
    watch = watched(answer)
    for _ in range(4):
        list(watch.check(1.0))
    assert answer.failures == [Reason.CLIENT_STALLED]
    assert answer.aborted


def test_response_that_makes_progress_continues() -> None:
    answer = Answer()
    watch = watched(answer)
    for number in range(10):
        answer.progress = (number, 0)
        list(watch.check(1.0))
    assert answer.failures == []


def test_failure_to_end_one_response_does_not_affect_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    others = [Answer() for _ in range(8)]
    watch = watched(Answer(broken=True), *others)
    for _ in range(3):
        list(watch.check(1.0))
    assert [other.failures for other in others] == [[Reason.ENGINE_TIMEOUT]] * 8
    assert "could not be ended" in caplog.text


def test_event_loop_runs_between_parts_of_a_check_of_responses() -> None:
    answers = [Answer() for _ in range(2 * CHECKED_PER_TURN + 1)]
    watch = StallWatchdog(engine_silence_s=0.0, client_stall_s=3.0)
    for answer in answers:
        watch.add(answer)
    check = watch.check(1.0)
    next(check)
    assert sum(len(answer.failures) for answer in answers) == CHECKED_PER_TURN
    answers[-1].silence_limit_s = None  # it ends meanwhile
    assert len(list(check)) == 1
    assert [len(answer.failures) for answer in answers] == [1] * 2 * CHECKED_PER_TURN + [0]


def test_silence_is_limited_by_what_is_known_of_the_engine_unless_it_is_set() -> None:
    hung, reading = Answer(), Answer()
    hung.silence_limit_s = lambda: 30.0
    watch = StallWatchdog(None, client_stall_s=3.0)
    watch.add(hung)
    watch.add(reading)
    for _ in range(31):
        list(watch.check(1.0))
    assert (hung.failures, reading.failures) == ([Reason.ENGINE_TIMEOUT], [])
    watch.configure(20.0, 3.0)
    list(watch.check(1.0))
    assert reading.failures == [Reason.ENGINE_TIMEOUT]


def test_engine_that_is_heard_of_again_may_be_silent_for_longer() -> None:
    limits_s, answer = [30.0], Answer()
    watch = StallWatchdog(None, client_stall_s=3.0)
    answer.silence_limit_s = lambda: limits_s[-1]
    watch.add(answer)
    for _ in range(29):
        list(watch.check(1.0))
    limits_s.append(LONGEST_SILENCE_S)
    for _ in range(30):
        list(watch.check(1.0))
    assert answer.failures == []
