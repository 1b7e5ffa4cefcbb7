"""A pool that is itself a sidecar: what it receives, and what becomes of requests that it rejects.

The sidecar below is scripted like an engine: its state stream has the same form.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.client import CHAT, MESSAGES
from tests.integration.held import started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

RETRY: Any = [("retry-after", "1"), ("retry-after-ms", "20")]
ENVELOPE = {"error": {"code": "ADMISSION_NO_QUEUE", "retriable": True, "retry_after_ms": 20}}


def turn_away(status: int = 429, body: Any = ENVELOPE, headers: Any = RETRY) -> Any:
    """A script: the sidecar below has no slot now."""

    async def script(answer: Answer) -> None:
        answer.json(body, status, headers)

    return script


@pytest.fixture
async def parent_leases(start: Start, engine: ScriptedEngine) -> Running:
    """A sidecar above `engine`, which it takes for a sidecar."""
    return await start(
        pools=[{"name": "lower", "url": engine.url, "profile": "cloud", "tier": True}]
    )


async def test_directives_for_the_sidecar_below_are_ours(
    parent_leases: Running, engine: ScriptedEngine
) -> None:
    client = await parent_leases.client()
    await client.post(
        CHAT,
        [
            ("X-Orch-Class", "bulk"),
            ("X-Orch-Deadline-Ms", "60000"),
            ("X-Orch-Max-Wait-Ms", "50000"),
            ("X-Orch-No-Coalesce", "1"),
            ("X-Orch-Do-Not-Queue", "false"),
            ("X-Orch-Pool", "lower"),
            ("X-Orch-Lease", "forged"),
            ("X-Vllm-Priority", "-9"),
        ],
    )
    await client.post(CHAT)
    first, second = engine.generating
    assert first.header("x-orch-class") == "bulk"
    assert 59_000 <= int(first.header("x-orch-deadline-ms") or "") <= 60_000
    assert 49_000 <= int(first.header("x-orch-max-wait-ms") or "") <= 50_000
    assert first.header("x-orch-no-coalesce") == "true"
    assert (first.lease or "").startswith(parent_leases.pool.gate.instance)
    headers = {name: value for name, value in second.fields if name.startswith("x-orch-")}
    assert set(headers) == {
        "x-orch-class",
        "x-orch-do-not-queue",
        "x-orch-lease",
        "x-orch-no-coalesce",
    }
    assert headers["x-orch-class"] == "interactive"
    for request in (first, second):
        assert request.header("x-orch-do-not-queue") == "true"
        assert request.header("x-orch-pool") is None
        assert request.header("x-vllm-priority") is None
        names = [name for name, _ in request.fields]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("script", [turn_away(), turn_away(503, body={"detail": "busy"})])
async def test_request_that_is_turned_away_goes_back_and_is_served(
    parent_leases: Running, engine: ScriptedEngine, script: Any, path: str
) -> None:
    engine.scripts += [script, script]
    response = await (await parent_leases.client()).post(path, seed=1)
    assert response.status == 200
    assert b"retriable" not in response.body
    assert response.header("x-orch-queue-position") == "0"
    assert response.header("retry-after") is None
    leases = [request.lease for request in engine.generating]
    assert len(set(leases)) == 3  # a lease is used once
    await parent_leases.idle()
    assert parent_leases.ledger.lease_count == 0


async def test_client_that_leaves_while_its_request_is_put_back_leaks_nothing(
    parent_leases: Running, engine: ScriptedEngine
) -> None:
    engine.answer = turn_away()
    client = await started(parent_leases)
    await eventually(lambda: len(engine.generating) > 1)
    await client.close()
    await eventually(lambda: not parent_leases.queued)
    await parent_leases.idle()
    assert parent_leases.ledger.lease_count == 0
