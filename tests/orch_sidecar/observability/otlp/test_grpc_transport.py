"""OTLP over gRPC, to collectors that misbehave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from orch_sidecar.observability.otlp.delivery import Reply, Verdict
from orch_sidecar.observability.otlp.grpc_transport import USER_AGENT, GrpcTransport
from tests.orch_sidecar.observability.otlp.collectors import (
    GRPC,
    LONG_S,
    failing,
    grpc_receiver,
    response,
    returning,
    sent_to,
    transport_to,
)

DELIVERED, RETRY, REJECTED = Verdict.DELIVERED, Verdict.RETRY, Verdict.REJECTED
Code = grpc.StatusCode


async def one(behave: Callable[[Any], bytes]) -> Reply:
    """Sends one request to a collector that does this."""
    with grpc_receiver(behave) as receiver:
        return await sent_to(receiver.port, GRPC)


def details(seconds: float) -> tuple[str, bytes]:
    """Returns the field in which a server's library puts a RetryInfo."""
    info = AnyMessage()
    info.Pack(retry_info(seconds))
    return "grpc-status-details-bin", Status(code=8, details=[info]).SerializeToString()


def retry_info(seconds: float) -> Any:
    whole = int(seconds)
    return RetryInfo(retry_delay=Duration(seconds=whole, nanos=round((seconds - whole) * 1e9)))


@pytest.mark.parametrize(
    ("code", "verdict"),
    {
        Code.CANCELLED: RETRY,
        Code.UNKNOWN: REJECTED,
        Code.INVALID_ARGUMENT: REJECTED,
        Code.DEADLINE_EXCEEDED: RETRY,
        Code.NOT_FOUND: REJECTED,
        Code.ALREADY_EXISTS: REJECTED,
        Code.PERMISSION_DENIED: REJECTED,
        Code.UNAUTHENTICATED: REJECTED,
        Code.RESOURCE_EXHAUSTED: REJECTED,
        Code.FAILED_PRECONDITION: REJECTED,
        Code.ABORTED: RETRY,
        Code.OUT_OF_RANGE: RETRY,
        Code.UNIMPLEMENTED: REJECTED,
        Code.INTERNAL: REJECTED,
        Code.UNAVAILABLE: RETRY,
        Code.DATA_LOSS: RETRY,
    }.items(),
    ids=lambda value: getattr(value, "name", None),
)
async def test_code_decides_as_in_the_table_of_the_specification(
    code: Any, verdict: Verdict
) -> None:
    assert await one(failing(code, "no\nroom")) == Reply(verdict, f"{code.name}: no room")


@pytest.mark.parametrize("code", [Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE])
@pytest.mark.parametrize(
    ("field", "seconds"),
    [
        (details(7.5), 7.5),
        (("google.rpc.retryinfo-bin", retry_info(3).SerializeToString()), 3.0),
    ],
)
async def test_throttling_states_when_to_return(
    code: Any, field: tuple[str, bytes], seconds: float
) -> None:
    reply = await one(failing(code, "busy", field))
    assert reply == Reply(RETRY, f"{code.name}: busy", retry_after_s=seconds)


@pytest.mark.parametrize(
    "field",
    [
        ("grpc-status-details-bin", Status(message="x").SerializeToString()),
        ("grpc-status-details-bin", b"\xff\xff"),
        ("google.rpc.retryinfo-bin", b"garbage"),
    ],
)
async def test_details_without_a_delay_are_none(field: tuple[str, bytes]) -> None:
    assert (await one(failing(Code.RESOURCE_EXHAUSTED, "", field))).verdict is REJECTED
    reply = await one(failing(Code.UNAVAILABLE, "", field))
    assert (reply.verdict, reply.retry_after_s) == (RETRY, None)


@pytest.mark.parametrize(("rejected", "text"), [(0, ""), (5, "too old"), (0, "use v2")])
async def test_partial_success_is_read(rejected: int, text: str) -> None:
    assert await one(returning(response(rejected, text))) == Reply(
        DELIVERED, text, rejected=rejected
    )


