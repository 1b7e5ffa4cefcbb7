"""Ctrl-C: the end of what is done, or of a part of it."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from orch_sidecar.tools.bench.load.driver import (
    Interrupted,
    cancelled_by_signals,
    interruptible,
    until_seen,
)


async def endless(ended: list[bool], number: int = 0) -> None:
    """Sends itself a signal first."""
    try:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.append(True)


async def seen() -> int:
    return 7


async def failing() -> None:
    raise asyncio.QueueEmpty


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_each_signal_ends_what_can_be_interrupted_and_lets_it_clean_up(
    number: signal.Signals,
) -> None:
    cleaned: list[bool] = []
    with cancelled_by_signals():
        for _ in range(2):
            with pytest.raises(Interrupted), interruptible():
                await endless(cleaned, number)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
    assert cleaned == [True] * 2
    with pytest.raises(Interrupted), cancelled_by_signals():
        await endless(cleaned, number)


async def test_signals_are_python_s_own_again_afterwards() -> None:
    with cancelled_by_signals():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_work_is_done_until_something_is_seen_and_the_first_to_end_ends_both() -> None:
    ended: list[bool] = []
    assert await until_seen(endless(ended), seen()) == 7
    await until_seen(asyncio.sleep(0), endless(ended))
    with pytest.raises(asyncio.QueueEmpty):
        await until_seen(failing(), endless(ended))
    assert ended == [True] * 3


async def test_cancellation_ends_both() -> None:
    ended: list[bool] = []
    both = asyncio.create_task(until_seen(endless(ended), endless(ended)))
    await asyncio.sleep(0.01)
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    assert ended == [True] * 2
