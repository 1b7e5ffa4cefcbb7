"""Outlining large bodies neither blocks the event loop nor is blocked by it."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from orch_sidecar.api.body_outline import SLICE_BYTES
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.wire.request_body import BodyReader

SLICES = 256
BODY = b'{"prompt": "%b"}' % (b"x" * (SLICES * SLICE_BYTES - 32))


@pytest.mark.parametrize(("slice_ms", "least", "most"), [(0.1, 10, 20), (5.0, SLICES, SLICES + 8)])
async def test_event_loop_runs_between_slices(
    monkeypatch: pytest.MonkeyPatch, slice_ms: float, least: int, most: int
) -> None:
    clock = count()
    monkeypatch.setattr(
        "orch_sidecar.wire.request_body.time.perf_counter", lambda: next(clock) * slice_ms / 1000
    )
    reader = BodyReader(SidecarSettings())
    outlining = asyncio.create_task(reader.outlined(BODY, len))
    turns = 0
    while not outlining.done():
        await asyncio.sleep(0)
        turns += 1
    assert await outlining
    assert least <= turns <= most