@pytest.mark.parametrize("body", [b"<html>", b"\xff" * 1_000_000])
async def test_accepted_request_is_never_repeated_whatever_its_answer_is(body: bytes) -> None:
    reply = await one(returning(body))
    assert reply.verdict is DELIVERED
    assert reply.text.startswith("the answer is no ExportTraceServiceResponse")


async def test_huge_answer_is_refused_and_not_retried() -> None:
    reply = await one(returning(bytes(5_000_000)))
    assert reply.verdict is REJECTED
    assert "larger than max" in reply.text


async def test_collector_that_hangs_is_a_retry_when_the_time_is_over() -> None:
    released = threading.Event()

    def hang(context: Any) -> bytes:
        released.wait(LONG_S)
        return b""

    with grpc_receiver(hang) as receiver:
        reply = await sent_to(receiver.port, GRPC, limit_s=0.3)
        released.set()
    assert reply.verdict is RETRY
    assert reply.text.startswith("DEADLINE_EXCEEDED: ")


async def test_request_has_the_configured_fields_and_the_user_agent() -> None:
    with grpc_receiver(returning()) as receiver:
        headers = "authorization=Bearer%20a,X-Scope=1,x-key-bin=ab"
        reply = await sent_to(receiver.port, GRPC, limit_s=None, HEADERS=headers)
        assert reply == Reply(DELIVERED)
        ((metadata, body),) = receiver.requests
        assert metadata["authorization"] == "Bearer a"
        assert metadata["x-scope"] == "1"
        assert metadata["x-key-bin"] == b"ab"
        assert metadata["user-agent"].startswith(f"{USER_AGENT} grpc-python/")
        assert body == b"spans"


@asynccontextmanager
async def counting_relay(port: int) -> AsyncIterator[list[int]]:
    """Yields its own port, and the numbers of bytes that went to this one and came back."""
    counts = [0, 0, 0]

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: int) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while piece := await reader.read(2**16):
                counts[way] += len(piece)
                writer.write(piece)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
        pumps.append(asyncio.create_task(pump(reader, to_writer, 1)))
        pumps.append(asyncio.create_task(pump(to_reader, writer, 2)))

    pumps: list[asyncio.Task[None]] = []
    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    counts[0] = server.sockets[0].getsockname()[1]
    yield counts
    server.close()
    for task in pumps:
        task.cancel()
    await asyncio.gather(*pumps)


@pytest.mark.parametrize(("compression", "most"), [("gzip", 100_000), ("none", None)])
async def test_compression_is_grpcs_own(compression: str, most: int | None) -> None:
    body = b"measurement_type" * 50_000
    with grpc_receiver(returning()) as receiver:
        async with (
            counting_relay(receiver.port) as counts,
            transport_to(counts[0], GRPC, COMPRESSION=compression) as transport,
        ):
            prepared = await transport.prepare(body)
            assert await transport.send(prepared, LONG_S) == Reply(DELIVERED)
            assert receiver.requests[0][1] == body
            sent = counts[1]
    assert sent < most if most else sent > len(body)


async def test_calls_do_not_begin_on_the_thread_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They compress and write to the socket before they return."""
    threads = []
    original = GrpcTransport._call

    def call(transport: GrpcTransport, prepared: bytes, timeout_s: float | None) -> Any:
        threads.append(threading.get_ident())
        return original(transport, prepared, timeout_s)

    monkeypatch.setattr(GrpcTransport, "_call", call)
    assert await one(returning()) == Reply(DELIVERED)
    assert threads
    assert threading.get_ident() not in threads


async def test_cancelled_call_ends_at_the_collector() -> None:
    begun, ended = threading.Event(), threading.Event()

    def hang(context: Any) -> bytes:
        context.add_callback(ended.set)
        begun.set()
        ended.wait(LONG_S)
        return b""

    with grpc_receiver(hang) as receiver:
        async with transport_to(receiver.port, GRPC) as transport:
            sending = asyncio.create_task(transport.send(b"spans", None))
            assert await asyncio.to_thread(begun.wait, LONG_S)
            sending.cancel()
            await asyncio.wait([sending])
            assert sending.cancelled()
            assert await asyncio.to_thread(ended.wait, 0.9 * LONG_S)
