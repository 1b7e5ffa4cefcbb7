"""Engines that take requests by their sidecars only."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from tests.vllm_plugin.application import (
    EngineClient,
    Models,
    conditions_of_workers,
    kv_cache_of,
    warm_up,
)
from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.enforcement.engine_args import Args, rejection
from tests.vllm_plugin.examples import FACTS, LEASE
from vllm_plugin.contracts.profile import load
from vllm_plugin.contracts.unleased import EngineKeys, Unleased, objection
from vllm_plugin.endpoint import CapabilitiesEndpoint
from vllm_plugin.state.engine_state import EngineState

KEYED = {"Authorization": "Bearer secret"}
LEASED = {"X-Orch-Lease": LEASE}


async def strict(
    monkeypatch: pytest.MonkeyPatch, environment: str = "", **arguments: Any
) -> FastAPI:
    """An API server of an engine whose profile refuses requests without a lease."""
    app, engine_state = FastAPI(), EngineState(replace(FACTS, unleased=Unleased.REFUSE))

    @app.post("/{path:path}")
    async def generate(path: str) -> str:
        return path

    monkeypatch.setenv("VLLM_API_KEY", environment)
    plugin = CapabilitiesEndpoint(lambda: engine_state, kv_cache_of, conditions_of_workers, warm_up)
    plugin.attach_router(app)
    app.state.openai_serving_models = Models()
    given = {"host": "127.0.0.1", "uds": None, "api_key": None} | arguments
    await plugin.init_state(EngineClient(), app.state, SimpleNamespace(**given))
    return app


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations", "/of/another/plugin"])
async def test_generating_request_without_a_lease_is_refused(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    app = await strict(monkeypatch)
    for headers in ({}, {"X-Orch-Lease": "nonsense"}):
        call = Call(app, "POST", path, headers)
        assert await call.status() == 403
        error = (await call.json())["error"]
        assert error["type"] == "lease_required"
        assert "send the request to the sidecar" in error["message"]
    assert await Call(app, "POST", path, LEASED).status() == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations", "/of/another/plugin"])
@pytest.mark.parametrize("by", ["argument", "environment"])
async def test_key_is_asked_for_wherever_sequences_are_generated(
    monkeypatch: pytest.MonkeyPatch, path: str, by: str
) -> None:
    if by == "argument":
        app = await strict(monkeypatch, api_key=["other", "secret"], host=None)
    else:
        app = await strict(monkeypatch, "secret", host=None)
    for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
        call = Call(app, "POST", path, LEASED | wrong)
        assert await call.status() == 401
        assert "requires its API key" in (await call.json())["error"]["message"]
    assert await Call(app, "POST", path, KEYED).status() == 403
    assert await Call(app, "POST", path, LEASED | KEYED).status() == 200


async def test_requests_that_generate_nothing_need_no_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = await strict(monkeypatch)
    assert await Call(app, "POST", "/tokenize").status() == 200
    assert await Call(app, "GET", "/v1/capabilities").status() == 200


async def test_server_that_anyone_reaches_without_a_key_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="must be a loopback address"):
        await strict(monkeypatch, host="0.0.0.0")


@pytest.mark.parametrize(
    ("host", "uds", "keys", "fine"),
    [
        (None, None, [], False),
        ("::", None, [], False),
        ("10.0.0.1", None, [], False),
        ("example.org", None, [], False),
        ("", None, [], False),
        ("127.0.0.1", None, [], True),
        ("127.3.4.5", None, [], True),
        ("::1", None, [], True),
        ("localhost", None, [], True),
        (None, "/run/vllm.sock", [], True),
        (None, None, ["secret"], True),
    ],
)
def test_address_is_judged_with_the_keys(
    host: str | None, uds: str | None, keys: list[str], fine: bool
) -> None:
    found = objection(host, uds, EngineKeys(keys))
    assert (found is None) == fine
    if found is not None:
        assert "--api-key" in found


def test_engine_is_stopped_before_any_weight_is_read() -> None:
    profile = load("home").model_copy(update={"unleased": Unleased.REFUSE})
    message = rejection(profile, Args(), argv="serve m --host 0.0.0.0")
    assert "--host is '0.0.0.0', must be a loopback address" in message
