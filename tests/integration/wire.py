"""The engine's side of a connection: requests in, whatever bytes a script wants out."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from tests.integration.scripted_engine import ScriptedEngine

Fields = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Received:
    """A request as the engine got it. Field names are in lower case, the rest is untouched."""

    method: str
    target: str
    fields: list[tuple[str, str]]
    body: bytes
    connection: int  # which one, counted from 1
    head: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    def header(self, name: str) -> str | None:
        return next((value for field, value in self.fields if field == name), None)

    @property
    def lease(self) -> str | None:
        return self.header("x-orch-lease")

    def json(self) -> Any:
        return json.loads(self.body)


class Answer:
    """A received request and the connection to answer it on.

    Writes are synchronous, so that nothing can happen between the last byte and what a script
    does next; `drain` waits for the sidecar to take them.
    """

    def __init__(self, wire: EngineWire, request: Received) -> None:
        self.wire = wire
        self.request = request

    def write(self, data: bytes) -> None:
        if self.wire.transport is not None:
            self.wire.transport.write(data)

    async def drain(self) -> None:
        """Returns when the transport's buffer is low. A reader that stops makes this wait."""
        await self.wire.writable.wait()

    def head(
        self,
        status: int = 200,
        headers: Fields = (),
        *,
        reason: str = "OK",
        chunked: bool = True,
        version: str = "1.1",
    ) -> None:
        lines = [f"HTTP/{version} {status} {reason}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if chunked:
            lines.append("transfer-encoding: chunked")
        self.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")

    def chunk(self, payload: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    def event(self, data: Any, name: str | None = None) -> None:
        """A server-sent event in a chunk of its own, as vLLM writes them."""
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        self.chunk(((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode())

    def end(self) -> None:
        self.write(b"0\r\n\r\n")

    def json(self, document: Any, status: int = 200, headers: Fields = ()) -> None:
        """A whole answer with a length, as vLLM gives it when it does not stream."""
        body = json.dumps(document).encode()
        fields = [("content-type", "application/json"), ("content-length", str(len(body)))]
        self.head(status, [*fields, *headers], chunked=False)
        self.write(body)

    def close(self) -> None:
        """An orderly end of the connection, after what was written."""
        if self.wire.transport is not None:
            self.wire.transport.close()

    def reset(self) -> None:
        self.wire.reset()


class EngineWire(asyncio.Protocol):
    """One connection of the engine. One request at a time: the sidecar must not pipeline."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._buffer = b""
        self._serving: asyncio.Task[None] | None = None
        self._unread = 0  # bytes of the body of a request that was rejected before they came
        self.number = 0
        self.streams_state = False
        self.transport: asyncio.Transport | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def reset(self) -> None:
        """Ends the connection with a TCP reset."""
        if self.transport is None:
            return
        connection = cast("socket.socket", self.transport.get_extra_info("socket"))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._engine.wires.add(self)
        self._engine.connections += 1
        self.number = self._engine.connections

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.writable.set()
        self._engine.wires.discard(self)
        if self._serving is not None:
            self._serving.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        assert self._serving is None, f"bytes while an answer is under way: {data[:80]!r}"
        if self._unread:
            unread, data = data[: self._unread], data[self._unread :]
            self._unread -= len(unread)
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        method, target, version = lines[0].split(" ")
        assert version == "HTTP/1.1"
        fields = []
        for line in lines[1:]:
            name, _, value = line.partition(":")
            fields.append((name.lower(), value.strip(" \t")))
        lengths = [int(value) for name, value in fields if name == "content-length"]
        assert len(lengths) <= 1
        assert not any(name == "transfer-encoding" for name, _ in fields)
        length = lengths[0] if lengths else 0
        body = self._buffer[end + 4 :]
        head = self._buffer[:end]
        if len(body) < length:
            begun = Answer(self, Received(method, target, fields, b"", self.number, head))
            if self._engine.rejects_unread(begun):
                self._buffer, self._unread = b"", length - len(body)
            return
        assert len(body) == length, f"bytes after the request: {body[length:][:80]!r}"
        self._buffer = b""
        request = Received(method, target, fields, body, self.number, head)
        self.streams_state = request.path == "/v1/capabilities/stream"
        self._serving = self._engine.run(self._serve(Answer(self, request)))
        self._serving.add_done_callback(self._served)

    async def _serve(self, answer: Answer) -> None:
        try:
            await self._engine.serve(answer)
        finally:
            # In the turn of the last byte: the next request may come before any callback.
            self._serving = None

    def _served(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._engine.failures.append(error)
