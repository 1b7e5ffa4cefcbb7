"""The middleware that adds generating requests to the state, and removes them however they end."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import anyio
import pytest

from tests.vllm_plugin.api_server.generating import GeneratingApp, tracked
from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import FACTS, LEASE, US
from vllm_plugin.api_server.lease_middleware import ABORT_TURNS
from vllm_plugin.state.engine_state import EngineState


@pytest.fixture
async def engine() -> GeneratingApp:
    return GeneratingApp()


async def test_request_is_counted_while_it_generates(engine: GeneratingApp) -> None:
    call = engine.call()
    await engine.entered.wait()
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
    engine.subscriber.wake = lambda: engine.order.append("reported")
    call = engine.call()
    await engine.entered.wait()
    call.disconnect()
    await engine.settled()
    engine.order.clear()
    engine.go_on.set()  # the response is complete, and the generating task only cancelled
    await call.task
    await engine.settled()
    assert engine.order == ["sent", "aborted in the engine", "reported"]


async def test_request_without_a_lease_is_counted_as_foreign(engine: GeneratingApp) -> None:
    call = engine.call(lease=None)
    await engine.entered.wait()
    assert engine.engine_state.leases.foreign_to(US) == 1
    engine.go_on.set()
    await call.task
    await engine.settled()
    engine.assert_no_request_left()


@pytest.mark.parametrize(("path", "counted"), [("/v1/completions", True), ("/ping", False)])
async def test_only_generating_requests_are_counted(
    engine: GeneratingApp, path: str, counted: bool
) -> None:
    call = engine.call(path, lease=None)
    await engine.entered.wait()
    assert engine.engine_state.leases.foreign_to(US) == int(counted)
    engine.go_on.set()
    await call.task


async def test_get_is_not_counted(engine: GeneratingApp) -> None:
    call = Call(engine.app, "GET", "/v1/models")
    await engine.entered.wait()
    assert engine.engine_state.leases.foreign_to(US) == 0
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


async def test_lease_in_use_is_rejected_and_its_first_request_continues(
    engine: GeneratingApp,
) -> None:
    first = engine.call()
    await engine.entered.wait()
    assert await engine.call().status() == 409
    assert engine.engine_state.leases.leased() == 4
    engine.go_on.set()
    await first.task


async def test_failing_handler_releases_its_lease(engine: GeneratingApp) -> None:
    engine.fails = True
    call = engine.call()
    await engine.entered.wait()
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
    engine.subscriber.wake = lambda: engine.order.append("reported")
    call = engine.call()
    await engine.entered.wait()
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
    call = engine.call()
    await engine.entered.wait()
    call.task.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    call.task.cancel()
    await engine.settled()
    assert call.task.done()
    engine.assert_no_request_left()


async def test_repeated_cancel_scope_leaves_no_request_behind(engine: GeneratingApp) -> None:
    """As in Starlette: an anyio scope cancels at each turn until its task has left it."""

    async def scoped() -> None:
        with anyio.CancelScope() as scope:
            asyncio.get_running_loop().call_later(0.01, scope.cancel)
            await engine.call().task

    await scoped()
    await engine.settled()
    assert engine.subscriber.ended == [LEASE]
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
