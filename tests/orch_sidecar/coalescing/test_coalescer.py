"""The stage that shares generations: starting, joining and cancelling them; and whose they are.

Header fields that distinguish tenants, and those that do not.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from orch_sidecar.api.options import NO_OPTIONS
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.coalescing.broadcast import Broadcast
from orch_sidecar.coalescing.coalescer import Coalesce, SharedGeneration, tenant
from orch_sidecar.observability.record import Outcome
from orch_sidecar.proxy.request import NotSent, Request, Result, Retry, Sent
from tests.orch_sidecar.broadcasting import STREAM, Engine
from tests.orch_sidecar.proxy.stages import NextStage, request_of
from tests.orch_sidecar.relayed import Client
from tests.patience import HANG_S
from vllm_plugin.contracts.profile import ServiceClass

SENT = Sent(keep_alive=True, outcome=Outcome.OK)
INTERACTIVE, BULK, IDLE = ServiceClass


def wants(
    client: Client | None = None, digest: bytes | None = b"same", **call_fields: Any
) -> Request:
    known = {"options": NO_OPTIONS, "service_class": INTERACTIVE} | call_fields
    call = SimpleNamespace(**known, coalescing_key=digest)
    return request_of(client, call=cast(Any, call))


def coalesce(stage: NextStage) -> Coalesce:
    pools = MagicMock(draining=False)
    return Coalesce(cast(Any, stage), pools, MagicMock(), MagicMock())


async def generates(request: Request) -> Result:
    """An engine that answers a shared generation."""
    assert isinstance(request.sink, Broadcast)
    await asyncio.sleep(0.01)
    Engine(request.sink).sends(STREAM)
    return SENT


async def test_identical_requests_share_one_generation(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "orch.sidecar")
    stage, clients = NextStage(generates), [Client(), Client()]
    shared = coalesce(stage)
    first, second = (wants(client) for client in clients)
    results = await asyncio.gather(shared.handle(first), shared.handle(second))
    assert list(results) == [SENT, SENT]
    [(generation,)] = stage.calls
    assert generation is not first
    assert generation.record.id == first.record.id
    for client in clients:
        assert client.data.endswith(b"0\r\n\r\n")
    assert (first.record.coalesced, second.record.coalesced) == (False, True)
    assert (first.record.fanout, second.record.fanout) == (2, 0)
    assert generation.record.fanout == 2
    assert "fanout=2" in caplog.text
    assert generation.record.ended
    assert not shared._by_key


@pytest.mark.parametrize(
    ("joins", "owner", "admitted", "accepted"),
    [
        (BULK, INTERACTIVE, False, True),
        (INTERACTIVE, BULK, False, False),  # it would wait behind others of its class
        (INTERACTIVE, BULK, True, True),
        (INTERACTIVE, IDLE, True, False),  # that may be cut
        (IDLE, IDLE, True, True),
    ],
)
async def test_generation_is_joined_by_those_whom_it_serves_no_worse(
    joins: ServiceClass, owner: ServiceClass, admitted: bool, accepted: bool
) -> None:
    request, call = wants(service_class=owner), wants(service_class=joins).call
    assert request.call is not None
    assert call is not None
    shared = SharedGeneration(cast(Any, "key"), request, request.call, frozenset())
    shared.request.record.admitted = 1 if admitted else None
    assert shared.accepts(call) is accepted


@pytest.mark.parametrize("limit", ["deadline_ms", "max_wait_ms", "tpot_ms", "do_not_queue"])
async def test_request_that_limits_its_wait_leaves_a_waiting_generation_to_others(
    limit: str,
) -> None:
    async def waits(_: Request) -> Result:
        await asyncio.sleep(HANG_S)
        return SENT

    stage = NextStage(generates, waits, SENT)
    shared, limited = (
        coalesce(stage),
        wants(options=replace(NO_OPTIONS, **cast(Any, {limit: True}))),
    )
    assert await shared.handle(limited) == SENT
    assert stage.calls[0] != (limited,), "where none waits, others may join it"
    first = asyncio.create_task(shared.handle(wants()))
    await asyncio.sleep(0.01)
    assert await shared.handle(limited) is SENT
    assert stage.calls[2] == (limited,)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_generation_is_cancelled_with_its_last_client_and_not_before() -> None:
    cancelled = asyncio.Event()

    async def waits(_: Request) -> Result:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return SENT

    shared = coalesce(NextStage(waits))
    tasks = [asyncio.create_task(shared.handle(wants())) for _ in range(2)]
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    await asyncio.sleep(0.01)
    assert not cancelled.is_set()
    tasks[1].cancel()
    await asyncio.wait_for(cancelled.wait(), HANG_S)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not shared._by_key
    assert not shared._running


async def test_trace_of_a_generation_that_never_began_has_ended() -> None:
    """The trace of the request that started it would never be handed over."""
    stage, request = NextStage(SENT), wants()
    trace = request.trace = MagicMock()
    handling = coalesce(stage).handle(request)
    handling.send(None)  # until the generation's task has been created
    with pytest.raises(asyncio.CancelledError):
        handling.throw(asyncio.CancelledError())
    for _ in range(3):
        await asyncio.sleep(0)
    assert stage.calls == []
    trace.shared.return_value.ended.assert_called_once_with()


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
async def test_failed_generation_is_refused_to_every_client(error: Exception | None) -> None:
    refusal = Refusal(Reason.ENGINE_FAILED, "lost")
    shared = coalesce(NextStage(error or NotSent(refusal)))
    results = await asyncio.gather(shared.handle(wants()), shared.handle(wants()))
    reason = Reason.ENGINE_FAILED if error is None else Reason.INTERNAL_ERROR
    for result in results:
        assert isinstance(result, NotSent)
        assert result.refusal.reason is reason


def beside_a_pool_that_does_not_coalesce(stage: NextStage) -> Coalesce:
    shared = coalesce(stage)
    pools = [SimpleNamespace(group=name, admission=MagicMock()) for name in ("a", "b")]
    for pool in pools:
        pool.admission.rules.coalescing = pool.group == "a"
    shared._pools = cast(Any, MagicMock(draining=False, one=None))
    shared._pools.__iter__.side_effect = lambda: iter(pools)  # type: ignore[attr-defined]
    return shared


@pytest.mark.parametrize(
    ("alone", "answered"),
    [
        (Reason.QUEUE_FULL, Reason.QUEUE_FULL),  # a pool works: the client should come back
        (Reason.ENGINE_DOWN, Reason.ENGINE_STALE),
    ],
)
async def test_refusal_of_the_pool_that_works_counts_where_those_that_coalesce_are_away(
    alone: Reason, answered: Reason
) -> None:
    away = NotSent(Refusal(Reason.ENGINE_STALE, "silent"), Retry.ANY_POOL)
    stage = NextStage(away, NotSent(Refusal(alone, "busy or away")))
    result = await beside_a_pool_that_does_not_coalesce(stage).handle(wants())
    assert isinstance(result, NotSent)
    assert result.refusal.reason is answered


async def test_client_that_leaves_after_a_shared_failure_left_of_itself() -> None:
    """The generation failed; this client's own attempt, which follows, was not reset by that."""
    refusal = Refusal(Reason.ENGINE_FAILED, "lost")
    stage = NextStage(NotSent(refusal, Retry.OTHER_POOL), asyncio.CancelledError())
    shared, request = beside_a_pool_that_does_not_coalesce(stage), wants()
    with pytest.raises(asyncio.CancelledError):
        await shared.handle(request)
    assert len(stage.calls) == 2
    assert request.attempt.failure is None


