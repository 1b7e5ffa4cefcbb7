"""The stream of a pool's state over HTTP: a real server, and readers of every kind.

Those that name no instance: all are sent the same. The limits of all readers.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.control import capabilities, state_stream, stream_readers
from orch_sidecar.control.stream_readers import MAX_READERS, MAX_READERS_PER_CLIENT, Reader, Readers
from tests.integration.running import eventually
from tests.orch_sidecar.parents import entered, grant, lease, served
from tests.orch_sidecar.published import STREAM, Tier
from tests.patience import HANG_S


class Events:
    """The events of an answer."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self, within_s: float = HANG_S) -> tuple[str, dict[str, Any]] | None:
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


async def test_stream_sends_the_state_and_then_changes(tier: Tier, client: Client) -> None:
    request, own = served(tier.leases, lease(), tier.slots)
    events = await client.read(tier)
    assert events.response.headers["Content-Type"] == "text/event-stream"
    assert events.response.headers["Cache-Control"] == "no-store"
    assert events.response.headers["Server"] == "orch-sidecar"
    state = await events.expect("state")
    assert state["leases"] == [lease()]
    assert (state["slots_total"], state["foreign"]) == (8, 0)
    assert state["observed_at"].endswith("Z")
    grant(tier.slots, "another", 2)
    assert tier.changed is not None
    tier.changed()
    assert (await events.expect("change"))["foreign"] == 2
    tier.slots.abandon(own.id)
    tier.leases.leave(request)
    tier.slots.release(own.id, 0.0)
    tier.changed()
    assert await events.expect("ended") == {"leases": [lease()]}


async def test_pools_report_changes_only_while_there_is_a_stream(
    tier: Tier, client: Client
) -> None:
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


async def test_several_pools_have_to_be_named(client: Client) -> None:
    tier = Tier("cloud", "other")
    server = await tier.start()
    nameless = await client.json("GET", tier.url + STREAM)
    assert nameless == {"reason": "invalid_request", "param": "pool"}
    unknown = await client.json("GET", f"{tier.url}{STREAM}&pool=third")
    assert unknown == {"reason": "not_found", "param": "pool"}
    state = await (await client.read(tier, f"{STREAM}&pool=other")).expect("state")
    assert state["pool"] == "other"
    tier.publisher.streams.close()
    tier.listener.close()
    await server.shutdown(1.0)


async def test_lease_is_revoked_as_the_plugin_does(tier: Tier, client: Client) -> None:
    async def revoke(what: str) -> Any:
        return await client.json("DELETE", f"{tier.url}/v1/capabilities/leases/{what}")

    request = entered(tier.leases, lease())
    assert await revoke(lease()) == {"ended": False}
    tier.leases.leave(request)
    assert await revoke(lease()) == {"ended": True}
    assert await revoke(lease(number=2)) == {"ended": True}
    assert tier.leases.enter(lease(number=2)) is None
    assert await revoke("nonsense") == {"reason": "invalid_request", "param": None}


async def test_closing_ends_the_streams_and_refuses_later_ones(tier: Tier, client: Client) -> None:
    events = await client.read(tier)
    await events.expect("state")
    tier.publisher.streams.close()
    assert await events.next(within_s=0.5) is None
    assert (await client.json("GET", tier.url + STREAM))["reason"] == "draining"
    assert tier.attached == [True, False]


