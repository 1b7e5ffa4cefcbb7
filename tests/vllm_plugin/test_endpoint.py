"""The engine's HTTP endpoint: state, revocation and rejection. Needs FastAPI, not vLLM.

The names under which an engine serves, as adapters are loaded and unloaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from fastapi import FastAPI

from tests.patience import HANG_S
from tests.vllm_plugin.application import (
    LOADED,
    Engine,
    EngineClient,
    Models,
    Named,
    conditions_of_workers,
    kv_cache_of,
    warm_up,
)
from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import (
    FACTS,
    LEASE,
    SETTINGS,
    THEM,
    US,
    lease_of,
    report,
    subscribed,
)
from vllm_plugin.contracts.lease_protocol import API_VERSION, CLAIMS_PATH, Claim, ClaimCall
from vllm_plugin.endpoint import CHECK_EVERY_S, CapabilitiesEndpoint, in_turn
from vllm_plugin.state.engine_state import EngineState
from vllm_plugin.state.leases import Rejected


async def test_state_is_returned_on_request(engine: Engine) -> None:
    engine.engine_state.record(report(3))
    call = engine.call("GET", "/v1/capabilities")
    assert await call.status() == 200
    document = await call.json()
    assert document["api_version"] == API_VERSION
    [entry] = document["engines"]
    assert (entry["running"], entry["slots_free"], entry["age_ms"]) == (3, 5, 0)
    assert entry["observed_at"].endswith("Z")
    assert "leases" not in entry


@pytest.mark.parametrize("dies", ["errored", "stopped", "exiting"])
async def test_engine_that_shuts_down_rejects_requests_untouched(engine: Engine, dies: str) -> None:
    """Its API server outlives it by some milliseconds; clients can retry with its successor."""
    engine.app.state.server = SimpleNamespace(should_exit=dies == "exiting")
    engine.client.errored = dies == "errored"
    engine.client.is_running = dies != "stopped"
    call = Call(engine.app, "POST", "/v1/completions", {"X-Orch-Lease": LEASE})
    message = await call.message()
    assert message["status"] == 503
    assert (b"retry-after", b"1") in message["headers"]
    error = (await call.json())["error"]
    assert (error["type"], error["retriable"]) == ("engine_gone", True)
    assert engine.engine_state.leases.leased() == 0
    assert (await engine.call("GET", "/v1/capabilities").status()) == 200


async def test_server_whose_engine_core_has_ended_waits_for_no_client(engine: Engine) -> None:
    """No token comes any more, and no client leaves before the last one."""
    server = engine.app.state.server = SimpleNamespace(should_exit=False, force_exit=False)
    await asyncio.sleep(0.1)
    assert not server.force_exit
    engine.client.is_running = False
    async with asyncio.timeout(HANG_S):
        while not server.force_exit:  # noqa: ASYNC110 (as uvicorn looks at it)
            await asyncio.sleep(0.01)


async def test_revocation_reports_whether_the_lease_has_ended(engine: Engine) -> None:
    key = engine.engine_state.enter(LEASE)
    assert isinstance(key, int)
    for ended in (False, True, True):
        call = engine.call("DELETE", f"/v1/capabilities/leases/{LEASE}")
        assert await call.status() == 200
        assert await call.json() == {"ended": ended}
        if not ended:
            engine.engine_state.leave(key)
    assert engine.engine_state.enter(LEASE) is Rejected.SPENT, "it is never accepted again"


@pytest.mark.parametrize(
    ("path", "logged"),
    [
        (f"/v1/capabilities/leases/{LEASE}", f"/v1/capabilities/leases/{LEASE[:24]}"),
        ("/v1/capabilities?instance=1", "/v1/capabilities?instance=1"),
    ],
)
async def test_access_log_contains_no_complete_lease(
    engine: Engine, caplog: pytest.LogCaptureFixture, path: str, logged: str
) -> None:
    """The line as uvicorn logs it."""
    with caplog.at_level(logging.INFO):
        access = logging.getLogger("uvicorn.access")
        access.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "DELETE", path, "1.1", 200)
    assert caplog.messages == [f'127.0.0.1:1 - "DELETE {logged} HTTP/1.1" 200']


@pytest.mark.parametrize(("status", "logged"), [(204, 0), (409, 1)])
async def test_access_log_contains_only_claims_that_fail(
    engine: Engine, caplog: pytest.LogCaptureFixture, status: int, logged: int
) -> None:
    """Beside other sidecars there may be one for each request."""
    with caplog.at_level(logging.INFO):
        access = logging.getLogger("uvicorn.access")
        path = f"{CLAIMS_PATH}{US}"
        access.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "PUT", path, "1.1", status)
    assert len(caplog.messages) == logged


@pytest.mark.parametrize("lease", ["nonsense", f"{LEASE}\n", LEASE.upper()])
async def test_revocation_of_an_invalid_lease_is_a_bad_request(engine: Engine, lease: str) -> None:
    call = engine.call("DELETE", f"/v1/capabilities/leases/{lease}")
    assert await call.status() == 400
    assert (await call.json())["error"]["code"] == 400


@pytest.mark.parametrize(
    ("body", "claim"),
    [
        (b'{"cost": 3, "urgent": true}', Claim(3, urgent=True)),
        (b'{"cost": 0, "urgent": false}', None),
    ],
)
async def test_claim_of_a_sidecar_that_reads_the_state_is_kept(
    engine: Engine, body: bytes, claim: Claim | None
) -> None:
    _, first = await engine.stream()
    assert (first["sidecars"], first["contended"], first["claim"]) == (1, False, None)
    engine.engine_state.enter(lease_of(THEM, cost=8))
    engine.engine_state.claim(US, ClaimCall(Claim(1, urgent=False)))
    call = Call(engine.app, "PUT", f"{CLAIMS_PATH}{US}", body=body)
    assert await call.status() == 204
    assert engine.engine_state.claims.claim_of(US) == claim


async def test_claim_of_a_sidecar_that_does_not_read_the_state_is_a_conflict(
    engine: Engine,
) -> None:
    call = Call(engine.app, "PUT", f"{CLAIMS_PATH}{US}", body=b'{"cost": 1, "urgent": true}')
    assert await call.status() == 409
    assert (await call.json())["error"]["type"] == "no_stream"


async def test_invalid_claim_is_a_bad_request(engine: Engine) -> None:
    call = Call(engine.app, "PUT", f"{CLAIMS_PATH}{US}", body=b'{"cost": 9, "urgent": true}')
    assert await call.status() == 400
    message = (await call.json())["error"]["message"]
    assert message == "cost is 9: it must be an integer from 0 to 8"


async def test_without_an_engine_state_nothing_is_attached() -> None:
    app = FastAPI()
    before = len(app.routes)
    plugin = CapabilitiesEndpoint(lambda: None, kv_cache_of, conditions_of_workers, warm_up)
    plugin.attach_router(app)
    await plugin.init_state(EngineClient(), app.state, None)
    assert len(app.routes) == before
    assert app.user_middleware == []


async def test_state_contains_the_conditions_and_the_weights(engine: Engine) -> None:
    """The attention backend, which the workers have chosen, is asked for before anything is
    served."""
    call = engine.call("GET", "/v1/capabilities")
    assert await call.status() == 200
    state = (await call.json())["engines"][0]
    assert state["weights"] == "/models/tiny"
    assert state["conditions"] == {
        "speculative": "ngram:3",
        "quantization": "none",
        "kv_cache_dtype": "bfloat16",
        "prefix_caching": "on",
        "attention_backend": "FLASH_ATTN",
        "tensor_parallel": 2,
        "pipeline_parallel": 1,
        "loaded": LOADED,
        **SETTINGS,
    }


@pytest.mark.parametrize(("path", "warmed_up"), [("/v1/completions", 1), ("/v1/embeddings", 0)])
async def test_engine_that_generates_is_warmed_up_before_it_serves(
    path: str, warmed_up: int
) -> None:
    engine = Engine()
    engine.app.add_api_route(path, lambda: None, methods=["POST"])
    await engine.start()
    assert engine.client.warmed_up == warmed_up


async def test_server_without_an_engine_has_no_kv_cache() -> None:
    engine_state, state = EngineState(FACTS), SimpleNamespace(openai_serving_models=None)
    plugin = CapabilitiesEndpoint(lambda: engine_state, kv_cache_of, conditions_of_workers, warm_up)
    await plugin.init_state(None, state, None)
    assert engine_state.kv_cache.groups == ()


async def test_clips_of_a_recording_are_given_to_the_engine_one_after_the_other() -> None:
    """With a real engine: tests/engine/test_recordings.py."""
    happened: list[str] = []

    async def clip(name: str) -> AsyncIterator[str]:
        happened.append(f"{name} begins")
        yield "one"
        yield "two"
        happened.append(f"{name} ends")

    found = [each async for each in in_turn(clip("a"), clip("b"))]
    assert found == [(0, "one"), (0, "two"), (1, "one"), (1, "two")]
    assert happened == ["a begins", "a ends", "b begins", "b ends"]


async def models_of(engine: Engine) -> list[str]:
    call = engine.call("GET", "/v1/capabilities")
    assert await call.status() == 200
    models: list[str] = (await call.json())["engines"][0]["models"]
    return models


async def test_all_names_and_adapters_are_reported_the_base_models_first(engine: Engine) -> None:
    engine.models.base_model_paths.append(Named("gpt"))
    engine.models.lora_requests |= {"sql": object(), "chat": object()}
    assert await models_of(engine) == ["tiny", "alias", "gpt", "sql", "chat"]


async def test_names_that_vllm_starts_with_are_known_before_any_request() -> None:
    engine = Engine(models=Models([Named("a"), Named("b")]))
    await engine.start()
    assert engine.engine_state.models == ("a", "b")


async def test_load_and_unload_of_an_adapter_are_changes_of_the_stream(engine: Engine) -> None:
    def load() -> None:
        engine.models.lora_requests["sql"] = object()

    def unload() -> None:
        del engine.models.lora_requests["sql"]

    engine.app.post("/v1/load_lora_adapter")(load)
    engine.app.post("/v1/unload_lora_adapter")(unload)
    call, first = await engine.stream()
    assert first["models"] == ["tiny", "alias"]
    for path, models in (
        ("/v1/load_lora_adapter", ["tiny", "alias", "sql"]),
        ("/v1/unload_lora_adapter", ["tiny", "alias"]),
    ):
        assert await Call(engine.app, "POST", path).status() == 200
        change = await call.event_named("change")
        assert change.pop("observed_at")
        assert change == {"models": models}


async def test_adapter_that_a_resolver_loads_is_noticed_without_a_call(engine: Engine) -> None:
    """Within the interval at which the stream checks whether it must end."""
    assert CHECK_EVERY_S <= 0.5
    call, _ = await engine.stream()
    engine.models.lora_requests["found"] = object()
    assert (await call.event_named("change"))["models"] == ["tiny", "alias", "found"]


def test_subscribers_are_woken_only_by_other_names() -> None:
    engine_state = EngineState(FACTS)
    _, woken = subscribed(engine_state)
    engine_state.set_models(FACTS.models)
    assert woken == []
    engine_state.set_models((*FACTS.models, "sql"))
    assert len(woken) == 1
