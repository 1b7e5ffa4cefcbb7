"""The stream of a pool's state over HTTP: a real server, and readers of every kind."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from orch_sidecar import publish
from orch_sidecar.admission.ask import Ask
from orch_sidecar.admission.core import Admission
from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.ledger import Lease
from orch_sidecar.engine import EngineFollower, EngineState
from orch_sidecar.publish import Publisher
from orch_sidecar.reasons import Reason, Refusal
from tests.integration.running import eventually
from tests.orch_sidecar.test_upper import CLOUD, US, entered, lease, ledger, served, view
from vllm_plugin.profile import ServiceClass

STREAM = f"/v1/capabilities/stream?instance={US}"


class Tier:
    """A server that publishes pools, and what its pools are told to call."""

    def __init__(self, *pools: str) -> None:
        self.slots = ledger()
        self.views = {name: view(self.slots, name=name) for name in pools}
        self.attached: list[bool] = []
        self.changed: Callable[[], None] | None = None
        self.publisher = Publisher(
            {name: lambda name=name: self.views[name] for name in pools},  # type: ignore[misc]
            self.attach,
            {"Server": "orch-sidecar"},
        )
        self.leases = self.publisher.leases
        self.url = ""
        self.port = 0

    def attach(self, changed: Callable[[], None] | None) -> None:
        self.attached.append(changed is not None)
        self.changed = changed

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        if http.method == "DELETE":
            answer: Any = self.publisher.revoke(http.path.rpartition("/")[2])
        else:
            answer = await self.publisher.stream(http)
        if isinstance(answer, Refusal):
            return web.json_response({"reason": answer.reason, "param": answer.param}, status=400)
        assert isinstance(answer, web.StreamResponse)
        return answer

    async def start(self) -> web.Server:
        server = web.Server(self.handle, handler_cancellation=True)
        loop = asyncio.get_running_loop()
        self.listener = await loop.create_server(server, "127.0.0.1", 0)
        self.port = self.listener.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return server


@pytest.fixture
async def tier() -> AsyncIterator[Tier]:
    made = Tier("cloud")
    server = await made.start()
    yield made
    made.publisher.close()
    made.listener.close()
    await server.shutdown(1.0)


class Events:
    """The events of an answer."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self, within_s: float = 3.0) -> tuple[str, dict[str, Any]] | None:
        """None: it has ended."""
        async with asyncio.timeout(within_s):
            lines = [(await self.response.content.readline()).decode() for _ in range(1)]
            if lines == [""]:
                return None
            lines += [(await self.response.content.readline()).decode() for _ in range(2)]
        assert lines[0].startswith("event: ")
        assert lines[1].startswith("data: ")
        assert lines[2] == "\n"
        return lines[0][7:].strip(), json.loads(lines[1][6:])

    async def expect(self, name: str) -> dict[str, Any]:
        """The next event, heartbeats aside."""
        while (event := await self.next()) is not None:
            if event[0] == name:
                return event[1]
            assert event[0] == "heartbeat"
        raise AssertionError("the stream ended")


