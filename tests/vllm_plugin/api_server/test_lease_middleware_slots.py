"""The middleware that grants slots, and books ends: when they are free, and who has to wait."""

from __future__ import annotations

import json

import pytest

from tests.vllm_plugin.api_server.generating import GeneratingApp
from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import LEASE, US, lease_of
from vllm_plugin.contracts.lease_protocol import Claim


@pytest.fixture
async def engine() -> GeneratingApp:
    return GeneratingApp()


async def end_of(call: Call, engine: GeneratingApp) -> None:
    """Lets a call end that has entered; `order` has what happens from then on."""
    await engine.entered.wait()
    engine.order.clear()
    engine.go_on.set()
    await call.task


async def test_end_of_a_complete_response_is_booked_before_it_is_sent(
    engine: GeneratingApp,
) -> None:
    """So that its sidecar finds the slots free for the next request."""
    engine.subscriber.wake = lambda: engine.order.append("reported")
    call = engine.call()
    await end_of(call, engine)
    assert engine.order[:2] == ["reported", "sent"]
    await engine.settled()
    assert engine.subscriber.ended == [LEASE], "once"
    engine.assert_no_request_left()


async def test_response_with_an_error_ends_its_lease_after_its_sequences(
    engine: GeneratingApp,
) -> None:
    """One of several prompts failed: the others are aborted in the next turns of the loop."""
    engine.status = 500
    engine.subscriber.wake = lambda: engine.order.append("reported")
    call = engine.call()
    await end_of(call, engine)
    await engine.settled()
    assert engine.order == ["sent", "aborted in the engine", "reported"]


async def test_rejection_of_a_single_sequence_is_booked_before_it_is_sent(
    engine: GeneratingApp,
) -> None:
    """vLLM has begun nothing: its sidecar finds the slot free for the next request."""
    engine.status = 400
    engine.subscriber.wake = lambda: engine.order.append("reported")
    call = engine.call(lease=lease_of(US, 7, cost=1))
    await end_of(call, engine)
    assert engine.order[:2] == ["reported", "sent"]
    await engine.settled()
    engine.assert_no_request_left()


@pytest.mark.parametrize("status", [400, 422])
async def test_rejection_of_several_sequences_is_booked_after_their_abort(
    engine: GeneratingApp, status: int
) -> None:
    """One of several prompts is too long: vLLM may have begun the others."""
    engine.status = status
    engine.subscriber.wake = lambda: engine.order.append("reported")
    call = engine.call()
    await end_of(call, engine)
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
    assert engine.engine_state.claims.of(US) == Claim(4, urgent=True)
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
    assert engine.engine_state.claims.of(US) == Claim(4, urgent=False)


async def test_lease_for_more_than_the_engine_has_is_a_bad_request(engine: GeneratingApp) -> None:
    call = engine.call(lease=lease_of(US, 7, cost=9))
    assert await call.status() == 400
    assert "more sequences than the engine has slots" in (await call.json())["error"]["message"]
    assert engine.engine_state.claims.of(US) is None


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
    assert engine.engine_state.claims.of(US) is None, "it lacks no slot"
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
