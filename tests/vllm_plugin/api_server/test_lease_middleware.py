"""The middleware that adds generating requests to the state, and removes them however they end.

Ends of streaming responses: a stream that reports a failure may have left sequences behind.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.vllm_plugin.api_server.generating import GeneratingApp, tracked
from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import FACTS, LEASE, US, lease_of
from vllm_plugin.api_server.lease_middleware import ABORT_TURNS
from vllm_plugin.contracts.lease_protocol import Claim
from vllm_plugin.contracts.slot_claims import Subscriber
from vllm_plugin.state.engine_state import EngineState


@pytest.fixture
async def engine() -> GeneratingApp:
    return GeneratingApp()


async def test_request_is_counted_while_it_generates(engine: GeneratingApp) -> None:
    call = await engine.begun()
    assert engine.engine_state.leases.of(US) == [LEASE]
    assert engine.engine_state.leases.leased() == 4
    engine.go_on.set()
    await call.task
    await engine.settled()
    assert engine.subscriber.ended == [LEASE]
    engine.assert_no_request_left()


async def test_response_after_a_disconnect_does_not_end_the_lease_early(
    engine: GeneratingApp,
) -> None:
    """vLLM's handler answers `null` to the disconnected client before its task has ended."""
    call = await engine.begun()
    call.disconnect()
    await engine.settled()
    engine.order.clear()
    engine.go_on.set()  # the response is complete, and the generating task only cancelled
    await call.task
    await engine.settled()
    assert engine.order == ["sent", "aborted in the engine", "reported"]


@pytest.mark.parametrize(
    ("path", "counted"),
    [
        ("/v1/completions", True),
        ("/ping", False),
        ("/llm/v1/completions", True),
        ("/llm/tokenize", False),
    ],
)
async def test_only_generating_requests_are_counted(
    engine: GeneratingApp, path: str, counted: bool
) -> None:
    """With --root-path they are those of a path with and without it."""
    call = engine.call(path, lease=None, root_path="/llm")
    await engine.entered.wait()
    assert engine.engine_state.leases.foreign_to(US) == int(counted)
    engine.go_on.set()
    await call.task


async def test_request_that_generates_takes_a_number(engine: GeneratingApp) -> None:
    """Traced or not; what is rejected, or generates nothing, takes none."""
    engine.go_on.set()
    parents = [f"00-{trace:032x}-{trace:016x}-01" for trace in (7, 8)]
    await engine.call(lease=None, traceparent=parents[0]).task
    await engine.call(lease=None).task
    await engine.call("/tokenize", lease=None, traceparent=parents[1]).task
    engine.engine_state.leases.revoke(LEASE)
    await engine.call(traceparent=parents[1]).task
    await engine.call(lease=None, traceparent=parents[1]).task
    numbers = engine.engine_state.request_numbers
    assert [numbers.of((trace, trace)) for trace in (7, 8)] == [1, 3]
    assert engine.engine_state.leases.entered == 3
    await engine.settled()
    assert [numbers.of((trace, trace)) for trace in (7, 8)] == [1, 3], "still known"


async def test_aborted_request_has_left(engine: GeneratingApp) -> None:
    parent = f"00-{7:032x}-{7:016x}-01"
    call = engine.call(lease=None, traceparent=parent)
    await engine.entered.wait()
    call.task.cancel()
    await engine.settled()
    engine.go_on.set()
    await engine.call(lease=None, traceparent=parent).task
    assert engine.engine_state.request_numbers.of((7, 7)) == 2, "shared with no other request"


async def test_spent_lease_is_rejected(engine: GeneratingApp) -> None:
    engine.engine_state.leases.revoke(LEASE)
    call = engine.call()
    assert await call.status() == 409
    assert (await call.json())["error"]["type"] == "lease_spent"
    assert not engine.entered.is_set()
    engine.assert_no_request_left()


async def test_failing_handler_releases_its_lease(engine: GeneratingApp) -> None:
    engine.fails = True
    call = await engine.begun()
    engine.go_on.set()
    with pytest.raises(RuntimeError, match="the handler failed"):
        await call.task
    await engine.settled()
    assert engine.subscriber.ended == [LEASE]
    engine.assert_no_request_left()


async def test_end_of_a_cancelled_request_is_reported_after_its_abort(
    engine: GeneratingApp,
) -> None:
    """A request admitted in its place must follow the abort in the engine's channel."""
    call = await engine.begun()
    engine.order.clear()
    call.task.cancel()
    await engine.settled()
    assert engine.order == ["aborted in the engine", "reported"]
    assert engine.subscriber.ended == [LEASE]
    engine.assert_no_request_left()


@pytest.mark.parametrize("turns", range(ABORT_TURNS + 2))
async def test_second_cancellation_leaves_no_request_behind(
    engine: GeneratingApp, turns: int
) -> None:
    call = await engine.begun()
    call.task.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    call.task.cancel()
    await engine.settled()
    assert call.task.done()
    engine.assert_no_request_left()


