"""The request log of a running sidecar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.client import CHAT
from tests.integration.keyed import KeyRing
from tests.integration.running import Start, eventually
from tests.integration.scripted_engine import ScriptedEngine

TRACE = "0af7651916cd43dd8448eb211c80319c"


def logged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_request_has_a_line_without_its_prompt_or_its_key(
    start: Start, engine: ScriptedEngine, tmp_path: Path
) -> None:
    ring, path = KeyRing(tmp_path), tmp_path / "requests.jsonl"
    ring.add("alice")
    engine.state_fields |= {"steps_by_batch": {"2": [100, 0.1]}}
    sidecar = await start(api_keys_file=ring.path, request_log=str(path))
    client = await sidecar.client()
    headers = [
        ring.bearer("alice"),
        ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"),
        ("X-Request-Id", "mine"),
    ]
    usage = {"include_usage": True}
    response = await client.post(headers=headers, stream=True, stream_options=usage)
    assert response.status == 200
    engine.report(steps_by_batch={"2": [100, 0.1], "3": [50, 0.1]})
    await eventually(lambda: sidecar.pool.watcher.document["steps_by_batch"].get("3"))  # type: ignore[index]
    assert (await client.post(headers=[("X-Orch-Class", "none"), headers[0]])).status == 400
    assert (await client.post()).status == 401
    await eventually(lambda: len(logged(path)) == 3)
    by_status = {each["status"]: each for each in logged(path)}
    line = by_status[200]
    assert (line["outcome"], line["route"], line["model"]) == ("ok", CHAT, "tiny")
    assert (line["request_id"], line["key"], line["trace_id"]) == ("mine", "alice", TRACE)
    assert (line["prompt_tokens"], line["tokens"], line["tokens_estimated"]) == (7, 3, False)
    assert 0 <= line["wait_ms"] <= line["ttft_ms"] <= line["total_ms"]
    assert line["id"] == response.header("x-orch-request-id")
    assert by_status[400]["outcome"] == "invalid_request"
    assert (by_status[401]["outcome"], by_status[401]["key"]) == ("unauthorized", None)
    text = path.read_text()
    assert "say something" not in text
    assert ring.keys["alice"] not in text
    assert (await sidecar.metrics())["orch_request_log_dropped_total"] == 0


async def test_lines_that_are_left_are_written_at_the_end(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    sidecar = await start(request_log=str(path))
    client = await sidecar.client()
    for _ in range(5):
        assert (await client.post()).status == 200
    await client.close()
    await sidecar.stop()
    assert [each["status"] for each in logged(path)] == [200] * 5


async def test_log_that_cannot_be_opened_prevents_the_start(start: Start, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="ORCH_REQUEST_LOG"):
        await start(request_log=str(tmp_path / "nowhere" / "requests.jsonl"))
