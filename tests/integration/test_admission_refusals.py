"""What requests without a slot get, and when they should come back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Response
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine


def assert_try_later(response: Response, path: str, label: str, code: str) -> None:
    """A 429 with everything that tells the client when to come back."""
    assert response.status == 429
    error = response.error
    wait_ms = error["retry_after_ms"]
    assert isinstance(wait_ms, int)
    assert wait_ms > 0
    assert response.header("retry-after-ms") == str(wait_ms)
    assert response.header("x-backoff-ms") == str(wait_ms)
    assert response.header("retry-after") == str(max(1, -(-wait_ms // 1000)))
    assert error["retriable"] is True
    assert error["policy_label"] == label
    assert error["code"] == code
    assert error["type"] == "rate_limit_error"
    assert error["message"]
    assert response.json().get("type") == ("error" if path == MESSAGES else None)
    assert response.header("content-type") == "application/json"
    assert response.header("x-measurement-type") == "batched_online"
    assert response.header("x-orch-request-id")
    assert (response.header("server-timing") or "").startswith("queue;dur=")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_full_queue_refuses_at_once(
    engine: ScriptedEngine, start: Start, held: Held, path: str
) -> None:
    running = await start(queue_capacity=2)
    busy = [await started(running) for _ in range(4)]
    await eventually(lambda: len(held.waiting) == 4)
    queued = [await started(running) for _ in range(2)]
    await eventually(lambda: running.queued == 2)
    client = await running.client()
    assert_try_later(await client.post(path), path, "reject", "ADMISSION_REJECT")
    held.release_all()
    for one in busy:
        assert (await one.response()).status == 200
    await eventually(lambda: len(held.waiting) == 2)
    held.release_all()
    for one in queued:
        assert (await one.response()).status == 200
    later = asyncio.ensure_future(client.post(path))
    await eventually(lambda: held.waiting)
    held.release_all()
    assert (await later).status == 200
    assert len(engine.generating) == 7


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_queue_timeout_refuses_and_frees_the_place(
    engine: ScriptedEngine, start: Start, held: Held, path: str
) -> None:
    running = await start(queue_timeout_s=0.15)
    busy = await started(running, n=4)
    await eventually(lambda: held.waiting)
    client = await running.client()
    begin = asyncio.get_running_loop().time()
    response = await client.post(path)
    assert asyncio.get_running_loop().time() - begin > 0.1
    assert_try_later(response, path, "timeout", "ADMISSION_TIMEOUT")
    assert running.queued == 0
    held.release()
    await busy.response()
    assert len(engine.generating) == 1


@pytest.mark.parametrize(
    ("path", "body", "cost"),
    [
        (CHAT, {"n": 5}, 5),
        (COMPLETIONS, {"prompt": ["a"] * 5}, 5),
        (COMPLETIONS, {"prompt": [[1, 2]] * 3, "n": 2}, 6),
        (CHAT, {"n": 10**6}, 10**6),
    ],
)
async def test_request_that_can_never_fit_is_refused_with_both_numbers(
    engine: ScriptedEngine, sidecar: Running, path: str, body: dict[str, Any], cost: int
) -> None:
    response = await (await sidecar.client()).post(path, **body)
    assert response.status == 400
    assert response.error["code"] == "cost_exceeds_slots"
    assert response.error["retriable"] is False
    assert str(cost) in response.error["message"]
    assert "4 slots" in response.error["message"]
    assert response.header("retry-after") is None
    assert engine.generating == []
