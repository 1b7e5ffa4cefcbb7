"""A real engine that is asked to end. The last test of `home`."""

from __future__ import annotations

import signal

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import is_ready, session, until
from tests.engine.conftest import Stacks
from tests.patience import HANG_S


async def test_the_engine_leaves_at_sigterm_although_the_stream_is_open(
    home: Stack, stacks: Stacks
) -> None:
    assert home.engine is not None
    async with session() as http:
        await until(lambda: is_ready(http, home))  # the sidecar reads the stream
    engine = home.engine

    async def has_left() -> bool:
        return engine.exit_code is not None

    engine.signal(signal.SIGTERM)
    await until(has_left)  # a server that waits for the stream's end waits for ever
    assert home.sidecar is not None
    assert home.sidecar.stop(HANG_S) == 0  # a sidecar without an engine leaves as well
    stacks.stop("home")
