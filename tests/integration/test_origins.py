"""Web pages of other origins: what the sidecar's responses let a browser do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.client import AT_ONCE, CHAT, Response
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.running import Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

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


async def test_question_needs_no_key_and_its_request_does(start: Start, tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    ring.add("alice")
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
