"""The engine's state at either end of a measurement, once nothing moves any more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from orch_sidecar.tools.bench.load.endpoint import Endpoint, EndpointError
from orch_sidecar.tools.facts.evidence.snapshot import InvalidSnapshot, Snapshot, parse_snapshot

_PATH: Final = "/v1/capabilities"

# An engine tells its counts once a second, and a sidecar tells what it last heard.
TOLD_EVERY_S: Final = 1.2
# Traffic of others may never end: then the measurement is told that it was not alone.
IDLE_WITHIN_S: Final = 12.0

READY: Final = "ready"


@dataclass(frozen=True, slots=True)
class Look:
    """A capabilities document, what it says of the pool, and the state that the engine is in.

    `idle`: False where an idle engine was waited for in vain.
    """

    document: Any
    snapshot: Snapshot
    state: str
    idle: bool = True


async def look(endpoint: Endpoint, pool: str | None) -> Look | None:
    """As it is now; None if the endpoint does not tell. Raises EndpointError."""
    document = await endpoint.ask(_PATH)
    if document is None:
        return None
    try:
        snapshot = parse_snapshot(document, pool)
    except InvalidSnapshot as error:
        raise EndpointError(f"{endpoint.url}{_PATH}: {error}") from error
    return Look(document, snapshot, _state(document, snapshot.pool))


async def look_when_idle(endpoint: Endpoint, pool: str | None, since: Look, taken: int) -> Look:
    """Once the engine is idle and has told of everything; after IDLE_WITHIN_S as it is.

    Two documents, further apart than the engine tells its counts, then say the same, and no
    sequence is in it: one whose long prompt is read makes no decode step meanwhile. `taken`: of
    how many requests since then they must tell at least, unless the engine is another one: where
    its message comes late, two documents are alike and old. Raises EndpointError.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + IDLE_WITHIN_S
    found = await _there(endpoint, pool)
    while True:
        await asyncio.sleep(TOLD_EVERY_S)
        before, found = found, await _there(endpoint, pool)
        idle = before.snapshot == found.snapshot and not found.snapshot.in_engine
        told = found.state == READY and _tells(found.snapshot, since.snapshot, taken)
        if (idle and told) or loop.time() > until_s:
            return replace(found, idle=idle)


def _tells(found: Snapshot, since: Snapshot, taken: int) -> bool:
    return found.epoch != since.epoch or found.requests_total >= since.requests_total + taken


async def _there(endpoint: Endpoint, pool: str | None) -> Look:
    found = await look(endpoint, pool)
    if found is None:
        raise EndpointError(f"{endpoint.url}{_PATH} is no longer there")
    return found


def _state(document: Any, pool: str) -> str:
    """READY of an engine that does not say."""
    for entry in document["engines"]:
        if isinstance(entry, Mapping) and entry.get("pool") == pool:
            return str(entry.get("state", READY))
    return READY
