"""A parent above sidecars that share their engine with others gets its share of the slots."""

from __future__ import annotations

import asyncio
import logging

import pytest

from orch_sidecar.control import state_stream
from tests.integration.backlogs import (
    BULK,
    Numbers,
    Recording,
    answered,
    backlog,
    claim,
    instance,
)
from tests.integration.client import Client
from tests.integration.held import started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.tiers import above, tier
from tests.integration.wire import Answer


@pytest.fixture
def recording(engine: ScriptedEngine) -> Recording:
    return Recording(engine, takes_s=0.02)


async def knows(count: int, *sidecars: Running) -> None:
    """Waits until each pool of these sidecars knows how many share the engine."""
    await eventually(
        lambda: all(
            pool.gate.offers.sidecars == count for each in sidecars for pool in each.sidecar.pools
        )
    )


async def family(start: Start) -> tuple[Running, Running, Running]:
    """Starts two sidecars at the engine and a parent of the second; returns all three."""
    direct, child = await start(), await start()
    parent = await above(start, child)
    await knows(2, direct, child, parent)
    return direct, child, parent


async def filled(
    engine: ScriptedEngine, recording: Recording, sidecar: Running, seeds: range
) -> dict[int, Client]:
    """Fills the engine by a backlog of this sidecar, and halts the answers."""
    recording.flows.clear()
    clients = await backlog(sidecar, seeds)
    await eventually(lambda: engine.present == engine.slots)
    return clients


async def shared(recording: Recording, clients: dict[int, Client], *sidecars: Running) -> None:
    """Lets the requests of these sidecars be answered, once all have come: whose request gets a
    slot is what sidecars and engine decide, not who is quick."""
    await recording.came(len(clients), *sidecars)
    recording.settled = recording.full(*sidecars)
    recording.flows.set()
    await answered(clients)


async def calm(engine: ScriptedEngine, *sidecars: Running) -> None:
    """Returns when nothing is left anywhere."""
    for each in sidecars:
        await each.idle()
    await eventually(lambda: not engine.present and not engine.engine_state.claims.has_claims)


def share(recording: Recording, *sidecars: Running) -> float:
    """Of the requests that entered while all had some queued, the part that came by these."""
    begun = recording.entered[: len(recording.entered) // 2]
    return sum(begun.count(instance(each)) for each in sidecars) / len(begun)


async def test_parent_of_two_children_beside_a_direct_sidecar(
    engine: ScriptedEngine, start: Start, recording: Recording
) -> None:
    """To the engine there are three, each of which gets a third."""
    direct, *children = [await start() for _ in range(3)]
    numbers = Numbers()
    parent = await start(
        pools=[tier(each, f"child-{number}") for number, each in enumerate(children)]
    )
    await knows(3, direct, *children, parent)
    clients = await filled(engine, recording, direct, numbers.next(60))
    clients |= await backlog(parent, numbers.next(120))
    await eventually(lambda: all(claim(engine, each) for each in children))
    await shared(recording, clients, direct, *children, parent)
    assert set(recording.answered.values()) == {1}
    assert 0.5 < share(recording, *children) < 0.8
    await calm(engine, direct, *children, parent)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b'{"cost": 9, "urgent": true}', 400, "cost is 9: it must be an integer from 0 to 4"),
        (b'{"cost": 1, "urgent": true}', 409, "must read the state stream"),
    ],
)
async def test_claim_that_is_invalid_or_from_no_reader_of_the_state_is_refused(
    engine: ScriptedEngine, start: Start, body: bytes, status: int, text: str
) -> None:
    child = await start()
    client = await child.client()
    response = await client.request("PUT", "/v1/capabilities/claims/" + "e" * 16, body)
    assert response.status == status
    assert text in response.error["message"]


async def test_claim_that_is_too_large_or_never_complete_is_refused(
    engine: ScriptedEngine,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(state_stream, "READ_TIMEOUT_S", 0.05)
    child = await start()
    path = "/v1/capabilities/claims/" + "e" * 16
    client = await child.client()
    response = await client.request("PUT", path, b" " * (2 << 20))
    assert (response.status, response.error["code"]) == (413, "body_too_large")
    client = await child.client()
    client.send(f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{".encode())
    response = await client.response("PUT")
    assert (response.status, response.error["code"]) == (400, "body_timeout")
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_parent_that_reads_again_is_sent_its_offers_on_the_new_stream(
    engine: ScriptedEngine, start: Start
) -> None:
    """The connection of the old one is lost, and nobody has noticed."""
    child, other = await start(), await start()
    await knows(2, child, other)
    parent = "e" * 16
    for _ in range(2):
        stream = await child.client()
        stream.send_request("GET", f"/v1/capabilities/stream?instance={parent}")
        await stream.seen(b"event: state\n")
    client = await child.client()
    body = b'{"cost": 1, "urgent": true}'
    response = await client.request("PUT", f"/v1/capabilities/claims/{parent}", body)
    assert response.status == 204
    await stream.seen(b"event: offer\n")


async def test_bulk_requests_of_two_parents_pass_a_child_that_shares_its_engine(
    engine: ScriptedEngine, start: Start, recording: Recording
) -> None:
    """None waits for the other's pause: an offer ends a pause, and each rejection leaves a claim.
    Once two parents paused in turns and nothing ran, though all slots were free."""
    recording.takes_s = 0.004
    direct, child = await start(), await start()
    parents = [await above(start, child) for _ in range(2)]
    await knows(2, direct, child)
    numbers = Numbers()
    for _ in range(5):
        clients: dict[int, Client] = {}
        for _ in range(6):
            for parent in parents:
                clients |= {
                    seed: await started(parent, seed=seed, headers=BULK) for seed in numbers.next(2)
                }
        await answered(clients)
    assert set(recording.answered.values()) == {1}
    await calm(engine, direct, child, *parents)


@pytest.mark.parametrize("headers", [[], BULK], ids=["interactive", "bulk"])
async def test_last_requests_of_a_parent_are_served_when_the_others_have_none_left(
    engine: ScriptedEngine,
    start: Start,
    recording: Recording,
    headers: list[tuple[str, str]],
) -> None:
    direct, child, parent = await family(start)
    numbers = Numbers()

    async def client(sidecar: Running, requests: int) -> None:
        for seed in numbers.next(requests):
            await answered({seed: await started(sidecar, seed=seed, headers=headers)})

    await asyncio.gather(
        *(client(parent, 10) for _ in range(12)), *(client(direct, 6) for _ in range(12))
    )
    assert set(recording.answered.values()) == {1}
    await calm(engine, direct, child, parent)


async def test_parents_and_sidecars_go_on_after_an_engine_that_rejected_what_it_had_offered(
    engine: ScriptedEngine, start: Start, recording: Recording
) -> None:
    """Requests of a parent wait at its child then, which the parent counts as running: it cannot
    use what it claims for others, and must not take each offer from those."""
    direct, child, parent = await family(start)
    sidecars, numbers, rejected = (await above(start, direct), parent, direct, child), Numbers(), 0

    async def rejects(answer: Answer) -> None:
        nonlocal rejected
        rejected += 1
        answer.json({"error": {"message": "not now", "type": "engine_gone", "code": 503}}, 503)

    engine.answer = rejects
    clients: dict[int, Client] = {}
    for each in sidecars:
        clients |= await backlog(each, numbers.next(8))
    await eventually(lambda: rejected >= 30)
    engine.answer = recording
    await answered(clients)
    await calm(engine, *sidecars)
