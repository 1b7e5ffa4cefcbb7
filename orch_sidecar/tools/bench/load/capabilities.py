"""The state of the engine before and after a measurement, read from `/v1/capabilities`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from orch_sidecar.tools.bench.load.endpoint import Endpoint, EndpointError
from orch_sidecar.tools.facts.labels.snapshot import InvalidSnapshot, Snapshot, parse_snapshot

_PATH: Final = "/v1/capabilities"

# An engine reports its counters once a second, and a sidecar serves the last report.
REPORT_INTERVAL_S: Final = 1.2
# Other traffic may never end: the measurement then records that the engine was not idle.
IDLE_TIMEOUT_S: Final = 12.0
# Often enough to lose little time, and seldom enough to cost a run nothing. Reports come each
# second: the looks begin shortly before the second next one.
WATCH_INTERVAL_S: Final = 1.9
LOOK_S: Final = 0.05
MOST_LOOKS: Final = 24

READY: Final = "ready"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """A capabilities document, and the snapshot of the pool in it.

    `idle`: False where the engine did not become idle in time.
    """

    document: Any
    snapshot: Snapshot
    idle: bool = True

    @property
    def entry(self) -> Mapping[str, Any]:
        """The engine of the pool in the document."""
        return entry_of(self.document, self.snapshot.pool)


def entry_of(document: Any, pool: str) -> Mapping[str, Any]:
    """Returns the engine of a pool in a document, which is valid; empty where there is none."""
    entries = (each for each in document["engines"] if isinstance(each, Mapping))
    return next((each for each in entries if each.get("pool") == pool), {})


async def read_capabilities(endpoint: Endpoint, pool: str | None) -> Capabilities | None:
    """Returns the current capabilities, None if the endpoint has none, whatever it answers instead.

    Raises EndpointError where they are incomplete, and where nothing answers.
    """
    document = await endpoint.fetch_json(_PATH, optional=True)
    if not isinstance(document, Mapping) or "engines" not in document:
        return None
    try:
        snapshot = parse_snapshot(document, pool)
    except InvalidSnapshot as error:
        raise EndpointError(f"{endpoint.url}{_PATH}: {error}") from error
    return Capabilities(document, snapshot)


async def wait_until_idle(
    endpoint: Endpoint, pool: str | None, since: Capabilities, requests: int
) -> Capabilities:
    """Returns the capabilities once the engine is idle, or after IDLE_TIMEOUT_S.

    The engine is idle when it holds no sequence and two documents, further apart than its report
    interval, agree: while it reads a long prompt its counters do not move either. They must also
    count at least `requests` more requests than `since`, unless the engine was restarted: two
    documents also agree while a report is late. Raises EndpointError.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + IDLE_TIMEOUT_S
    found, begun = await _read_existing(endpoint, pool), since.snapshot
    while True:
        await asyncio.sleep(REPORT_INTERVAL_S)
        before, found = found, await _read_existing(endpoint, pool)
        now = found.snapshot
        idle = before.snapshot == now and not now.in_engine
        counted = now.requests_total >= begun.requests_total + requests
        complete = now.state == READY and (counted or now.epoch != begun.epoch)
        if (idle and complete) or loop.time() > deadline_s:
            return replace(found, idle=idle)


async def accepted_of_others(
    endpoint: Endpoint, pool: str | None, since: Snapshot, sent: Callable[[], int]
) -> int:
    """Returns how many requests of others the engine has accepted, once there are any.

    `sent`: returns how many requests of this run may have reached it by now. The engine counted a
    moment ago, so fewer than were sent since then do not show yet. One that cannot be asked, or was
    restarted, shows none, either: the states at the end of the run tell.
    """
    while True:
        await asyncio.sleep(WATCH_INTERVAL_S)
        busy_s: float | None = None
        for _ in range(MOST_LOOKS):  # until a new report, when least was sent since it was made
            try:
                found = (await _read_existing(endpoint, pool)).snapshot
            except EndpointError:  # at the end it is an objection, should it last
                break
            others = found.requests_total - since.requests_total - sent()
            if found.epoch == since.epoch and others > 0:
                return others
            if busy_s not in (None, found.busy_s):
                break
            busy_s = found.busy_s
            await asyncio.sleep(LOOK_S)


async def _read_existing(endpoint: Endpoint, pool: str | None) -> Capabilities:
    found = await read_capabilities(endpoint, pool)
    if found is None:
        raise EndpointError(f"{endpoint.url}{_PATH} no longer exists")
    return found