PLAIN = [
    (b"Host", b"sidecar"),
    (b"Authorization", b"Bearer one"),
    (b"Content-Type", b"application/json"),
]


@pytest.mark.parametrize(
    "fields",
    [
        [(b"authorization", b"Bearer one"), (b"content-type", b"application/json")],
        [*reversed(PLAIN)],
        [*PLAIN, (b"User-Agent", b"a/1"), (b"X-Stainless-Lang", b"python")],
        [*PLAIN, (b"X-Request-Id", b"a"), (b"traceparent", b"00-1-2-01"), (b"X-Orch-Pool", b"a")],
        [*PLAIN, (b"X-Forwarded-For", b"1.2.3.4"), (b"Content-Length", b"7"), (b"TE", b"trailers")],
        [*PLAIN, (b"x-slo-ttft-ms", b"500"), (b"x-gateway-inference-objective", b"bulk")],
    ],
)
def test_spelling_order_software_and_connection_do_not_distinguish_tenants(
    fields: list[tuple[bytes, bytes]],
) -> None:
    assert tenant(fields) == tenant(PLAIN)


@pytest.mark.parametrize(
    "field",
    [
        (b"Authorization", b"Bearer two"),
        (b"X-Api-Key", b"one"),
        (b"Cookie", b"a=b"),
        (b"Openai-Organization", b"o"),
        (b"X-Forwarded-User", b"u"),
        (b"x-gateway-inference-fairness-id", b"team"),
        (b"X-Forwarded-Access-Token", b"t"),
        (b"Content-Type", b"text/plain"),
        (b"X-Anything-Unknown", b""),
    ],
)
def test_keys_users_and_unknown_fields_distinguish_tenants(field: tuple[bytes, bytes]) -> None:
    others = [field, *(each for each in PLAIN if each[0] != field[0])]
    assert tenant(others) != tenant(PLAIN)
    assert tenant([*PLAIN, field]) != tenant(PLAIN)


def test_requests_without_distinguishing_fields_are_one_tenant() -> None:
    assert tenant([(b"Host", b"a")]) == tenant([(b"Host", b"b")]) == ()


def test_swapped_values_of_two_fields_distinguish_tenants() -> None:
    assert tenant([(b"X-A", b"1"), (b"X-B", b"2")]) != tenant([(b"X-A", b"2"), (b"X-B", b"1")])
