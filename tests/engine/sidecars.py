"""Further sidecars in front of engines that run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from orch_sidecar.tools.local.stack import Child, free_port
from tests.engine.clients import until
from tests.patience import HANG_S


@contextmanager
def sidecar(log: Path, *pools: dict[str, Any], **environ: str) -> Iterator[str]:
    """Runs a sidecar in front of these pools; yields its URL. `environ`: further variables."""
    port = free_port()
    child = Child(
        log.stem,
        [sys.executable, "-m", "orch_sidecar", "sidecar", "--port", str(port)],
        dict(os.environ) | {"ORCH_POOLS": json.dumps(pools)} | environ,
        log,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        assert child.stop(HANG_S) == 0, child.last_lines(30)


async def states(http: aiohttp.ClientSession, url: str) -> dict[str, dict[str, Any]]:
    """The entries of a sidecar's capabilities, by pool."""
    async with http.get(f"{url}/v1/capabilities") as response:
        document = await response.json()
    return {entry["pool"]: entry for entry in document["engines"]}


async def all_ready(http: aiohttp.ClientSession, url: str, within_s: float = HANG_S) -> None:
    """Waits until every pool of a sidecar is ready."""

    async def ready() -> bool:
        try:
            found = await states(http, url)
        except aiohttp.ClientError:
            return False
        return {entry["state"] for entry in found.values()} == {"ready"}

    await until(ready, within_s)
