"""An engine knows its sidecars by a key, or on its own host; nobody else claims its slots."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.integration.backlogs import Numbers, Recording, answered, backlog
from tests.integration.client import CHAT, Client
from tests.integration.otlp import Collect
from tests.integration.readiness import readiness
from tests.integration.running import Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from vllm_plugin.contracts.lease_protocol import API_VERSION, CLAIMS_PATH, MAX_OFFER_S
from vllm_plugin.contracts.senders import SIDECAR_KEY_VARIABLE, SidecarKeys

HEADER = "x-orch-sidecar-key"
KEY = "key-of-the-sidecars"
CLIENTS_OWN = "of-a-client"
BY_A_PROXY = ("X-Forwarded-For", "10.1.2.3")


def accepting(*keys: str) -> SidecarKeys:
    return SidecarKeys({SIDECAR_KEY_VARIABLE: ",".join(keys)})


def sent_keys(engine: ScriptedEngine) -> set[tuple[str, ...]]:
    """The keys of each request that the engine has got."""
    received = engine.received + engine.of_sidecars
    return {tuple(value for name, value in each.fields if name == HEADER) for each in received}


async def test_key_goes_with_everything_that_a_sidecar_sends_its_engine(
    engine: ScriptedEngine, start: Start, quick: None
) -> None:
    """Also to an engine of an earlier release, which does not look at it."""
    recording = Recording(engine)
    recording.flows.clear()
    first, second = [await start(sidecar_key=f"{KEY},older") for _ in range(2)]
    await eventually(lambda: first.pool.gate.offers.sidecars == 2)
    clients = await backlog(first, numbers := Numbers().next(8))
    clients |= await backlog(second, range(numbers.stop, numbers.stop + 8))
    await eventually(lambda: len(engine.claimed) == 2)
    recording.flows.set()
    await answered(clients)
    client = await first.client()
    theirs = [("X-Orch-Sidecar-Key", CLIENTS_OWN)]
    assert (await client.get("/v1/models", theirs)).status == 200
    assert (await client.post(headers=theirs, seed=100)).status == 200
    first.ledger.adopt(lease := f"{first.pool.gate.instance}.{1:032x}.1", 1)  # of no request
    await eventually(lambda: lease in engine.revoked)
    assert sent_keys(engine) == {(KEY,)}
    methods = {each.method for each in engine.received + engine.of_sidecars}
    assert methods == {"GET", "POST", "PUT", "DELETE"}


async def test_key_is_in_no_log_span_metric_or_page(
    engine: ScriptedEngine,
    start: Start,
    collect: Collect,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    engine.sidecar_keys = accepting(KEY)
    log = tmp_path / "requests.jsonl"
    running = await start(sidecar_key=KEY, request_log=str(log))
    client = await running.client()
    fields = [("X-Orch-Sidecar-Key", CLIENTS_OWN)]
    assert (await client.post(headers=fields)).status == 200
    pages = [
        (await client.get(path, fields)).body
        for path in ("/metrics", "/readyz", "/v1/capabilities", "/v1/models")
    ]
    engine.sidecar_keys = accepting("another")
    await engine.restart()
    await eventually(lambda: "403" in running.pool.watcher.message)
    collector = await collect(running)
    texts = [*pages, *collector.requests, log.read_bytes(), caplog.text.encode()]
    assert all(texts)
    for text in texts:
        assert KEY.encode() not in text
        assert CLIENTS_OWN.encode() not in text


@pytest.mark.parametrize(
    ("of_the_engine", "ours"), [(KEY, None), (KEY, "another"), (f"{KEY},more", "another")]
)
async def test_readiness_page_says_that_the_engine_wants_a_key_until_it_accepts_ours(
    engine: ScriptedEngine, start: Start, of_the_engine: str, ours: str | None
) -> None:
    engine.sidecar_keys = accepting(of_the_engine)
    running = await start(wait=False, sidecar_key=ours)
    await eventually(lambda: running.pool.watcher.failed)
    response = await readiness(running)
    assert response.status == 503
    assert "does not accept this sidecar (403)" in response.json()["last_error"]
    assert "ORCH_SIDECAR_KEY" in response.json()["last_error"]
    # As when a key is rotated: first the engines accept the next one, too.
    engine.sidecar_keys = accepting(of_the_engine, ours or KEY)
    if ours is not None:
        await running.ready()
        assert (await (await running.client()).post()).status == 200


async def test_key_is_for_engines_and_not_for_child_sidecars(
    engine: ScriptedEngine, start: Start
) -> None:
    pool = {"name": "lower", "url": engine.url, "profile": "cloud", "tier": True}
    running = await start(pools=[pool], sidecar_key=KEY)
    assert (await (await running.client()).post()).status == 200
    assert sent_keys(engine) == {()}


async def test_clients_behind_a_proxy_do_not_make_the_sidecar_a_stranger(
    engine: ScriptedEngine, start: Start
) -> None:
    """The engine has no key, and knows the sidecar because it is on its own host."""
    engine.sidecar_keys = SidecarKeys({})
    running = await start()
    fields = [BY_A_PROXY, ("Forwarded", "for=10.1.2.3"), ("Via", "1.1 proxy"), ("Accept", "*/*")]
    assert (await (await running.client()).post(headers=fields)).status == 200
    [request] = engine.generating
    assert {name for name, _ in request.fields} >= {"accept", "x-orch-lease"}
    assert b"10.1.2.3" not in request.head
    assert request.header("via") is None
    assert request.lease is not None
    assert request.lease in engine.engine_state.leases._spent


async def test_strangers_at_the_engines_port_delay_no_client_of_its_sidecar(
    engine: ScriptedEngine, start: Start
) -> None:
    """Four instances that claim all slots, urgently and all the time, and send no request."""
    engine.sidecar_keys = SidecarKeys({})
    recording = Recording(engine)
    recording.takes_s = 0.02
    recording.flows.set()
    sidecar, done = await start(), asyncio.Event()
    statuses: list[int] = []

    async def stranger(number: int) -> None:
        instance = f"{0xBAD + number:016x}"
        stream = f"/v1/capabilities/stream?instance={instance}&api_version={API_VERSION}"
        while not done.is_set():
            for method, path, body in (
                ("GET", stream, None),
                ("PUT", f"{CLAIMS_PATH}{instance}", {"cost": 4, "urgent": True, "more": 4}),
                ("DELETE", f"/v1/capabilities/leases/{instance}.{1:032x}.1", None),
            ):
                client = await Client.connect(engine.port)
                client.send_request(method, path, body, [BY_A_PROXY])
                statuses.append((await client.response(method)).status)
                await client.close()
            await asyncio.sleep(0)

    async def honest(seeds: range) -> list[int]:
        client = await sidecar.client()
        return [(await client.post(CHAT, seed=seed)).status for seed in seeds]

    strangers = [asyncio.create_task(stranger(number)) for number in range(4)]
    numbers = Numbers()
    served = await asyncio.gather(*(honest(numbers.next(20)) for _ in range(8)))
    await asyncio.sleep(MAX_OFFER_S)
    done.set()
    await asyncio.gather(*strangers)
    assert {status for each in served for status in each} == {200}
    assert set(statuses) == {403}
    assert engine.engine_state.claims.sidecars == 1
    assert sidecar.pool.ledger.violations == 0
