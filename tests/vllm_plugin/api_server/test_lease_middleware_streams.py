"""Ends of streaming responses: a stream that reports a failure may have left sequences behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.vllm_plugin.api_server.generating import tracked
from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import FACTS, LEASE, US
from vllm_plugin.api_server.lease_middleware import ABORT_TURNS
from vllm_plugin.contracts.claiming_sidecar import Subscriber
from vllm_plugin.state.engine_state import EngineState


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        ([b'data: {"choices": []}\n\n', b"data: [DONE]\n\n"], ["reported", "sent"]),
        (
            [b'data: {"error": {"code": 500}}\n\n', b"data: [DONE]\n\n"],
            ["sent", "aborted in the engine", "reported"],
        ),
        (
            [b'event: error\ndata: {"type": "error"}\n\n'],
            ["sent", "aborted in the engine", "reported"],
        ),
    ],
)
async def test_end_of_a_stream_is_booked_at_once_unless_it_failed(
    events: list[bytes], ends: list[str]
) -> None:
    """vLLM's stream ends while its generator, which nobody has closed, is yet to be collected."""
    engine_state, order = EngineState(FACTS), list[str]()
    engine_state.subscribe(Subscriber(US, lambda: order.append("reported")))

    async def generate() -> Any:
        try:
            yield None
            yield None
        finally:
            await asyncio.sleep(0)
            order.append("aborted in the engine")

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        outputs = generate()
        await anext(outputs)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for each in events:
            await send({"type": "http.response.body", "body": each, "more_body": True})
        if "aborted in the engine" not in ends:
            await outputs.aclose()
        order.clear()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        order.append("sent")

    app = tracked(stream, engine_state)
    await Call(app, "POST", "/v1/completions", {"X-Orch-Lease": LEASE}).task
    for _ in range(ABORT_TURNS + 2):
        await asyncio.sleep(0)
    assert order == ends
    assert engine_state.leases.leased() == 0
