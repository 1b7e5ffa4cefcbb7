"""A client on a bare socket: sends the bytes a test writes, reads answers with h11.

h11 is the independent reading: it refuses what is not exactly framed, so an answer that was cut
short is an `Aborted` here, never a short body.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import h11

from tests.patience import HANG_S

Fields = Iterable[tuple[str, str]]

CHAT = "/v1/chat/completions"
# Of a request that is refused where it would have to wait.
AT_ONCE = [("X-Orch-Do-Not-Queue", "true")]
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"


def body_of(path: str, *, stream: bool = False, **more: Any) -> dict[str, Any]:
    """A small body that the endpoint at `path` understands."""
    document: dict[str, Any] = {"model": "tiny", "stream": stream}
    if path == COMPLETIONS:
        document["prompt"] = "say something"
    elif path == RESPONSES:
        document["input"] = "say something"
    else:
        document["messages"] = [{"role": "user", "content": "say something"}]
    if path == MESSAGES:
        document["max_tokens"] = 16
    return document | more


class Aborted(Exception):
    """The connection ended before the answer did. `body` is what had come."""

    def __init__(self, body: bytes, cause: str) -> None:
        super().__init__(f"{cause}, after {len(body)} bytes of body")
        self.body = body


@dataclass(slots=True)
class Response:
    """An answer. `raw` is its body as it was on the wire, framing and all."""

    status: int
    fields: list[tuple[str, str]]
    reason: str
    version: str
    body: bytes = b""
    raw: bytes = b""
    informational: list[int] = field(default_factory=list)

    def header(self, name: str) -> str | None:
        found = self.headers(name)
        assert len(found) <= 1, f"{name} is given more than once: {found}"
        return found[0] if found else None

    def headers(self, name: str) -> list[str]:
        return [value for field_name, value in self.fields if field_name == name.lower()]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json()["error"]
        return found


FORM_TYPE = ("Content-Type", "multipart/form-data; boundary=form")


class Form(dict[str, Any]):
    """A body that is a form: of texts, and of files, whose content is bytes."""

    def encoded(self) -> bytes:
        body = bytearray()
        for name, value in self.items():
            is_file = isinstance(value, bytes)
            content = value if is_file else f"{str(value).lower() if value is True else value}"
            head = f'--form\r\nContent-Disposition: form-data; name="{name}"'
            head += '; filename="a.wav"\r\nContent-Type: audio/wav' if is_file else ""
            body += f"{head}\r\n\r\n".encode()
            body += (content if isinstance(content, bytes) else content.encode()) + b"\r\n"
        return bytes(body) + b"--form--\r\n"


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.buffer = b""
        self.eof = False

    @classmethod
    async def connect(cls, port: int, *, receive_buffer: int | None = None) -> Self:
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        except OSError:
            connection.close()
            raise
        limit = 65_536 if receive_buffer is None else receive_buffer
        return cls(*await asyncio.open_connection(sock=connection, limit=limit))

    # Requests.

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def send_request(
        self,
        method: str,
        target: str,
        body: bytes | dict[str, Any] | None = None,
        headers: Fields = (),
        *,
        version: str = "1.1",
        length: bool = True,
    ) -> None:
        if isinstance(body, Form):
            content, headers = body.encoded(), [*headers, FORM_TYPE]
        else:
            content = json.dumps(body).encode() if isinstance(body, dict) else body or b""
        lines = [f"{method} {target} HTTP/{version}", "Host: localhost"]
        if method == "POST" and "content-type" not in (name.lower() for name, _ in headers):
            lines.append("Content-Type: application/json")
        lines += [f"{name}: {value}" for name, value in headers]
        if length and body is not None:
            lines.append(f"Content-Length: {len(content)}")
        self.send("\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + content)

    async def request(
        self,
        method: str,
        target: str,
        body: bytes | dict[str, Any] | None = None,
        headers: Fields = (),
        *,
        version: str = "1.1",
    ) -> Response:
        self.send_request(method, target, body, headers, version=version)
        return await self.response(method)

    async def post(
        self, path: str = CHAT, headers: Fields = (), *, stream: bool = False, **more: Any
    ) -> Response:
        """A request for a generating endpoint, and its answer."""
        return await self.request("POST", path, body_of(path, stream=stream, **more), headers)

    def start(
        self, path: str = CHAT, headers: Fields = (), *, stream: bool = True, **more: Any
    ) -> None:
        """The same, without waiting."""
        self.send_request("POST", path, body_of(path, stream=stream, **more), headers)

    async def get(self, path: str, headers: Fields = ()) -> Response:
        return await self.request("GET", path, None, headers)

    # Answers.

    async def response(self, method: str = "POST", *, within_s: float = HANG_S) -> Response:
        """Reads one whole answer. Raises Aborted if the connection ends within it."""
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=2**20)
        parser.send(h11.Request(method=method, target="/", headers=[("host", "localhost")]))
        parser.send(h11.EndOfMessage())
        response: Response | None = None
        informational: list[int] = []
        body, raw = bytearray(), bytearray()
        async with asyncio.timeout(within_s):
            while True:
                try:
                    event = parser.next_event()
                    while event is h11.NEED_DATA:
                        data = await self._more()
                        raw += data
                        parser.receive_data(data)
                        event = parser.next_event()
                except h11.RemoteProtocolError as error:
                    raise Aborted(bytes(body), str(error)) from None
                except ConnectionError as error:
                    raise Aborted(bytes(body), repr(error)) from None
                if isinstance(event, h11.InformationalResponse):
                    informational.append(event.status_code)
                elif isinstance(event, h11.Response):
                    response = Response(
                        event.status_code,
                        [(n.decode("latin-1"), v.decode("latin-1")) for n, v in event.headers],
                        bytes(event.reason).decode("latin-1"),
                        bytes(event.http_version).decode(),
                        informational=informational,
                    )
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
                else:
                    raise Aborted(bytes(body), "the connection was closed")
        assert response is not None
        self.buffer = bytes(parser.trailing_data[0])
        begin = 0
        for _ in range(len(informational) + 1):
            begin = raw.index(b"\r\n\r\n", begin) + 4
        response.body, response.raw = bytes(body), bytes(raw[begin : len(raw) - len(self.buffer)])
        return response

    async def seen(self, text: bytes, within_s: float = HANG_S) -> bytes:
        """Waits until `text` has come, without taking it from what `response` will read."""
        async with asyncio.timeout(within_s):
            while text not in self.buffer:
                data = await self._reader.read(65_536)
                if not data:
                    self.eof = True
                    raise Aborted(self.buffer, f"the connection was closed before {text!r}")
                self.buffer += data
        return self.buffer

    async def rest(self, within_s: float = HANG_S) -> bytes:
        """All that comes until the end of the connection. Raises ConnectionError for a reset."""
        async with asyncio.timeout(within_s):
            data = self.buffer + await self._reader.read()
        self.buffer = b""
        return data

    async def aborted(self, within_s: float = HANG_S) -> Aborted:
        """Reads an answer that must be cut short."""
        try:
            response = await self.response(within_s=within_s)
        except Aborted as aborted:
            return aborted
        raise AssertionError(f"a clean answer: {response.status} {response.body[-200:]!r}")

    async def _more(self) -> bytes:
        if self.buffer:
            data, self.buffer = self.buffer, b""
            return data
        return await self._reader.read(65_536)

    # Ends.

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return

    def reset(self) -> None:
        """Leaves with a TCP reset."""
        connection = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
