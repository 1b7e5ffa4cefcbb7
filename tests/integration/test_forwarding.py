"""What never reaches the engine: steering headers, odd paths, other routes, clients' keys."""

from __future__ import annotations

from orch_sidecar.api.endpoints import ENDPOINTS, NOT_SERVED
from tests.integration.client import CHAT, MESSAGES, body_of
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine

STEERING = [
    ("X-Orch-Lease", "0123456789abcdef.0123456789abcdef0123456789abcdef.1"),
    ("x-VLLM-priority", "-5"),
    ("X-data-parallel-rank", "1"),
    ("X-Session-ID", "s"),
]


async def test_headers_that_would_steer_the_engine_are_removed(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    assert (await client.post(CHAT, STEERING)).status == 200
    request = engine.generating[0]
    for name, value in STEERING:
        assert value not in [v for n, v in request.fields if n == name.lower()], name
    assert [n for n, _ in request.fields].count("x-orch-lease") == 1
    assert request.lease is not None
    assert request.lease.startswith(sidecar.pool.gate.instance)
    await client.get("/v1/models", STEERING)
    names = {name for name, _ in engine.received[-1].fields}
    assert not names & {name.lower() for name, _ in STEERING}


async def test_headers_of_the_clients_connection_end_here(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    fields = [
        ("Connection", "keep-alive, X-Private"),
        ("Connection", "x-other"),
        ("Keep-Alive", "timeout=5"),
        ("X-Private", "no"),
        ("X-Other", "no"),
        ("TE", "trailers"),
        ("Trailer", "x-sum"),
        ("Proxy-Authorization", "Basic eA=="),
        ("Proxy-Connection", "keep-alive"),
        ("Expect", "100-continue"),
        ("X-Stays", "yes"),
    ]
    assert (await (await sidecar.client()).post(CHAT, fields)).status == 200
    names = {name for name, _ in engine.generating[0].fields}
    assert not names & ({name.lower() for name, _ in fields} - {"x-stays"})
    assert "x-stays" in names


async def test_query_strings_end_here(engine: ScriptedEngine, sidecar: Running) -> None:
    client = await sidecar.client()
    response = await client.request("POST", f"{CHAT}?a=1&b=/../x", body_of(CHAT))
    assert response.status == 200
    assert engine.generating[0].target == CHAT


NO_ROUTES = [
    "/v1/../pause",
    "/v1/chat/../chat/completions",
    "/./v1/models",
    "//v1/models",
    "//sidecar/v1/models",
    "/v1//models",
    "/v1/chat%2Fcompletions",
    "/v1/chat%2fcompletions",
    "/v1/%63hat/completions",
    "/V1/models",
    "/v1/models;x",
    "/v1/models%00",
    "/v1/models%0d%0aX:y",
    "/v1/models%20",
    "/",
    "/v1",
    "/v1/audio/unknown",
    "/v1/chat/completions/render",
    "/v1/capabilities/leases",
    "/v1/pools/cloud",
    "/v1/pools/cloud/drain",
    "/v1/pools/cloud/resume",
    "/v1/requests",
    "/pause",
    "/resume",
    "/sleep",
    "/wake_up",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/scale_elastic_ep",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/start_profile",
    "/server_info",
    "/inference/v1/generate",
    "/docs",
    "/openapi.json",
    "/admin",
    "/shutdown",
]


async def test_anything_but_the_routes_is_not_found_and_not_asked_of_the_engine(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    for target in NO_ROUTES:
        for method in ("POST", "GET", "DELETE"):
            body = {"model": "tiny"} if method == "POST" else None
            response = await client.request(method, target, body)
            assert (response.status, response.error["code"]) == (404, "not_found"), target
            assert response.error["type"] == "invalid_request_error"
            assert response.error["retriable"] is False
    # What is no request target at all is refused before any route is looked at.
    response = await client.request("POST", "*", {"model": "tiny"})
    assert (response.status, response.error["type"]) == (400, "invalid_request_error")
    assert engine.received == []


async def test_slash_at_the_end_is_ignored(engine: ScriptedEngine, sidecar: Running) -> None:
    client = await sidecar.client()
    assert (await client.request("POST", f"{CHAT}/", body_of(CHAT))).status == 200
    assert (await client.get("/v1/models/")).status == 200
    assert (await client.get("/livez/")).status == 200
    assert [request.target for request in engine.received] == [CHAT, "/v1/models"]


async def test_head_is_answered_like_get_without_a_body(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    paths = [path for path, each in ENDPOINTS.items() if each.method == "GET"]
    for path in [*paths, "/v1/models/tiny", "/v1/pools/cloud/health", "/v1/models/nobody"]:
        streams = path in ("/v1/capabilities/stream", "/v1/live")
        got = None if streams or path == "/metrics" else await client.get(path)
        head = await client.request("HEAD", path)
        assert head.body == b""
        if got is not None:
            assert (head.status, head.header("content-type")) == (
                got.status, got.header("content-type")
            )  # fmt: skip
        else:
            assert head.status == 200
        client = await sidecar.client()
    assert (await client.request("HEAD", CHAT)).status == 405


async def test_models_are_found_by_their_names(engine: ScriptedEngine, start: Start) -> None:
    engine.models = ("org/model-1", "tiny")
    engine.engine_state.set_models(engine.models, ())
    sidecar = await start()
    client = await sidecar.client()
    for path in ("/v1/models/org/model-1", "/v1/models/org%2Fmodel-1"):
        found = (await client.get(path)).json()
        assert (found["id"], found["object"], found["max_model_len"]) == (
            "org/model-1", "model", 2048
        )  # fmt: skip
    missing = await client.get("/v1/models/nobody")
    assert (missing.status, missing.error["code"]) == (404, "not_found")
    assert (
        "there is no model 'nobody'; those served are org/model-1, tiny"
        in (missing.error["message"])
    )
    assert engine.received == []


async def test_ping_and_load_tell_what_they_do_in_vllm(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    client = await sidecar.client()
    for method in ("GET", "POST"):
        assert (await client.request(method, "/ping")).status == 200
    assert (await client.request("DELETE", "/ping")).status == 405
    assert (await client.get("/load")).json() == {"server_load": 0}
    busy, waits = await started(sidecar, n=4), await started(sidecar)
    await eventually(lambda: held.waiting and sidecar.queued == 1)
    assert (await client.get("/load")).json() == {"server_load": 2}
    held.release_all()
    await busy.response()
    await eventually(lambda: held.waiting)
    held.release()
    await waits.response()


async def test_route_of_vllm_that_is_not_served_says_why(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    for path, reason in NOT_SERVED.items():
        response = await client.request("POST", path, {"model": "tiny"})
        assert (response.status, response.error["code"]) == (404, "not_found")
        assert response.error["message"] == f"there is no {path} here: {reason}"
    assert engine.received == []


async def test_absolute_form_names_the_same_routes_and_no_other_host(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    response = await client.get("http://elsewhere.example/v1/models")
    assert response.status == 200
    assert engine.received[-1].target == "/v1/models"
    assert engine.received[-1].header("host") == f"127.0.0.1:{engine.port}"
    assert (await client.get("http://elsewhere.example/pause")).status == 404


METHODS = [
    (CHAT, "POST"),
    (MESSAGES, "POST"),
    ("/tokenize", "POST"),
    ("/v1/models", "GET"),
    ("/v1/capabilities", "GET"),
    ("/v1/capabilities/stream", "GET"),
    ("/v1/capabilities/leases/x", "DELETE"),
    ("/v1/requests/x/cancel", "POST"),
    ("/v1/pools/cloud/health", "GET"),
    ("/livez", "GET"),
    ("/readyz", "GET"),
    ("/metrics", "GET"),
]


async def test_wrong_method_is_refused_with_the_right_one(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    for path, allowed in METHODS:
        served = ("GET", "HEAD") if allowed == "GET" else (allowed,)
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
            if method in served:
                continue
            response = await client.request(method, path, {} if method in ("POST", "PUT") else None)
            assert response.status == 405, (method, path)
            assert response.header("allow") == ", ".join(served)
            if method != "HEAD":
                assert response.error["code"] == "method_not_allowed"
    assert engine.received == []
