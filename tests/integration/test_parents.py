"""Who may act as a parent sidecar: claim slots, end leases, read the state for an instance."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orch_sidecar.api.endpoints import STREAM
from orch_sidecar.auth.keys import owner_of
from orch_sidecar.control import capabilities
from tests.integration.backlogs import Numbers, Recording, answered, backlog, instance
from tests.integration.client import Client
from tests.integration.held import Held, started
from tests.integration.keyed import Header, KeyRing
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.tiers import empty, tier
from vllm_plugin.contracts.lease_protocol import CLAIMS_PATH, Claim

LEASES = "/v1/capabilities/leases/"
URGENT = {"cost": 4, "urgent": True, "more": 8}

# Of clients, one of them a rogue; of two sidecars; of one for bulk requests alone.
KEYS = {
    "alice": {},
    "mallory": {"bulk": True, "concurrency": 1},
    "entry": {"sidecar": True},
    "other-entry": {"sidecar": True},
    "bulk-entry": {"bulk": True, "sidecar": True},
}


def ours(running: Running, key: str, name: str) -> str:
    """What an instance of that name is known as here, if it is of that key."""
    [found] = [each for each in running.sidecar.reloader._authorizer.keys or () if each.name == key]
    return owner_of(found) + name


async def reads(running: Running, name: str, *headers: Header) -> Client:
    """Opens a state stream for an instance of this name."""
    client = await running.client()
    client.send_request("GET", f"{STREAM}?instance={name}", headers=headers)
    await client.seen(b"event: state\n")
    return client


async def claims(running: Running, name: str, *headers: Header) -> int:
    client = await running.client()
    return (await client.request("PUT", CLAIMS_PATH + name, URGENT, headers)).status


@asynccontextmanager
async def rogue(running: Running, *headers: Header) -> AsyncIterator[Counter[int]]:
    """Opens streams with four instances and claims urgently for each, again and again. Yields the
    statuses of its calls."""
    names, statuses = [f"{number:016x}" for number in range(4)], Counter[int]()
    clients = [await running.client() for _ in names]
    for name, client in zip(names, clients, strict=True):
        client.send_request("GET", f"{STREAM}?instance={name}", headers=headers)

    async def claim() -> None:
        client = await running.client()
        while True:
            for name in names:
                response = await client.request("PUT", CLAIMS_PATH + name, URGENT, headers)
                statuses[response.status] += 1

    task = asyncio.create_task(claim())
    await eventually(lambda: statuses.total() > 8)
    yield statuses
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def served(sidecars: list[Running], *headers: Header) -> Counter[int]:
    """Lets 24 clients send 8 requests each, one after another. Returns the statuses."""
    statuses, numbers = Counter[int](), Numbers()

    async def client_of(sidecar: Running) -> None:
        client = await sidecar.client()
        for seed in numbers.next(8):
            statuses[(await client.post(headers=headers, seed=seed)).status] += 1

    await asyncio.gather(*(client_of(sidecars[number % 2]) for number in range(24)))
    return statuses


async def test_rogue_that_claims_urgently_and_sends_nothing_takes_no_answer_from_anybody(
    another: Engine, start: Start, ring: KeyRing
) -> None:
    engine = await another(slots=8)
    Recording(engine)
    settings = {"engine_url": engine.url, "parents": "keys", "api_keys_file": ring.path}
    sidecars = [await start(**settings) for _ in range(2)]
    for each in sidecars:
        await eventually(lambda each=each: each.pool.gate.offers.sidecars == 2)  # type: ignore[misc]
    alone = await served(sidecars, ring.bearer("alice"))
    async with rogue(sidecars[0], ring.bearer("mallory")) as statuses:
        beside = await served(sidecars, ring.bearer("alice"))
    assert alone == beside == Counter({200: 24 * 8})
    assert set(statuses) == {403}


async def test_where_the_network_is_trusted_everybody_may_be_a_parent(start: Start) -> None:
    running = await start(parents="open")
    async with rogue(running) as statuses:
        assert set(statuses) <= {204, 409}
        await eventually(lambda: statuses[204])


@pytest.mark.parametrize("with_keys", [True, False])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{STREAM}?instance={'e' * 16}"),
        ("GET", f"{STREAM}?instance="),
        ("PUT", CLAIMS_PATH + "e" * 16),
        ("DELETE", f"{LEASES}{'e' * 16}.{1:032x}.1"),
    ],
)
async def test_who_is_no_parent_is_told_what_makes_one(
    start: Start, ring: KeyRing, method: str, path: str, with_keys: bool
) -> None:
    keys = {"api_keys_file": ring.path} if with_keys else {}
    running = await start(parents="keys", **keys)
    alices = [ring.bearer("alice")] if with_keys else []
    client = await running.client()
    refused = await client.request(method, path, URGENT, alices)
    assert (refused.status, refused.error["code"]) == (403, "forbidden")
    for part in ("sidecar: true", "api_keys_file", "parents: open", "ORCH_PARENTS"):
        assert part in refused.error["message"]
    dashboard = await running.client()
    dashboard.send_request("GET", STREAM, headers=alices)
    await dashboard.seen(b"event: state\n")


async def test_lease_of_a_client_that_is_no_parent_is_ignored(
    engine: ScriptedEngine, start: Start, ring: KeyRing, held: Held
) -> None:
    running = await start(parents="keys", api_keys_file=ring.path)
    stream = await reads(running, "e" * 16, ring.bearer("entry"))
    lease = f"{'e' * 16}.{1:032x}.1"
    for seed in range(2):  # the same one twice
        headers = [ring.bearer("mallory"), ("X-Orch-Lease", lease)]
        client = await started(running, headers=headers, seed=seed)
        await eventually(lambda: held.waiting)
        assert running.sidecar.publisher.leases.instances() == set()
        held.release()
        assert (await client.response()).status == 200
    assert lease not in {request.lease for request in engine.generating}
    await stream.close()


async def test_instance_belongs_to_the_key_that_named_it(
    start: Start, ring: KeyRing, held: Held
) -> None:
    running = await start(parents="keys", api_keys_file=ring.path)
    name, books = "e" * 16, running.pool.claims.parents.claim_table
    stream = await reads(running, name, ring.bearer("entry"))
    entrys = ours(running, "entry", name)
    assert await claims(running, name, ring.bearer("other-entry")) == 409
    assert books.claim_of(entrys) is None
    assert await claims(running, name, ring.bearer("entry")) == 204
    assert books.claim_of(entrys) == Claim(4, urgent=True, more=8)
    theirs = await reads(running, name, ring.bearer("other-entry"))
    await theirs.close()
    assert books.claim_of(entrys) is not None
    lease = f"{name}.{1:032x}.1"
    headers = [ring.bearer("other-entry"), ("X-Orch-Lease", lease)]
    client = await started(running, headers=headers)
    await eventually(lambda: held.waiting)
    assert running.sidecar.publisher.leases.of(entrys) == []
    held.release()
    assert (await client.response()).status == 200
    await stream.close()
    await eventually(lambda: not books.reads(entrys))


async def test_sidecar_whose_key_is_for_bulk_requests_alone_claims_nothing_urgently(
    start: Start, ring: KeyRing
) -> None:
    running = await start(parents="keys", api_keys_file=ring.path)
    await reads(running, "e" * 16, ring.bearer("bulk-entry"))
    assert await claims(running, "e" * 16, ring.bearer("bulk-entry")) == 204
    assert running.pool.claims.parents.claim_table.first() == Claim(4, urgent=False, more=8)


@pytest.mark.parametrize("still_known", [True, False])
async def test_streams_of_a_key_whose_entry_changes_end(
    start: Start, ring: KeyRing, monkeypatch: pytest.MonkeyPatch, still_known: bool
) -> None:
    monkeypatch.setattr(capabilities, "HEARTBEAT_EVERY_S", 0.05)
    running = await start(parents="keys", api_keys_file=ring.path)
    stream = await reads(running, "e" * 16, ring.bearer("entry"))
    dashboard = await running.client()
    dashboard.send_request("GET", STREAM, headers=[ring.bearer("entry")])
    await dashboard.seen(b"event: state\n")
    if still_known:
        ring.add("entry")
    else:
        ring.remove("entry")
    await running.sidecar.reloader.reload()
    await eventually(lambda: not running.sidecar.publisher.streams.open)
    assert (await stream.rest()).endswith(b"0\r\n\r\n")
    assert await claims(running, "e" * 16, ring.bearer("entry")) == (403 if still_known else 401)


async def test_entry_with_the_key_of_a_sidecar_is_served_by_its_child(
    engine: ScriptedEngine, start: Start, ring: KeyRing
) -> None:
    recording, numbers = Recording(engine, takes_s=0.02), Numbers()
    direct = await start()
    child = await start(parents="keys", api_keys_file=ring.path)
    entry = await start(pools=[tier(child, api_key=ring.keys["entry"])], parents="keys")
    for each in (direct, child, entry):
        await eventually(lambda each=each: each.pool.gate.offers.sidecars == 2)  # type: ignore[misc]
    recording.flows.clear()
    clients = await backlog(direct, numbers.next(20))
    await eventually(lambda: engine.present == engine.slots)
    clients |= await backlog(entry, numbers.next(20))
    entrys = ours(child, "entry", instance(entry))
    books = child.pool.claims.parents.claim_table
    await eventually(lambda: books.claim_of(entrys) is not None)
    recording.flows.set()
    await answered(clients)
    gone = await started(entry, seed=1000)
    await gone.close()
    await empty(entry, child)
    assert not books.has_claims
