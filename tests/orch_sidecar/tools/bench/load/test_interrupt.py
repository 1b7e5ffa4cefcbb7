"""Ctrl-C, as something to wait for."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from orch_sidecar.tools.bench.load.driver import (
    Interrupted,
    cancel_and_wait,
    interrupts,
    unless_interrupted,
)


async def test_work_that_ends_first_gives_what_it_returns() -> None:
    async def work() -> int:
        return 7

    assert await unless_interrupted(asyncio.Event(), work()) == 7


async def test_work_that_fails_first_raises_its_own_error() -> None:
    async def work() -> int:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await unless_interrupted(asyncio.Event(), work())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_ends_the_work_and_lets_it_clean_up(number: signal.Signals) -> None:
    cleaned = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with interrupts() as interrupted, pytest.raises(Interrupted):
        await unless_interrupted(interrupted, work())
    assert cleaned == [True]
    assert interrupted.is_set()


async def test_interruption_that_has_come_already_counts() -> None:
    event = asyncio.Event()
    event.set()
    with pytest.raises(Interrupted):
        await unless_interrupted(event, asyncio.Event().wait())


async def test_signals_are_python_s_own_again_afterwards() -> None:
    with interrupts():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_cancelled_waits_until_all_have_ended() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    tasks = [asyncio.create_task(work()) for _ in range(3)]
    await asyncio.sleep(0)
    await cancel_and_wait(tasks)
    assert ended == [True] * 3
