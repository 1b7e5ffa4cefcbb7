"""Silent streams time out, whatever the reader awaits."""

from __future__ import annotations

import asyncio
import time

import pytest

from orch_sidecar.pools.stream_timeout import StreamTimeout


async def test_silence_ends_the_body_after_the_limit() -> None:
    limit, began = StreamTimeout(0.05), time.monotonic()
    with pytest.raises(TimeoutError):
        async with limit:
            await asyncio.Event().wait()
    assert limit.expired
    assert time.monotonic() - began >= 0.05


async def test_resets_keep_the_body_running_and_leave_nothing_behind() -> None:
    limit = StreamTimeout(0.2)
    async with limit:
        for _ in range(10):
            await asyncio.sleep(0.05)
            limit.reset()
    await asyncio.sleep(0.4)
    assert not limit.expired


async def test_reset_after_a_blocked_event_loop_is_in_time() -> None:
    loop = asyncio.get_running_loop()
    limit, sound = StreamTimeout(0.05), asyncio.Event()
    async with limit:
        loop.call_later(0.01, sound.set)
        time.sleep(0.2)  # noqa: ASYNC251 (the loop is to stand still)
        await sound.wait()
        limit.reset()
    assert not limit.expired


async def test_error_of_the_body_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="own"):
        async with StreamTimeout(1.0):
            raise ValueError("own")
