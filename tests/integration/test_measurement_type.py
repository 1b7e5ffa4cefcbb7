"""Every answer and every span has a measurement type of a closed set, whatever becomes of it."""

from __future__ import annotations

import secrets

import pytest

from orch_sidecar.api.endpoints import ENDPOINTS, LIVE, STREAM, ResourcePath
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.proxy.frontend import Frontend
from orch_sidecar.proxy.request import Request
from orch_sidecar.proxy.result import NotSent
from orch_sidecar.wire.forwarding import Names
from tests.integration.client import CHAT, Client, Response, body_of
from tests.integration.otlp import Collect
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine

CLOUD, HOME, NONE = "batched_online", "single_stream", "none"
ROUTE_PATHS = [path for path in ENDPOINTS if path not in (LIVE, STREAM)]
NAMED_PATHS = [each.format(name=name) for each in ResourcePath for name in ("home", "nobody")]


@pytest.fixture
async def mixed(start: Start, engine: ScriptedEngine, another: Engine) -> Running:
    """Pools `cloud` and `home`, which takes only what asks for it."""
    home = await another(slots=1, profile="home")
    settings = pools(cloud=engine, home=home)
    settings["pools"][1]["on_request"] = True
    return await all_ready(await start(**settings, max_body_bytes=4096, max_header_bytes=4096))


def traced(*fields: tuple[str, str]) -> list[tuple[str, str]]:
    return [("traceparent", f"00-{secrets.token_hex(16)}-{'a' * 16}-01"), *fields]


def type_of(response: Response) -> str | None:
    return response.header("x-measurement-type")


async def test_every_answer_and_every_span_has_a_type_where_pools_differ(
    collect: Collect, mixed: Running
) -> None:
    answers: dict[str, Response] = {}  # by their traces

    async def ask(
        method: str, path: str, *fields: tuple[str, str], body: bytes | None = None
    ) -> Response:
        given = traced(*fields)
        client = await mixed.client()
        answer = await client.request(method, path, body, given)
        await client.close()
        answers[given[0][1].split("-")[1]] = answer
        return answer

    big = b"x" * 5000
    for path in [*ROUTE_PATHS, STREAM, *NAMED_PATHS, "/nowhere", "/"]:
        for method in ("GET", "POST", "DELETE"):
            await ask(method, path, body=b"{" if method == "POST" else None)
    for path in ROUTE_PATHS:
        if ENDPOINTS[path].method == "POST":
            await ask("POST", path, body=big)  # 413
            await ask("POST", path, ("Content-Encoding", "br"), body=b"{}")
            await ask("POST", path, ("X-Orch-Class", "nonsense"), body=b"{}")
            await ask("POST", path, ("X-Orch-Pool", "nobody"), body=b"{}")
    for pool in ("cloud", "home"):
        for path in (CHAT, "/tokenize", "/v1/models", "/version", "/metrics/engine"):
            method = ENDPOINTS[path].method
            document = str(body_of(CHAT)).replace("'", '"').replace("False", "false").encode()
            body = document if method == "POST" else None
            answer = await ask(method, path, ("X-Orch-Pool", pool), body=body)
            assert answer.status == 200
    statuses = {answer.status for answer in answers.values()}
    assert {200, 204, 400, 404, 405, 413, 415} >= statuses >= {200, 400, 404, 405, 413, 415}
    types = {type_of(answer) for answer in answers.values()}
    assert types == {CLOUD, HOME, NONE}
    found = await collect(mixed)
    for span in found.spans:
        label = span.attributes["measurement_type"]
        assert label == type_of(answers[span.trace_id]), f"{span.name}: as its answer"
        assert (label == NONE) is ("orch.pool" not in span.attributes)
        assert "measurement_type" not in span.resource, "the pools do not agree"
    assert {span.attributes["measurement_type"] for span in found.spans} == {CLOUD, HOME, NONE}


async def test_pages_have_the_type_of_the_pool_that_they_are_about(mixed: Running) -> None:
    clients = {False: await mixed.client(), True: await Client.connect(mixed.sidecar.admin_port)}
    mixed.clients.append(clients[True])
    for admin, path, expected in (
        (False, "/v1/pools/home/health", HOME),
        (False, "/v1/pools/cloud/health", CLOUD),
        (True, "/v1/pools/home/health", HOME),
        (True, "/livez", NONE),
        (True, "/metrics", NONE),
        (True, "/v1/pools/nobody/health", NONE),
        (True, "/nowhere", NONE),
        (False, "/readyz", NONE),
        (False, "/v1/capabilities", NONE),
    ):
        assert (path, type_of(await clients[admin].get(path))) == (path, expected)
    for path in ("drain", "resume"):
        answer = await clients[True].request("POST", f"/v1/pools/home/{path}")
        assert (answer.status, type_of(answer)) == (200, HOME)
    reader = await mixed.client()
    reader.send_request("GET", f"{STREAM}?pool=home")
    head = await reader.seen(b"\r\n\r\n")
    assert b"\r\nx-measurement-type: single_stream\r\n" in head.lower()


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 9000 + b"\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_answered_with_a_type(mixed: Running, data: bytes) -> None:
    client = await mixed.client()
    client.send(data)
    answer = await client.response("GET")
    assert (answer.status, type_of(answer)) == (400, NONE)


async def test_refusal_of_a_pool_that_is_down_has_a_type(
    mixed: Running, engine: ScriptedEngine
) -> None:
    await engine.stop()
    await eventually(lambda: mixed.sidecar.pools["cloud"].watcher.state == "down")
    client = await mixed.client()
    for fields, expected in (([], NONE), ([("X-Orch-Pool", "cloud")], NONE)):
        answer = await client.post(CHAT, fields)
        assert (answer.status, type_of(answer)) == (503, expected)
    ready = await client.get("/readyz")
    assert type_of(ready) == NONE


@pytest.mark.parametrize("placed", [None, "home"])
async def test_refusal_for_any_reason_has_a_type(
    mixed: Running, monkeypatch: pytest.MonkeyPatch, placed: str | None
) -> None:
    reasons = list(Reason)

    async def refuse(self: Frontend, request: Request, names: Names) -> NotSent:
        if placed is not None:
            request.record.labels = mixed.sidecar.pools[placed].labels
        return NotSent(Refusal(reasons[-1], "no"))

    monkeypatch.setattr(Frontend, "_serve", refuse)
    while reasons:
        client = await mixed.client()
        answer = await client.post()
        assert answer.error["message"] == "no"
        assert type_of(answer) == (HOME if placed else NONE), reasons[-1]
        reasons.pop()


async def test_own_error_has_a_type(mixed: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("orch_sidecar.proxy.request.request_head", broken)
    answer = await (await mixed.client()).post()
    assert (answer.status, type_of(answer)) == (500, NONE)
