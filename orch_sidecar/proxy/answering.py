"""What all answers on their way to a client have in common, relayed or shared.

How they look to the client's connection and to the watch, how their heads are written, and how
a failure is told when the head has gone out. Knows transports, and no engine.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from dataclasses import dataclass
from typing import Final, Protocol

from orch_sidecar.api.errors import ErrorFormat
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.api.usage import AnswerReader
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.wire.http1 import LAST_CHUNK, FramingError, Head, parse_head

_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time
_EVENT_STREAM: Final = b"text/event-stream"


@dataclass(frozen=True, slots=True)
class Relayed:
    """How an answer ended. `failure`: it did not, and whether the client was told yet."""

    failure: Refusal | None
    answered: bool


ANSWERED: Final = Relayed(None, answered=True)
# Below; the client knows nothing of it.
TURNED_AWAY: Final = Relayed(None, answered=False)
# Bound once: looking up a member of an enum is slow.
_OK, _CLIENT_ERROR, _ENGINE_ERROR = Outcome.OK, Outcome.CLIENT_ERROR, Outcome.ENGINE_ERROR
# Answered with 4xx, and no mistake of the client: time-outs, too much at once, cancelled below.
_NO_MISTAKE: Final = frozenset({408, 425, 429, 499})


def how_ended(record: RequestRecord, answer: AnswerReader) -> Outcome:
    """What came of a whole answer, by its status and by what it tells itself."""
    status = record.status
    if status < 400:
        return _ENGINE_ERROR if answer.failed else _OK
    return _CLIENT_ERROR if status < 500 and status not in _NO_MISTAKE else _ENGINE_ERROR


class Answering(Protocol):
    """An answer under way, as its client's connection and the watch know it."""

    paused: bool  # the client's transport is full
    keep_alive: bool  # the client's connection may serve another request after it

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever something moves: bytes from the engine, or to a client behind."""

    def pause(self) -> None:
        """The client's transport is full."""

    def resume(self) -> None:
        """The client's transport takes bytes again."""

    def abort_client(self) -> None:
        """Drops the client's connection."""

    def fail(self, refusal: Refusal) -> None:
        """The answer cannot be completed: says so as well as is still possible."""


def final_head(data: bytes) -> tuple[Head | None, bytes]:
    """The head of an answer, past interim ones, and what follows it. None: not complete yet.

    Raises FramingError.
    """
    while True:
        parsed = parse_head(data)
        if parsed is None:
            return None, data
        head, start = parsed
        data = data[start:]
        if head.status >= 200:
            return head, data
        if head.status == 101:
            raise FramingError("the engine switches protocols")


def head_bytes(
    kept: bytes, status: int, record: RequestRecord, extra: bytes, keep_alive: bool
) -> bytes:
    """The head for the client: the engine's fields, ours, and times that are known just now."""
    record.first_byte = time.monotonic_ns()
    record.status = status
    closing = b"" if keep_alive else b"connection: close\r\n"
    timing = b"server-timing: " + record.server_timing().encode()
    return b"%b%b%b\r\n%b\r\n" % (kept, closing, timing, extra)


def is_event_stream(head: Head) -> bool:
    """Whether the answer is made of server-sent events, so that an error can be one of them."""
    content_type = next((value for name, value in head.fields if name == b"content-type"), b"")
    return content_type.lower().startswith(_EVENT_STREAM)


def failure_in_stream(form: ErrorFormat, refusal: Refusal, *, chunked: bool) -> bytes:
    """A failure as the last events of a stream.

    A chunked answer ends as it should: the client's connection stays usable.
    """
    said = form.in_stream(refusal)
    return b"%x\r\n%b\r\n" % (len(said), said) + LAST_CHUNK if chunked else said


def reset(client: asyncio.Transport) -> None:
    """Drops a client's connection by a reset.

    A plain close would look like the end of an answer that ends with its connection.
    """
    connection = client.get_extra_info("socket")
    if connection is not None and not client.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    client.abort()
