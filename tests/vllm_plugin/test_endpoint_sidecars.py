"""Only a sidecar of the engine is served what names an instance; and nobody else's lease counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi import Request

from tests.vllm_plugin.application import STREAM, Engine
from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import FACTS, LEASE, THEM, US, lease_of
from vllm_plugin.contracts.lease_protocol import CLAIMS_PATH, Claim, ClaimCall
from vllm_plugin.contracts.senders import SIDECAR_KEY_VARIABLE, Unleased
from vllm_plugin.contracts.slot_claims import Subscriber
from vllm_plugin.state.engine_state import EngineState

ELSEWHERE = ("10.1.2.3", 40_000)
KEY = {"X-Orch-Sidecar-Key": "secret"}
CLAIM = b'{"cost": 8, "urgent": true, "more": 8}'
FOR_SIDECARS = [
    ("GET", STREAM),
    ("GET", "/v1/capabilities/stream?inst%61nce="),
    ("GET", f"/v1/capabilities?instance={US}"),
    ("PUT", f"{CLAIMS_PATH}{US}"),
    ("DELETE", f"/v1/capabilities/leases/{LEASE}"),
]


async def started(
    monkeypatch: pytest.MonkeyPatch, key: str | None = None, unleased: Unleased = Unleased.COUNT
) -> Engine:
    """An engine whose completions answer with the header fields that reached them."""
    engine = Engine(engine_state=EngineState(replace(FACTS, unleased=unleased)))

    @engine.app.post("/v1/completions")
    async def complete(request: Request) -> dict[str, Any]:
        engine_state = engine.engine_state
        return {
            "fields": list(request.headers),
            "leased": engine_state.leases.leased(),
            "foreign": engine_state.leases.foreign_to(US),
        }

    if key is None:
        monkeypatch.delenv(SIDECAR_KEY_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(SIDECAR_KEY_VARIABLE, key)
    await engine.start()
    return engine


@pytest.mark.parametrize(("method", "path"), FOR_SIDECARS)
@pytest.mark.parametrize(
    ("key", "client", "fields"),
    [
        (None, ELSEWHERE, {}),
        (None, ("127.0.0.1", 1), {"X-Forwarded-For": "127.0.0.1"}),
        (None, ELSEWHERE, KEY),
        ("secret", ("127.0.0.1", 1), {}),
        ("secret", ELSEWHERE, {"X-Orch-Sidecar-Key": "wrong"}),
    ],
)
async def test_stranger_is_refused_what_is_for_sidecars(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    key: str | None,
    client: tuple[str, int],
    fields: dict[str, str],
) -> None:
    engine = await started(monkeypatch, key)
    engine.engine_state.subscribe(Subscriber(US, lambda: None))
    call = Call(engine.app, method, path, fields, CLAIM, client)
    assert await call.status() == 403
    error = (await call.json())["error"]
    assert error["type"] == "not_a_sidecar"
    assert SIDECAR_KEY_VARIABLE in error["message"]
    assert engine.engine_state.claims.claim_of(US) is None
    assert isinstance(engine.engine_state.enter(LEASE), int), "it is not spent"


@pytest.mark.parametrize("client", [("127.0.0.1", 1), ELSEWHERE])
async def test_sidecar_with_a_key_of_the_engine_is_served(
    monkeypatch: pytest.MonkeyPatch, client: tuple[str, int]
) -> None:
    engine = await started(monkeypatch, "older,secret")
    stream = Call(engine.app, "GET", STREAM, KEY, client=client)
    assert await stream.status() == 200
    call = Call(engine.app, "PUT", f"{CLAIMS_PATH}{US}", KEY, CLAIM, client)
    assert await call.status() == 204
    engine.client.is_running = False
    await stream.task


async def test_state_without_an_instance_is_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await started(monkeypatch, "secret")
    assert await Call(engine.app, "GET", "/v1/capabilities", client=ELSEWHERE).status() == 200
    stream = Call(engine.app, "GET", "/v1/capabilities/stream", client=ELSEWHERE)
    assert await stream.status() == 200
    engine.client.is_running = False
    await stream.task


async def answered(engine: Engine, fields: dict[str, str], **options: Any) -> dict[str, Any]:
    call = Call(engine.app, "POST", "/v1/completions", fields, **options)
    assert await call.status() == 200
    document: dict[str, Any] = await call.json()
    return document


@pytest.mark.parametrize("key", [None, "secret"])
async def test_lease_of_a_stranger_is_none(
    monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """It counts as one sequence without a lease, and uses up no one's offers."""
    engine = await started(monkeypatch, key)
    lease = {"X-Orch-Lease": lease_of(THEM, cost=8)}
    seen = await answered(engine, lease, client=ELSEWHERE)
    assert (seen["leased"], seen["foreign"]) == (0, 1)
    seen = await answered(engine, lease | (KEY if key else {}))
    assert (seen["leased"], seen["foreign"]) == (8, 8)


async def test_stranger_uses_up_no_offer_of_a_sidecar_whose_instance_it_has_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = await started(monkeypatch, "secret")
    engine_state = engine.engine_state
    engine_state.subscribe(Subscriber(US, lambda: None))
    engine_state.claim(US, ClaimCall(Claim(4, urgent=True)))
    assert engine_state.claims.booked(US) == 4
    seen = await answered(engine, {"X-Orch-Lease": lease_of(US, cost=4)}, client=ELSEWHERE)
    assert seen["leased"] == 0
    assert engine_state.claims.booked(US) == 4


async def test_lease_counts_that_a_sidecar_without_a_key_sends_with_its_clients_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sidecars of earlier releases send on what an ingress in front of them has added."""
    engine = await started(monkeypatch)
    fields = {"X-Orch-Lease": LEASE, "X-Forwarded-For": "10.9.8.7"}
    client = ("10.9.8.7", 0)  # what uvicorn makes of it
    assert (await answered(engine, fields, client=client))["leased"] == 0
    engine.engine_state.subscribe(Subscriber(US, lambda: None))
    fields["X-Orch-Lease"] = lease_of(US, 2, cost=4)
    assert (await answered(engine, fields, client=client))["leased"] == 4


async def test_engine_for_sidecars_only_names_the_setting_to_a_stranger_with_a_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = await started(monkeypatch, "secret", Unleased.REFUSE)
    call = Call(engine.app, "POST", "/v1/completions", {"X-Orch-Lease": LEASE})
    assert await call.status() == 403
    error = (await call.json())["error"]
    assert error["type"] == "lease_required"
    assert SIDECAR_KEY_VARIABLE in error["message"]
    await answered(engine, {"X-Orch-Lease": LEASE} | KEY)


@pytest.mark.parametrize("key", [None, "secret"])
async def test_key_does_not_reach_the_handlers_of_vllm(
    monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    engine = await started(monkeypatch, key)
    seen = await answered(engine, {"X-Other": "1"} | KEY)
    assert seen["fields"] == ["x-other"]
