"""Streams that are under way in an engine that stands still."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

import aiohttp

from tests.engine.clients import ATTEMPTS, Seen, post
from tests.patience import HANG_S

# One request: the API, its body, its headers.
AdmissionRequest = tuple[str, dict[str, Any], dict[str, str]]

# What the engine has sent is read by then.
_SETTLED_S = 0.3


async def halted(
    http: aiohttp.ClientSession, url: str, pid: int, asks: Sequence[AdmissionRequest]
) -> list[asyncio.Task[Seen]]:
    """Stops a process of the engine (SIGSTOP) once each of these streams has begun.

    On a machine with few cores a client may learn of the beginning only after the end: then all
    of it is tried again.
    """
    for _ in range(ATTEMPTS):
        begun = [asyncio.Event() for _ in asks]
        streams = [
            asyncio.create_task(post(http, url, api, document, headers, event.set))
            for (api, document, headers), event in zip(asks, begun, strict=True)
        ]
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun)), HANG_S)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(_SETTLED_S)
        if not any(stream.done() for stream in streams):
            return streams
        os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*streams)
    raise AssertionError(f"in {ATTEMPTS} attempts some stream was over before the engine stood")