def stuck(tier: Tier) -> socket.socket:
    """A reader that requests the stream and then reads nothing."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", tier.port))
    reader.sendall(f"GET {STREAM} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return reader


async def fill(tier: Tier, until: Callable[[], object]) -> None:
    """Makes changes, each too large for a buffer or two."""
    large = "x" * 500_000
    for number in range(200):
        tier.pools["cloud"].changes = {"message": f"{number}{large}"}
        tier.leases.changed()
        await asyncio.sleep(0.025)
        if until():
            return
    raise AssertionError("the condition was never met")


async def test_reader_that_falls_behind_is_dropped(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_stream, "WRITE_TIMEOUT_S", 0.1)
    with stuck(tier):
        await eventually(lambda: tier.attached == [True])
        await fill(tier, lambda: tier.attached == [True, False])


async def test_reader_that_is_behind_does_not_delay_the_close(tier: Tier) -> None:
    with stuck(tier):
        await eventually(lambda: tier.attached == [True])
        [stream] = tier.publisher.streams.open.values()
        await fill(tier, stream.transport.get_write_buffer_size)
        tier.publisher.streams.close()
        await eventually(lambda: tier.attached == [True, False])


async def test_crowd_of_readers_does_not_lock_out_a_parent(
    tier: Tier, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a parent that owns leases, nor a client with another key."""
    monkeypatch.setattr(stream_readers, "MAX_READERS", 8)
    crowd = [await client.read(tier, f"/?instance={number}") for number in range(8)]
    refused = await client.json("GET", tier.url + STREAM)
    assert refused["reason"] == "reader_limit"
    request = entered(tier.leases, lease())
    ours = await client.read(tier)
    assert (await ours.expect("state"))["leases"] == [lease()]
    tier.leases.leave(request)
    assert await ours.expect("ended") == {"leases": [lease()]}
    again = await client.read(tier, f"{STREAM}&client=another")
    await again.expect("state")
    for events in crowd:
        await events.expect("state")


async def test_parent_that_asks_for_fewer_changes_gets_fewer(tier: Tier, client: Client) -> None:
    loop = asyncio.get_running_loop()
    events = await client.read(tier, f"{STREAM}&changes_every_ms=300")
    await events.expect("state")
    began = loop.time()
    for number in range(1, 4):
        grant(tier.slots, f"a-{number}", 1)
        assert tier.changed is not None
        tier.changed()
        assert (await events.expect("change"))["leased"] == number
    assert loop.time() - began > 2 * 0.300
    refused = await client.json("GET", f"{tier.url}{STREAM}&changes_every_ms=soon")
    assert refused == {"reason": "invalid_request", "param": "changes_every_ms"}


async def test_replaced_reader_is_disconnected(tier: Tier, client: Client) -> None:
    entered(tier.leases, lease())
    lost = await client.read(tier)
    await lost.expect("state")
    events = await client.read(tier)
    await events.expect("state")
    while (event := await lost.next()) is not None:
        assert event[0] == "heartbeat"
    assert len(tier.publisher.streams.open) == 1


