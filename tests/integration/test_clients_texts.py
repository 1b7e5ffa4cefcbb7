"""Texts of clients that no UTF-8 has, wherever a client's text is accepted: they harm nobody else.
JSON may escape half a surrogate pair, and HTTP may have any byte in a field or a target.

The request log of a running sidecar.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from multidict import istr

from orch_sidecar.api import headers
from orch_sidecar.api.endpoints import ENDPOINTS
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES, body_of
from tests.integration.keyed import KeyRing
from tests.integration.live import Readers
from tests.integration.otlp import Collect
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import ScriptedEngine

GOOD = 40
HALF = "\ud800"
# Half a pair as UTF-8 would have it, bytes that are no UTF-8, characters of other scripts.
BYTES = (b"\xed\xa0\x80", b"\xff\xfe\x80", "\u202e\u4f60".encode())

_FIELDS = ("model", "user", "cache_salt", "request_id", "service_tier", "priority", "metadata",
           "stop", "seed", "stream", "max_tokens", "kv_transfer_params", "response_format",
           HALF)  # fmt: skip
# These decide where the request ends, or answer before it does.
_FRAMING = (headers.CONTENT_LENGTH, headers.TRANSFER_ENCODING, headers.EXPECT)
_HEADERS = sorted(
    {
        str(value)
        for value in vars(headers).values()
        if isinstance(value, istr) and not value.endswith("-") and value not in _FRAMING
    }
    | {"x-llm-d-inference-fairness-id", "x-slo-ttft-ms", "X-Other", "User-Agent", "Cookie"}
)
_TARGETS = (
    b"/v1/%b", b"/%b", b"/v1/models?%b=%b", b"/v1/capabilities/stream?instance=%b",
    b"/v1/capabilities/stream?pool=%b", b"/v1/capabilities/stream?changes_every_ms=%b",
    b"/v1/capabilities?%b", b"/v1/requests/%b", b"/v1/requests/%b/cancel",
    b"/v1/capabilities/leases/%b", b"/v1/capabilities/claims/%b", b"/v1/pools/%b/drain",
    b"/v1/chat/completions?%b", b"/metrics?%b", b"/ui/%b", b"http://%b/v1/models", b"*%b",
)  # fmt: skip


def _request(method: bytes, target: bytes, lines: bytes = b"", body: bytes = b"") -> bytes:
    host = b"" if lines.lower().startswith(b"host:") else b"Host: localhost\r\n"
    if b"content-type:" not in lines.lower():
        lines += b"Content-Type: application/json\r\n"
    return b"%b %b HTTP/1.1\r\n%bConnection: close\r\n%bContent-Length: %d\r\n\r\n%b" % (
        method, target, host, lines, len(body), body,
    )  # fmt: skip


def _posts() -> Iterator[bytes]:
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        for field in _FIELDS:
            for value in (HALF, [HALF], {HALF: HALF}):
                # With a temperature of 0 requests are compared, to be coalesced.
                document = body_of(path, temperature=0, stream=value == HALF) | {field: value}
                events = b"X-Orch-Queue-Events: sse\r\n"
                yield _request(b"POST", path.encode(), events, json.dumps(document).encode())
        for text in BYTES:
            document = body_of(path) | {"model": "MODEL"}
            compact = json.dumps(document, separators=(",", ":")).encode()
            yield _request(b"POST", path.encode(), body=compact.replace(b"MODEL", text))
    for each in ENDPOINTS.values():
        body = b'{"model":"\\ud800","prompt":"\\ud800","run":"\\ud800","\\ud800":1,"\\ud800":2}'
        yield _request(b"POST", each.path.encode(), body=body)
    large = body_of(CHAT, user=HALF * 60_000) | {"model": HALF}
    yield _request(b"POST", CHAT.encode(), body=json.dumps(large).encode())


def _heads() -> Iterator[bytes]:
    good = json.dumps(body_of(CHAT)).encode()
    for text in BYTES:
        for name in _HEADERS:
            line = b"%b: %b\r\n" % (name.encode(), text)
            yield _request(b"POST", CHAT.encode(), line, good)
            trace = b"traceparent: 00-%b-b7ad6b7169203331-01\r\n" % (b"0af7651916cd43dd" * 2)
            yield _request(b"POST", CHAT.encode(), b"%btracestate: a=%b\r\n" % (trace, text), good)
        escaped = "".join(f"%{octet:02X}" for octet in text).encode()
        for target in _TARGETS:
            for shown in (text, escaped):
                for method in (b"GET", b"DELETE", b"PUT", b"P" + text):
                    yield _request(method, target.replace(b"%b", shown))


async def _sent(running: Running, request: bytes) -> bytes:
    """Sends a request on a connection of its own; returns the answer, or its head if the answer
    has no end."""
    client = await running.client()
    client.send(request)
    streams = b"/stream?" in request or request.startswith((b"GET /v1/live", b"GET /ui"))
    found = await (client.seen(b"\r\n\r\n") if streams else client.rest())
    running.clients.remove(client)
    await client.close()
    return found


def _well_formed(text: bytes) -> Any:
    """Parses JSON, in which nothing may be that UTF-8 has not, escaped or not."""
    found = json.loads(text.decode())
    json.dumps(found, ensure_ascii=False).encode()
    return found


@pytest.mark.parametrize("collector", ["http/protobuf"], indirect=True)
@pytest.mark.parametrize("kind", ["bodies", "pools", "heads"])
async def test_texts_that_are_no_utf_8_cost_no_other_request_its_line_or_its_spans(
    kind: str, engine: ScriptedEngine, b: ScriptedEngine, start: Start, collect: Collect,
    readers: Readers, tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    path = tmp_path / "requests.jsonl"
    settings: dict[str, Any] = {"request_log": str(path), "drain_timeout_s": 1.0}
    fields = []
    if kind == "pools":
        ring = KeyRing(tmp_path)
        ring.add("alice")
        settings |= pools(a=engine, b=b) | {"api_keys_file": ring.path}
        fields = [ring.bearer("alice")]
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields).encode()
    running = await all_ready(await start(**settings))
    live = await readers.open(running, headers=dict(fields))
    attacks = list(_heads() if kind == "heads" else _posts())
    every = len(attacks) // GOOD
    ids: list[str | None] = []
    caplog.set_level(logging.INFO)
    for number, attack in enumerate(attacks):
        answer = await _sent(
            running, attack.replace(b"Content-Length", lines + b"Content-Length", 1)
        )
        assert answer.startswith(b"HTTP/1."), attack
        assert answer[9:12] != b"500", attack
        head, _, body = answer.partition(b"\r\n\r\n")
        if b"application/json" in head and body and b"200 OK" not in head:
            _well_formed(body)
        if number % every == 0 and len(ids) < GOOD:
            good = await (await running.client()).post(headers=fields)
            assert good.status == 200
            ids.append(good.header("x-orch-request-id"))
            await running.clients.pop().close()
    assert len(ids) == GOOD
    document = await live.until(lambda it: it["requests"])
    json.dumps(document, ensure_ascii=False).encode()
    assert "orch_requests_total" in str(await running.metrics())
    _well_formed((await (await running.client()).get("/v1/capabilities", fields)).body)
    counts = running.sidecar.tracing.spans
    collector = await collect(running)
    logged = [_well_formed(line) for line in path.read_bytes().splitlines()]
    assert {line["id"] for line in logged} >= set(ids)
    spans = [span for span in collector.spans if span.kind == 2]
    assert len(spans) == len(logged)
    assert counts is not None
    assert sum(counts.dropped.values()) == 0
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert "Traceback" not in caplog.text
    if kind == "bodies":
        assert any(b'"model": "\\ud800"' in each.body for each in engine.generating)
        assert {line["model"] for line in logged} >= {"tiny", "?"}


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
