"""A real engine that is asked to end. The last test of `home`."""

from __future__ import annotations

import asyncio
import signal
import time

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import is_ready, session, until
from tests.engine.conftest import Stacks


async def test_the_engine_leaves_within_3_s_of_sigterm_although_the_stream_is_open(
    home: Stack, stacks: Stacks
) -> None:
    assert home.engine is not None
    async with session() as http:
        await until(lambda: is_ready(http, home), 5.0)  # the sidecar reads the stream
    started = time.monotonic()
    home.engine.signal(signal.SIGTERM)
    while home.engine.exit_code is None:
        await asyncio.sleep(0.02)
        assert time.monotonic() - started < 10
    took = time.monotonic() - started
    assert home.sidecar is not None
    assert home.sidecar.stop(10.0) == 0  # a sidecar without an engine leaves as well
    stacks.stop("home")
    assert took < 3.0