async def test_events_of_readers_that_name_no_instance_are_made_once(
    tier: Tier, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, made = STREAM.partition("?")[0], list[str]()
    monkeypatch.setattr(capabilities, "HEARTBEAT_EVERY_S", 0.2)
    first = await client.read(tier, target)
    before = await first.expect("state")
    encode = state_stream._encoded

    def counted(name: str, data: dict[str, Any]) -> bytes:
        made.append(name)
        return encode(name, data)

    monkeypatch.setattr(state_stream, "_encoded", counted)
    others = [await client.read(tier, target) for _ in range(3)]
    for each in others:
        state = await each.expect("state")
        assert {**state, "observed_at": ""} == {**before, "observed_at": ""}
    grant(tier.slots, "another", 2)
    assert tier.changed is not None
    tier.changed()
    changes = [await each.expect("change") for each in (first, *others)]
    assert changes[0]["foreign"] == 2
    assert changes == [changes[0]] * 4
    assert made.count("change") == 1
    parent = await client.read(tier)
    assert (await parent.expect("state"))["foreign"] == 2
    late = await client.read(tier, target)
    assert (await late.expect("state"))["foreign"] == 2
    beats = [await each.next() for each in (first, *others)]
    assert len({json.dumps(each) for each in beats}) == 1


US = "a" * 16


def crowd(readers: Readers, client: str, count: int) -> list[Reader]:
    """So many parents with one key, which own no leases."""
    made = [Reader(client, f"{client}{number}", "cloud") for number in range(count)]
    for each in made:
        assert readers.enter(each, ()) is None
    return made


def test_all_entries_of_a_large_cluster_can_have_the_same_key() -> None:
    readers = Readers()
    crowd(readers, "the entries", 500)
    assert readers.enter(Reader("an operator", None, "cloud"), ()) is None


def test_client_that_is_no_parent_has_a_few_readers_of_each_pool() -> None:
    readers, owners = Readers(), {US}
    mine = [Reader("mallory", None, "cloud") for _ in range(MAX_READERS_PER_CLIENT)]
    assert [readers.enter(each, owners) for each in mine] == [None] * MAX_READERS_PER_CLIENT
    refused = readers.enter(Reader("mallory", None, "cloud"), owners)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.READER_LIMIT
    assert f"{MAX_READERS_PER_CLIENT} streams of this client" in refused.message
    for other in (("mallory", None, "other"), ("bob", None, "cloud"), ("mallory", US, "cloud")):
        assert readers.enter(Reader(*other), owners) is None
    readers.leave(mine[0])
    assert readers.enter(Reader("mallory", None, "cloud"), owners) is None


def test_when_all_places_are_taken_they_are_shared_evenly() -> None:
    readers = Readers()
    crowd(readers, "alice", MAX_READERS // 2)
    newest = crowd(readers, "bob", MAX_READERS - MAX_READERS // 2)[-1]
    carols = [Reader("carol", f"carol{number}", "cloud") for number in range(MAX_READERS)]
    replaced = [readers.enter(each, ()) for each in carols]
    assert isinstance(replaced[0], Reader)
    given = [each for each in replaced if isinstance(each, Reader)]
    assert len(given) == MAX_READERS // 3
    assert {each.client for each in given} == {"alice", "bob"}
    assert len(readers) == MAX_READERS
    assert newest in given, "the newest goes first"
    refused = replaced[-1]
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.READER_LIMIT
    assert f"{MAX_READERS} state streams are open" in refused.message


def test_parents_of_one_key_can_have_all_places_until_another_client_comes() -> None:
    readers = Readers()
    newest = crowd(readers, "alice", MAX_READERS)[-1]
    refused = readers.enter(Reader("alice", "another", "cloud"), ())
    assert isinstance(refused, Refusal)
    assert readers.enter(Reader("bob", US, "cloud"), ()) is newest


def test_parent_that_owns_leases_is_always_served_once_for_each_pool() -> None:
    readers, owners = Readers(), {US}
    crowd(readers, "alice", MAX_READERS)
    first = Reader("alice", US, "cloud")
    assert readers.enter(first, owners) is None
    assert readers.enter(Reader("alice", US, "other"), owners) is None
    again = Reader("alice", US, "cloud")
    assert readers.enter(again, owners) is first, "its connection was lost"
    assert len(readers) == MAX_READERS + 2


def test_claimed_instance_replaces_no_reader_of_another_client() -> None:
    readers, owners = Readers(), {US}
    mine = Reader("alice", US, "cloud")
    readers.enter(mine, owners)
    theirs = Reader("mallory", US, "cloud")
    assert readers.enter(theirs, owners) is None
    assert readers.enter(Reader("mallory", US, "cloud"), owners) is theirs


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([None, US, "b" * 16]), st.booleans()),
        max_size=300,
    )
)
def test_readers_are_bounded_for_any_arrivals(arrivals: list[tuple[str, str | None, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream_readers, "MAX_READERS", 40)
        _arrive(arrivals)


def _arrive(arrivals: list[tuple[str, str | None, bool]]) -> None:
    readers, here = Readers(), list[Reader]()
    for client, instance, stays in arrivals:
        reader = Reader(client, instance, "cloud")
        got = readers.enter(reader, {US})
        if isinstance(got, Refusal):
            continue
        if got is not None:
            here.remove(got)
        here.append(reader)
        if not stays:
            readers.leave(here.pop(0))
        assert len(readers) == len(here)
        others = [each for each in here if each.instance != US]
        assert len(others) <= stream_readers.MAX_READERS
