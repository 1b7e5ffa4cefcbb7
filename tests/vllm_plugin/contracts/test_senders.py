"""Whom an engine takes for its sidecars, and that it takes requests by them only where told so."""

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
from vllm_plugin.contracts.senders import (
    SIDECAR_KEY_VARIABLE,
    EngineKeys,
    SidecarKeys,
    Unleased,
    objection,
    parse_keys,
)
from vllm_plugin.endpoint import CapabilitiesEndpoint
from vllm_plugin.state.engine_state import EngineState

HERE = ("127.0.0.1", 40_000)
ELSEWHERE = ("10.1.2.3", 40_000)
TCP, UNIX = ("127.0.0.1", 8000), ("/run/vllm.sock", None)


def scope(client: tuple[str, int] | None, server: Any = TCP, **fields: str) -> dict[str, Any]:
    """A request as uvicorn describes it; its fields are in lower case."""
    headers = [(name.replace("_", "-").encode(), v.encode()) for name, v in fields.items()]
    return {"client": client, "server": server, "headers": headers}


@pytest.mark.parametrize(
    ("client", "server", "known"),
    [
        (HERE, TCP, True),
        (("127.0.0.2", 1), TCP, True),
        (("::1", 1), TCP, True),
        (("::ffff:127.0.0.1", 1), ("::", 8000), True),
        (ELSEWHERE, TCP, False),
        (("::ffff:10.1.2.3", 1), ("::", 8000), False),
        (("fe80::1%eth0", 1), TCP, False),
        (("testclient", 1), TCP, False),
        (None, UNIX, True),
        (None, None, True),
    ],
)
def test_without_a_key_the_engine_knows_its_own_host(client: Any, server: Any, known: bool) -> None:
    assert SidecarKeys({}).know(scope(client, server)) is known


def test_peer_that_is_gone_before_its_address_was_read_is_not_taken_for_a_unix_socket() -> None:
    """uvicorn has no address of either; what was sent before the reset is still read."""
    assert not SidecarKeys({}).know(scope(None, TCP))


@pytest.mark.parametrize(
    "name", ["forwarded", "via", "x_forwarded_for", "x_forwarded_proto", "x_forwarded_user"]
)
def test_what_a_proxy_on_the_same_host_forwards_is_not_known(name: str) -> None:
    assert not SidecarKeys({}).know(scope(HERE, **{name: "127.0.0.1"}))
    assert SidecarKeys({SIDECAR_KEY_VARIABLE: "k"}).know(
        scope(HERE, **{name: "1"}, x_orch_sidecar_key="k")
    )


@pytest.mark.parametrize("client", [HERE, ELSEWHERE, None])
@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({}, False),
        ({"x_orch_sidecar_key": ""}, False),
        ({"x_orch_sidecar_key": "wrong"}, False),
        ({"x_orch_sidecar_key": "new,old"}, False),
        ({"authorization": "Bearer new"}, False),
        ({"x_orch_sidecar_key": "new"}, True),
        ({"x_orch_sidecar_key": "old"}, True),
    ],
)
def test_with_keys_only_a_sidecar_that_sends_one_of_them_is_known(
    client: Any, given: dict[str, str], known: bool
) -> None:
    keys = SidecarKeys({SIDECAR_KEY_VARIABLE: "new,old"})
    assert keys.know(scope(client, **given)) is known


@pytest.mark.parametrize("text", ["", ",", "a,", ",a", "a,,b", "a b", "a\n", "schlüssel", "a, b"])
def test_invalid_keys_are_an_error_that_does_not_show_them(text: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII") as raised:
        SidecarKeys({SIDECAR_KEY_VARIABLE: text})
    assert str(raised.value).startswith(f"{SIDECAR_KEY_VARIABLE} (not shown) must be")
    assert len(text) < 3 or text not in str(raised.value)


def test_sidecar_sends_the_first_of_several() -> None:
    assert parse_keys("new,old") == ["new", "old"]


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
