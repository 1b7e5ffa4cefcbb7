"""The engine's state at either end of a measurement, once nothing moves any more."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from orch_sidecar.bench.endpoint import Endpoint
from orch_sidecar.facts.snapshot import Snapshot, snapshot_of

# An engine tells its counts once a second, and a sidecar tells what it last heard.
TOLD_EVERY_S: Final = 1.2
# Traffic of others may never end: then it shows in the counts.
IDLE_WITHIN_S: Final = 12.0


async def snapshot_when_idle(endpoint: Endpoint, pool: str | None) -> tuple[Any, Snapshot] | None:
    """The capabilities document and what it says of the pool; None if the endpoint has none.

    Taken when two of them, further apart than the engine tells its counts, say the same; after
    IDLE_WITHIN_S as it is. Raises EndpointError and NotASnapshot.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + IDLE_WITHIN_S
    document = await endpoint.ask("/v1/capabilities")
    if document is None:
        return None
    found = snapshot_of(document, pool)
    while True:
        await asyncio.sleep(TOLD_EVERY_S)
        before, document = found, await endpoint.ask("/v1/capabilities")
        found = snapshot_of(document, pool)
        if found == before or loop.time() > until_s:
            return document, found
