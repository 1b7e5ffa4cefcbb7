"""By which names the clients' listener may be called: not by those of pages that resolve to it.

Browsers state the page's name in `Host`, and no `Origin` where page and listener have one name.

Web pages of other origins: what the sidecar's responses let a browser do.
"""

from __future__ import annotations

import json
import logging

import pytest

from tests.integration.client import AT_ONCE, CHAT, Client, Response, body_of
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

PROBES = ("/livez", "/readyz", "/healthz", "/health")


async def called(
    running: Running,
    host: str | None,
    path: str = "/v1/models",
    *,
    post: bool = False,
    headers: str = "",
) -> Response:
    """The answer to a request with this `Host`, on a connection of its own. None: an old client's
    without one."""
    client = await Client.connect(running.port)
    content, method = (json.dumps(body_of(path)).encode(), "POST") if post else (b"", "GET")
    version, name = ("1.0", "") if host is None else ("1.1", f"Host: {host}\r\n")
    head = (
        f"{method} {path} HTTP/{version}\r\n{name}{headers}"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    client.send(head.encode() + content)
    response = await client.response(method)
    await client.close()
    return response


async def test_page_with_a_rebound_name_gets_nothing_but_probes(
    sidecar: Running, engine: ScriptedEngine
) -> None:
    evil = f"evil.example:{sidecar.port}"
    received = len(engine.received)
    for path in (CHAT, "/v1/messages"):
        refused = await called(sidecar, evil, path, post=True)
        assert refused.status == 403
        assert "ORCH_ALLOWED_HOSTS" in refused.error["message"]
    for path in ("/", "/ui", "/metrics", "/v1/models", "/v1/capabilities", "/v1/live", "/nowhere"):
        refused = await called(sidecar, evil, path)
        assert (refused.status, refused.error["code"]) == (403, "forbidden")
    leases = await called(sidecar, evil, "/v1/capabilities/stream?instance=x")
    assert leases.status == 403
    for path in PROBES:
        assert (await called(sidecar, evil, path)).status == 200
    assert len(engine.received) == received
    metrics = await sidecar.metrics()
    counted = [name for name in metrics if name.startswith("orch_requests_total{")]
    assert any('outcome="forbidden"' in name and CHAT in name for name in counted)


async def test_start_warns_of_names_unless_they_are_checked_or_keys_needed(
    start: Start, caplog: pytest.LogCaptureFixture, ring: KeyRing
) -> None:
    with caplog.at_level(logging.WARNING):
        await start()
        await start(host="0.0.0.0", allowed_hosts=["orch"])
        await start(host="0.0.0.0", api_keys_file=ring.path)
        assert not [each for each in caplog.messages if "ORCH_ALLOWED_HOSTS" in each]
        await start(host="0.0.0.0")
    [warning] = [each for each in caplog.messages if "ORCH_ALLOWED_HOSTS" in each]
    assert "web page" in warning


PAGE = "https://chat.example"
ORIGIN = ("Origin", PAGE)
QUESTION = [
    ("Access-Control-Request-Method", "POST"),
    ("Access-Control-Request-Headers", "authorization,content-type"),
]


def granted(response: Response) -> list[str]:
    return [value for name, value in response.fields if name == "access-control-allow-origin"]


async def of_vllm(answer: Answer) -> None:
    """As vLLM answers by default."""
    every = [("access-control-allow-origin", "*"), ("access-control-allow-credentials", "true")]
    answer.json({"choices": []}, 200, every)


async def test_every_response_is_for_the_page_that_is_named_and_no_other(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    running = await start(allowed_origins=[PAGE])
    client = await running.client()
    for origin, expected in ((PAGE, [PAGE]), ("https://evil.example", [])):
        headers = [("Origin", origin)]
        question = await client.request("OPTIONS", CHAT, None, [*headers, *QUESTION])
        assert (question.status, granted(question)) == (204 if expected else 403, expected)
        for path in ("/v1/capabilities", "/readyz", "/nowhere", "/metrics"):
            assert granted(await client.get(path, headers)) == expected, path
        assert granted(await client.post(CHAT, headers, n="x")) == expected
        engine.scripts.append(of_vllm)
        answer = await client.post(CHAT, headers)
        assert (answer.status, granted(answer)) == (200, expected)
        assert answer.header("vary") == "Origin"
        assert not answer.header("access-control-allow-credentials")
    assert not [each for each in engine.generating if each.header("origin")]
    busy = [await started(running) for _ in range(engine.slots)]
    await eventually(lambda: len(held.waiting) == engine.slots)
    refused = await client.post(CHAT, [ORIGIN, *AT_ONCE])
    assert (refused.status, granted(refused)) == (429, [PAGE])
    held.release_all()
    for each in busy:
        assert (await each.response()).status == 200


async def test_question_needs_no_key_and_its_request_does(start: Start, ring: KeyRing) -> None:
    running = await start(allowed_origins=[PAGE], api_keys_file=ring.path)
    client = await running.client()
    question = await client.request("OPTIONS", CHAT, None, [ORIGIN, *QUESTION])
    assert (question.status, granted(question)) == (204, [PAGE])
    refused = await client.post(CHAT, [ORIGIN])
    assert (refused.status, granted(refused)) == (401, [PAGE])


async def test_without_the_setting_no_page_is_granted_anything(
    engine: ScriptedEngine, start: Start
) -> None:
    running = await start()
    client = await running.client()
    engine.scripts.append(of_vllm)
    answer = await client.post(CHAT, [ORIGIN])
    assert (answer.status, granted(answer)) == (200, [])
    question = await client.request("OPTIONS", CHAT, None, [ORIGIN, *QUESTION])
    assert (question.status, granted(question)) == (405, [])


@pytest.mark.parametrize("path", ["/v1/capabilities/stream", "/v1/live"])
async def test_streams_of_the_state_are_for_the_page_too(start: Start, path: str) -> None:
    client = await (await start(allowed_origins=[PAGE])).client()
    client.send_request("GET", path, headers=[ORIGIN, ("Accept", "text/event-stream")])
    head = await client.seen(b"\r\n\r\n")
    assert b"text/event-stream" in head
    assert f"Access-Control-Allow-Origin: {PAGE}\r\n".encode() in head


@pytest.mark.parametrize("events", [False, True])
async def test_streams_are_for_the_page_too(
    engine: ScriptedEngine, start: Start, events: bool
) -> None:
    running = await start(allowed_origins=[PAGE])
    client = await running.client()
    headers = [ORIGIN, ("X-Orch-Queue-Events", "sse")] if events else [ORIGIN]
    answer = await client.post(CHAT, headers, stream=True)
    assert (answer.status, granted(answer)) == (200, [PAGE])