async def test_report_is_expected_once_the_request_body_is_complete() -> None:
    """A client that sends slowly is not a stall of the engine."""
    engine_state = EngineState(FACTS)
    body: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def reading(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await asyncio.Event().wait()

    async def nowhere(message: Any) -> None:
        raise AssertionError(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/completions"}
    scope |= {"headers": [], "client": None, "server": None}
    call = asyncio.ensure_future(tracked(reading, engine_state)(scope, body.get, nowhere))
    body.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    for _ in range(5):
        await asyncio.sleep(0)
    hour_later_s = time.time() + 3600
    assert engine_state.heartbeat_fields(hour_later_s)["state"] == "ready"
    body.put_nowait({"type": "http.request", "body": b"}", "more_body": False})
    for _ in range(5):
        await asyncio.sleep(0)
    assert engine_state.heartbeat_fields(hour_later_s)["state"] == "stalled"
    call.cancel()
    await asyncio.wait([call])
    for _ in range(ABORT_TURNS + 2):
        await asyncio.sleep(0)
    assert engine_state.heartbeat_fields(hour_later_s)["state"] == "ready"


async def end_of(engine: GeneratingApp) -> None:
    """Lets a call end that has entered; `order` has what happens from then on."""
    call = await engine.begun()
    engine.order.clear()
    engine.go_on.set()
    await call.task


async def test_end_of_a_complete_response_is_booked_before_it_is_sent(
    engine: GeneratingApp,
) -> None:
    """So that its sidecar finds the slots free for the next request."""
    await end_of(engine)
    assert engine.order[:2] == ["reported", "sent"]
    await engine.settled()
    assert engine.subscriber.ended == [LEASE], "once"
    engine.assert_no_request_left()


@pytest.mark.parametrize("status", [400, 422, 500])
async def test_rejection_of_several_sequences_is_booked_after_their_abort(
    engine: GeneratingApp, status: int
) -> None:
    """One of several prompts is too long, or failed: vLLM may have begun the others, and aborts
    them in the next turns of the loop."""
    engine.status = status
    await end_of(engine)
    await engine.settled()
    assert engine.order == ["sent", "aborted in the engine", "reported"]


async def test_request_without_a_slot_is_rejected_before_its_body_is_read(
    engine: GeneratingApp,
) -> None:
    first = engine.call(lease=lease_of(US, 7, cost=5))
    await engine.entered.wait()
    engine.entered.clear()
    call = engine.call()  # of 4, beside 5 of 8
    message = await call.message()
    assert message["status"] == 429
    assert (b"retry-after", b"1") in message["headers"]
    error = (await call.json())["error"]
    assert (error["type"], error["retriable"]) == ("no_slot", True)
    assert not engine.entered.is_set()
    assert engine.engine_state.claims.claim_of(US) == Claim(4, urgent=True)
    engine.go_on.set()
    await first.task
    assert [offer.slots for offer in engine.subscriber.offers] == [4]
    assert await engine.call().status() == 200


async def test_rejected_bulk_request_leaves_a_claim_that_is_not_urgent(
    engine: GeneratingApp,
) -> None:
    engine.call(lease=lease_of(US, 7, cost=8))
    await engine.entered.wait()
    headers = {"X-Orch-Lease": LEASE, "X-Orch-Class": "bulk"}
    assert await Call(engine.app, "POST", "/v1/completions", headers).status() == 429
    assert engine.engine_state.claims.claim_of(US) == Claim(4, urgent=False)


async def test_lease_for_more_than_the_engine_has_is_a_bad_request(engine: GeneratingApp) -> None:
    call = engine.call(lease=lease_of(US, 7, cost=9))
    assert await call.status() == 400
    assert "more sequences than the engine has slots" in (await call.json())["error"]["message"]
    assert engine.engine_state.claims.claim_of(US) is None


async def test_request_without_room_for_its_adapter_is_rejected_before_its_body_is_read(
    engine: GeneratingApp,
) -> None:
    engine.engine_state.adapter_use.most = 1
    engine.engine_state.set_models(("tiny",), ("a", "b ä"))

    def call(number: int, adapter: str, model: str) -> Call:
        headers = {"X-Orch-Lease": lease_of(US, number), "X-Orch-Adapter": adapter}
        body = json.dumps({"model": model}).encode()
        return Call(engine.app, "POST", "/v1/completions", headers, body)

    first = call(1, "a", "a")
    await engine.entered.wait()
    engine.entered.clear()
    rejected = call(2, "b%20%C3%A4", "b ä")
    message = await rejected.message()
    assert message["status"] == 429
    assert (b"retry-after", b"1") in message["headers"]
    error = (await rejected.json())["error"]
    assert (error["type"], error["retriable"]) == ("no_adapter", True)
    assert not engine.entered.is_set()
    assert engine.engine_state.claims.claim_of(US) is None, "it lacks no slot"
    engine.go_on.set()
    await first.task
    assert await call(3, "b%20%C3%A4", "b ä").status() == 200
    engine.assert_no_request_left()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'{"model": 1}', b'{"model": "other"}', b"\xff", b"[" * 100_000]
)
async def test_body_that_names_no_adapter_counts_for_none(
    engine: GeneratingApp, body: bytes
) -> None:
    engine.engine_state.adapter_use.most = 1
    engine.engine_state.set_models(("tiny",), ("a",))
    headers = {"X-Orch-Lease": LEASE, "X-Orch-Adapter": "a"}
    call = Call(engine.app, "POST", "/v1/completions", headers, body)
    await engine.entered.wait()
    await engine.settled()
    assert engine.engine_state.adapter_use.fields(None)["foreign"] == []
    engine.go_on.set()
    assert await call.status() == 200


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
