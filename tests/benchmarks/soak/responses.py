"""A client's connection, and a strict reader of HTTP/1.1 responses.

Inexact framing is an error here, and a truncated answer is never taken for a complete one.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Final

from tests.patience import HANG_S

_CHUNK_SIZE: Final = re.compile(rb"[0-9a-f]{1,8}\r\n")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2}) [^\r\n]*")
_LIMIT_BYTES: Final = 2**20


class NotHttp(Exception):
    """What came is not a response."""


class Left(Exception):
    """The client has seen enough, and goes."""


@dataclass(slots=True)
class Response:
    """An answer. `whole`: it ended as it was framed; else it was cut short, where `status` is 0
    before a head came. `error`: why it was cut."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    whole: bool = False
    error: str = ""

    @property
    def reset(self) -> bool:
        """Whether the connection was reset within it."""
        return self.error.startswith("ConnectionResetError")

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


class Connection:
    """One connection to the sidecar."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.open = True
        self._before = "none"  # the answer before the one that is being read

    @classmethod
    async def to(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=_LIMIT_BYTES))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def response(self, leave_after: int | None = None) -> Response:
        """Reads one answer, as much of it as comes.

        `leave_after`: raises Left when that many bytes of the body have come (0: with the head).
        Raises NotHttp.
        """
        response = Response()
        try:
            await self._read(response, leave_after)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            response.error = f"{error!r:.200}; the answer before: {self._before}"
        framing = "chunked" if "transfer-encoding" in response.headers else "with a length"
        self._before = f"{response.status} {framing}, {bytes(response.body[-120:])!r}"
        if not response.whole or response.closes:
            self.close()
        return response

    async def _read(self, response: Response, leave_after: int | None) -> None:
        reader = self._reader
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
        line, *fields = head.split(b"\r\n")
        match = _STATUS_LINE.fullmatch(line)
        if match is None:
            raise NotHttp(f"status line {line[:80]!r}")
        for each in fields:
            name, colon, value = each.partition(b":")
            if not colon:
                raise NotHttp(f"field {each[:80]!r}")
            response.headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        response.status = int(match[1])
        if leave_after == 0:
            raise Left
        if response.status == 204:
            response.whole = True
        elif response.headers.get("transfer-encoding") == "chunked":
            await self._read_chunks(response, leave_after)
        elif (length := response.headers.get("content-length", "")).isdigit():
            response.body += await reader.readexactly(int(length))
            response.whole = True
        else:
            raise NotHttp(f"{response.status} without a framing: {response.headers}")

    async def _read_chunks(self, response: Response, leave_after: int | None) -> None:
        reader = self._reader
        while True:
            line = await reader.readuntil(b"\r\n")
            if _CHUNK_SIZE.fullmatch(line) is None:
                raise NotHttp(f"chunk size {line[:80]!r}")
            size = int(line, 16)
            chunk = await reader.readexactly(size + 2)
            if chunk[-2:] != b"\r\n":
                raise NotHttp(f"end of a chunk {chunk[-2:]!r}")
            if size == 0:
                response.whole = True
                return
            response.body += chunk[:-2]
            if leave_after is not None and len(response.body) >= leave_after:
                raise Left

    def close(self, *, reset: bool = False) -> None:
        """Leaves: with an orderly end, or with a reset."""
        if not self.open:
            return
        self.open = False
        if reset:
            connection: Any = self._writer.get_extra_info("socket")
            if connection is not None:
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._writer.transport.abort()
        else:
            self._writer.close()


async def ask(port: int, method: str, path: str, headers: str = "") -> Response:
    """One request without a body on a connection of its own. Raises TimeoutError, OSError."""
    async with asyncio.timeout(HANG_S):
        connection = await Connection.to(port)
        try:
            lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close"]
            connection.send("\r\n".join([*lines, headers]).encode() + b"\r\n")
            return await connection.response()
        finally:
            connection.close()
