"""A sidecar that runs in the test's own event loop, and what tests ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from orch_sidecar.app.sidecar import Sidecar
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.pools.pool import Pool
from orch_sidecar.wire.client_connection import ClientConnection
from tests.integration.client import Client
from tests.integration.scripted_engine import ScriptedEngine
from tests.patience import HANG_S

LOOK_EVERY_S: Final = 0.005


async def eventually(condition: Callable[[], object], within_s: float = HANG_S) -> None:
    """Returns when the condition holds; fails when it does not within the time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not condition():
        assert loop.time() < deadline, "the condition did not come true in time"
        await asyncio.sleep(LOOK_EVERY_S)


class Running:
    """A sidecar that listens, and the clients a test has made to it."""

    def __init__(self, sidecar: Sidecar, port: int) -> None:
        self.sidecar = sidecar
        self.port = port
        self.clients: list[Client] = []
        self.stopped = False

    @property
    def pool(self) -> Pool:
        """The first pool; in most tests the only one."""
        return self.sidecar.pools.all[0]

    @property
    def ledger(self) -> Any:
        return self.pool.ledger

    @property
    def queued(self) -> int:
        """Over all pools."""
        return sum(pool.queues.depth for pool in self.sidecar.pools)

    @property
    def connections(self) -> list[ClientConnection]:
        """The connections that clients have to this sidecar now."""
        return cast("list[ClientConnection]", self.sidecar._server.connections)

    async def client(self, *, receive_buffer: int | None = None) -> Client:
        client = await Client.connect(self.port, receive_buffer=receive_buffer)
        self.clients.append(client)
        return client

    async def ready(self, within_s: float = HANG_S) -> None:
        await eventually(lambda: self.sidecar.state is PoolState.READY, within_s)

    async def idle(self, within_s: float = HANG_S) -> None:
        """Waits until no lease is out and no request is being handled."""
        await eventually(
            lambda: (
                not any(pool.ledger.leased for pool in self.sidecar.pools)
                and not self.sidecar.watchdog.responses()
                and not self.queued
            ),
            within_s,
        )

    async def capabilities(self) -> dict[str, Any]:
        client = await self.client()
        response = await client.get("/v1/capabilities")
        entry: dict[str, Any] = response.json()["engines"][0]
        return entry

    async def metrics(self, *headers: tuple[str, str]) -> dict[str, float]:
        """Sample (name with labels, as in the text format) to value."""
        client = await self.client()
        text = (await client.get("/metrics", headers)).body.decode()
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            await self.sidecar.stop()


def total(metrics: dict[str, float], name: str, **labels: object) -> float:
    """The sum of the samples with that name and all these labels."""
    wanted = {f'{label}="{value}"' for label, value in labels.items()}
    return sum(
        value
        for sample, value in metrics.items()
        if sample.startswith(name + "{") and wanted <= {*sample[len(name) + 1 : -1].split(",")}
    )


Start = Callable[..., Awaitable[Running]]


def pools(**engines: ScriptedEngine) -> dict[str, Any]:
    """The setting for engines by the name of their pool."""
    return {
        "pools": [
            {"name": name, "url": engine.url, "profile": engine.profile}
            for name, engine in engines.items()
        ]
    }


async def all_ready(running: Running) -> Running:
    """Waits until every pool is ready."""
    await eventually(lambda: all(pool.watcher.ready for pool in running.sidecar.pools))
    return running
