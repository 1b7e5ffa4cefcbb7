"""Silence ends what it holds, however that waits."""

from __future__ import annotations

import asyncio
import time

import pytest

from orch_sidecar.wire.stream_timeout import StreamTimeout


async def test_silence_ends_the_body_after_the_limit() -> None:
    silence, began = StreamTimeout(0.05), time.monotonic()
    with pytest.raises(TimeoutError):
        async with silence:
            await asyncio.Event().wait()
    assert silence.expired
    assert time.monotonic() - began >= 0.05


async def test_sounds_keep_the_body_alive_and_leave_nothing_behind() -> None:
    silence = StreamTimeout(0.2)
    async with silence:
        for _ in range(10):
            await asyncio.sleep(0.05)
            silence.reset()
    await asyncio.sleep(0.4)
    assert not silence.expired


async def test_sound_that_came_while_the_loop_stood_still_is_in_time() -> None:
    loop = asyncio.get_running_loop()
    silence, sound = StreamTimeout(0.05), asyncio.Event()
    async with silence:
        loop.call_later(0.01, sound.set)
        time.sleep(0.2)  # noqa: ASYNC251 (the loop is to stand still)
        await sound.wait()
        silence.reset()
    assert not silence.expired


async def test_error_of_the_body_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="own"):
        async with StreamTimeout(1.0):
            raise ValueError("own")