class Client:
    """Requests, and streams that are read until the end of the test."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._streams: list[aiohttp.ClientResponse] = []

    async def read(self, tier: Tier, target: str = STREAM) -> Events:
        response = await self._session.get(tier.url + target)
        self._streams.append(response)
        assert response.status == 200
        return Events(response)

    async def json(self, method: str, url: str) -> Any:
        async with self._session.request(method, url) as response:
            return await response.json()

    def close(self) -> None:
        for response in self._streams:
            response.close()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session:
        made = Client(session)
        yield made
        made.close()


async def test_stream_tells_the_state_and_then_what_changes(tier: Tier, client: Client) -> None:
    presence, own = served(tier.leases, lease(), tier.slots)
    events = await client.read(tier)
    assert events.response.headers["Content-Type"] == "text/event-stream"
    assert events.response.headers["Cache-Control"] == "no-store"
    assert events.response.headers["Server"] == "orch-sidecar"
    state = await events.expect("state")
    assert state["leases"] == [lease()]
    assert (state["slots_total"], state["foreign"]) == (8, 0)
    assert state["observed_at"].endswith("Z")
    tier.slots.grant("another", 2)
    assert tier.changed is not None
    tier.changed()
    assert (await events.expect("change"))["foreign"] == 2
    tier.slots.abandon(own.id)
    tier.leases.leave(presence)
    tier.slots.release(own.id)
    tier.changed()
    assert await events.expect("ended") == {"leases": [lease()]}


async def test_heartbeat_comes_each_second(tier: Tier, client: Client) -> None:
    events = await client.read(tier)
    await events.expect("state")
    started = asyncio.get_running_loop().time()
    assert set(await events.expect("heartbeat")) == {"observed_at"}
    assert 0.5 < asyncio.get_running_loop().time() - started < 1.9


async def test_nobody_is_told_of_changes_while_nobody_listens(tier: Tier, client: Client) -> None:
    assert tier.attached == []
    first, second = [await client.read(tier) for _ in range(2)]
    for events in (first, second):
        await events.expect("state")
    assert tier.attached == [True]
    first.response.close()
    await asyncio.sleep(0.1)
    assert tier.attached == [True]
    second.response.close()
    await eventually(lambda: tier.attached == [True, False])


async def test_reader_costs_no_tasks(tier: Tier, client: Client) -> None:
    events = await client.read(tier)
    await events.expect("state")
    before = len(asyncio.all_tasks())
    for _ in range(50):
        tier.leases.changed()
    assert len(asyncio.all_tasks()) == before


async def test_one_pool_needs_no_name_and_may_be_named(tier: Tier, client: Client) -> None:
    for target in (STREAM, f"{STREAM}&pool=cloud"):
        state = await (await client.read(tier, target)).expect("state")
        assert state["pool"] == "cloud"


async def test_several_pools_have_to_be_named(client: Client) -> None:
    tier = Tier("cloud", "other")
    server = await tier.start()
    nameless = await client.json("GET", tier.url + STREAM)
    assert nameless == {"reason": "invalid_request", "param": "pool"}
    unknown = await client.json("GET", f"{tier.url}{STREAM}&pool=third")
    assert unknown == {"reason": "not_found", "param": "pool"}
    state = await (await client.read(tier, f"{STREAM}&pool=other")).expect("state")
    assert state["pool"] == "other"
    tier.publisher.close()
    tier.listener.close()
    await server.shutdown(1.0)


async def test_lease_is_revoked_as_the_plugin_does(tier: Tier, client: Client) -> None:
    async def revoke(what: str) -> Any:
        return await client.json("DELETE", f"{tier.url}/v1/capabilities/leases/{what}")

    presence = entered(tier.leases, lease())
    assert await revoke(lease()) == {"ended": False}
    tier.leases.leave(presence)
    assert await revoke(lease()) == {"ended": True}
    assert await revoke(lease(number=2)) == {"ended": True}
    assert tier.leases.enter(lease(number=2)) is None
    assert await revoke("nonsense") == {"reason": "invalid_request", "param": None}


async def test_draining_pool_goes_on_telling_of_ends(tier: Tier, client: Client) -> None:
    presence = entered(tier.leases, lease())
    events = await client.read(tier)
    await events.expect("state")
    tier.views["cloud"] = replace(tier.views["cloud"], state="draining", message="leaving")
    tier.leases.changed()
    assert (await events.expect("change"))["state"] == "draining"
    tier.leases.leave(presence)
    assert await events.expect("ended") == {"leases": [lease()]}


async def test_closing_ends_the_streams_and_refuses_later_ones(tier: Tier, client: Client) -> None:
    events = await client.read(tier)
    await events.expect("state")
    tier.publisher.close()
    assert await events.next(within_s=0.5) is None
    assert (await client.json("GET", tier.url + STREAM))["reason"] == "draining"
    assert tier.attached == [True, False]


def stuck(tier: Tier) -> socket.socket:
    """A reader that asks and then reads nothing."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", tier.port))
    reader.sendall(f"GET {STREAM} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return reader


async def fill(tier: Tier, until: Callable[[], object]) -> None:
    """Makes changes, each too large for a buffer or two."""
    large = "x" * 500_000
    for number in range(200):
        tier.views["cloud"] = replace(tier.views["cloud"], message=f"{number}{large}")
        tier.leases.changed()
        await asyncio.sleep(0.025)
        if until():
            return
    raise AssertionError("nothing came of it")


async def test_reader_that_falls_behind_is_dropped(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "TAKES_WITHIN_S", 0.1)
    with stuck(tier):
        await eventually(lambda: tier.attached == [True])
        await fill(tier, lambda: tier.attached == [True, False])


async def test_reader_that_is_behind_does_not_hold_up_the_end(tier: Tier) -> None:
    with stuck(tier):
        await eventually(lambda: tier.attached == [True])
        [transport] = tier.publisher._transports.values()
        await fill(tier, transport.get_write_buffer_size)
        tier.publisher.close()
        await eventually(lambda: tier.attached == [True, False], within_s=0.5)


async def test_reader_that_leaves_at_once_leaves_nothing_behind(tier: Tier) -> None:
    for _ in range(20):
        stuck(tier).close()
    await asyncio.sleep(0.1)
    await eventually(lambda: not tier.publisher._transports)
    assert not tier.leases.listened


# As the sidecar above reads it.


class Above:
    """The admission of a sidecar above, which follows the tier as it would an engine."""

    def __init__(self, session: aiohttp.ClientSession, tier: Tier) -> None:
        self.gate = Gate(Admission(CLOUD.admission))
        self.ledger = self.gate.core.ledger
        self.follower = EngineFollower(session, tier.url, {}, self.gate, CLOUD)
        loop = asyncio.get_running_loop()
        self.tasks = [
            loop.create_task(self.follower.follow()),
            loop.create_task(self.follower.confirm()),
        ]

    def take(self, cost: int = 1) -> Lease:
        request = self.gate.new_id(cost)
        got = self.gate.ask(request, Ask(ServiceClass.INTERACTIVE, cost))
        assert isinstance(got, Lease)
        return got

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def above(tier: Tier) -> AsyncIterator[Above]:
    async with aiohttp.ClientSession() as session:
        made = Above(session, tier)
        await eventually(lambda: made.follower.ready)
        yield made
        await made.stop()


async def test_sidecar_above_counts_its_own_requests_once(tier: Tier, above: Above) -> None:
    assert above.ledger.slots_total == 8
    ours = above.take(cost=2)
    tier.slots.grant("a client below", 3)
    served(tier.leases, ours.id, tier.slots, cost=2)
    await eventually(lambda: above.ledger.foreign)
    assert (above.ledger.leased, above.ledger.foreign, above.ledger.room) == (2, 3, 3)
    assert above.follower.message == ""


async def test_sidecar_above_gets_slots_of_an_abort_back_when_the_engine_confirmed_it(
    tier: Tier, above: Above
) -> None:
    ours = above.take()
    presence, own = served(tier.leases, ours.id, tier.slots)
    above.gate.abandon(ours.id)
    tier.slots.abandon(own.id)
    tier.leases.leave(presence)
    await asyncio.sleep(0.1)
    assert above.ledger.leased == 1
    tier.slots.release(own.id)
    tier.leases.changed()
    await eventually(lambda: not above.ledger.leased, within_s=0.5)


async def test_sidecar_above_asks_for_leases_that_never_came_here(tier: Tier, above: Above) -> None:
    ours = above.take()
    above.gate.abandon(ours.id)
    await eventually(lambda: not above.ledger.leased)
    assert tier.leases.enter(ours.id) is None


@pytest.mark.parametrize("state", ["starting", "draining", "stalled", "stale", "down", "unusable"])
async def test_sidecar_above_admits_nothing_while_the_pool_is_not_ready(
    tier: Tier, above: Above, state: str
) -> None:
    ready = tier.views["cloud"]
    tier.views["cloud"] = replace(ready, state=state, message="because of this")
    tier.leases.changed()
    await eventually(lambda: not above.follower.ready)
    assert above.follower.state is EngineState(state)
    assert "because of this" in above.follower.message or state == "stalled"
    refusal = above.gate.ask(above.gate.new_id(1), Ask(ServiceClass.BULK))
    assert isinstance(refusal, Refusal)
    assert refusal.reason in {Reason(reason) for reason in Reason if reason.startswith("engine_")}
    tier.views["cloud"] = ready
    tier.leases.changed()
    await eventually(lambda: above.follower.ready)
    above.take()


async def test_restart_of_either_below_ends_the_leases_of_the_sidecar_above(
    tier: Tier, above: Above
) -> None:
    above.take()
    tier.slots.begin_epoch("e2")
    tier.leases.changed()
    await eventually(lambda: not above.ledger.leased)
    above.take()
    tier.leases.run = "another"
    tier.leases.changed()
    await eventually(lambda: not above.ledger.leased)


async def test_sidecar_above_waits_for_a_pool_whose_engine_never_reported(tier: Tier) -> None:
    ready, tier.views["cloud"] = tier.views["cloud"], view(ledger(0), engine=None, state="starting")
    async with aiohttp.ClientSession() as session:
        above = Above(session, tier)
        await asyncio.sleep(0.2)
        assert above.follower.state is EngineState.STARTING
        tier.views["cloud"] = ready
        tier.leases.changed()
        await eventually(lambda: above.follower.ready, within_s=0.5)
        await above.stop()
