"""One engine response for several clients: the sink of a shared generation.

Clients join while the response is retained from its beginning, and leave. Each gets a response
of its own, with its own head and its own response id, at its own pace: the body goes into a
bounded log, in which each subscriber has a position. Knows no admission and no identity of
requests.
"""

from __future__ import annotations

import re
import time
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.coalescing.subscriber import ResponseLog, Subscriber
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.pools.pool import LONGEST_SILENCE_S, Pool
from orch_sidecar.proxy.client_writer import ClientWriter
from orch_sidecar.proxy.engine_response import EngineResponse, Sink
from orch_sidecar.wire.forwarding import is_event_stream
from orch_sidecar.wire.http1 import Head

# Per piece, besides its bytes: a tuple, a list, and an object header for each of its texts.
_PIECE_BYTES: Final = 300
_ID_PREFIX: Final = re.compile(rb'"id":[ \t]?"[a-z-]{0,32}\Z')
_ID_PREFIX_BYTES: Final = 48


class ResponseId:
    """The id of one response, which is read in pieces that do not split it.

    vLLM composes it of a prefix (`chatcmpl-`, `cmpl-`) and the X-Request-Id, and writes it as the
    JSON field `id` of a response and of each event of a stream. Generated text cannot be mistaken
    for that field: its quotes are escaped.
    """

    __slots__ = ("_field", "_prefix", "_value")

    def __init__(self, request_id: str) -> None:
        """`request_id`: the X-Request-Id sent to the engine."""
        self._value = request_id.encode() + b'"'
        self._prefix = b""
        self._field = b""

    @property
    def is_known(self) -> bool:
        """Whether it has been found."""
        return bool(self._field)

    def split(self, piece: bytes) -> list[bytes]:
        """Splits a piece at each occurrence of the field."""
        if not self._field and not self._find(piece):
            return [piece]
        return piece.split(self._field)

    def field_of(self, request_id: str) -> bytes:
        """Returns the field for another X-Request-Id; only once the id is `is_known`."""
        return b'%b%b"' % (self._prefix, request_id.encode())

    def _find(self, piece: bytes) -> bool:
        at = piece.find(self._value)
        while at >= 0:
            match = _ID_PREFIX.search(piece, max(0, at - _ID_PREFIX_BYTES), at)
            if match is not None:
                self._prefix = match[0]
                self._field = self._prefix + self._value
                return True
            at = piece.find(self._value, at + 1)
        return False


class Broadcast(Sink):
    """A response that is shared, and the place where clients join it.

    `record`: of the generation. `started`: part of the body exists. `abandoned`: the last
    subscriber left before the end.
    """

    dechunk = True
    keep_alive = True  # each subscriber has its own

    def __init__(self, record: RequestRecord, *, buffer_bytes: int) -> None:
        """`buffer_bytes`: the most that is retained for late and for slow clients."""
        self._buffer_bytes = buffer_bytes
        self._subscribers: dict[Subscriber, None] = {}
        self._id = ResponseId(record.request_id)
        self._held = b""  # the beginning of an event, or a body that is none of events
        self._source: EngineResponse | None = None
        self._source_paused = False
        self.record = record
        self.log = ResponseLog()
        self.pool: Pool | None = None
        self.outcome = Outcome.ENGINE_ERROR
        self._attached = self.started = self.abandoned = False

    @property
    def is_joinable(self) -> bool:
        """Whether another client can still get the whole response."""
        return not self.log.ended and self.log.first == 0

    @property
    def is_admitted(self) -> bool:
        """Whether the generation has slots, though its engine may still be connected to."""
        return self._attached or self.record.admitted is not None

    @property
    def reads(self) -> int:
        """How often bytes have arrived from the engine."""
        return 0 if self._source is None else self._source.reads

    # Subscribers

    def join(self, writer: ClientWriter) -> Subscriber:
        """Returns a subscriber for one more client, to be started."""
        assert self.is_joinable
        subscriber = Subscriber(self, writer)
        self.record.fanout += 1
        if self._id.is_known:
            subscriber.own_id = self._own_id(subscriber)
        if self.is_admitted:
            writer.record.admitted = time.monotonic_ns()
            pool = self.pool
            writer.silence_limit_s = _longest_s if pool is None else pool.silence_limit_s
        self._subscribers[subscriber] = None
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        """Removes a subscriber; without any the response is abandoned."""
        self._subscribers.pop(subscriber, None)
        subscriber.writer.silence_limit_s = None
        if not self._subscribers and not self.log.ended:
            self.log.ended = self.abandoned = True
            if self._source is not None:
                self._source.stop()
        else:
            self.progressed()

    def progressed(self) -> None:
        """A subscriber that was behind has caught up, or left."""
        if self._source_paused:
            self._balance()

    def finish_early(self) -> bool:
        """Ends the response if its last event is in the log. Returns whether it did."""
        return self._source is not None and not self._held and self._source.finish_early()

    # Sink of the engine's response

    def attach(self, source: EngineResponse, pool: Pool) -> None:
        self._source = source
        self.pool = pool
        self._attached = True
        for subscriber in self._subscribers:
            writer = subscriber.writer
            if writer.record.admitted is None:  # it has waited for the slots, too
                writer.record.admitted = self.record.admitted
            # Before that nothing could make progress.
            writer.silence_limit_s = pool.silence_limit_s
            if pool.admission.draining:
                writer.keep_alive = False

    def detach(self) -> None:
        """Without a body the clients wait again, and another engine can still be asked."""
        if self.started or self.log.ended:
            return
        self._attached = False
        self._held = b""
        for subscriber in self._subscribers:
            writer = subscriber.writer
            writer.record.admitted = writer.silence_limit_s = None

    def begin(self, head: Head) -> None:
        self.record.status = head.status
        self.log.begin(head, events=is_event_stream(head))

    def write(self, data: bytes) -> None:
        held = self._held + data
        cut = len(held) if self.log.events and held.endswith(b"\n\n") else self._sendable(held)
        self._held = held[cut:]
        if cut:
            self._append(held[:cut])

    def finish(self, outcome: Outcome) -> None:
        """Ends the response, which is complete. Slow subscribers continue alone."""
        last, self._held = self._held, b""
        self.outcome = outcome
        self.log.ended = True
        if last:
            self._append(last)
        else:
            for subscriber in tuple(self._subscribers):
                subscriber.advance()

    def cut_short(self, refusal: Refusal, *, at_event_boundary: bool = False) -> None:
        """Ends the response here. Slow subscribers first get what there is."""
        log = self.log
        if log.ended or self.finish_early():
            return
        log.ended = True
        log.failure = refusal
        if self._source is not None:
            self._source.stop()
        for subscriber in tuple(self._subscribers):
            if not subscriber.is_behind:
                subscriber.fail(refusal)

    def _sendable(self, held: bytes) -> int:
        """Returns how many bytes can be passed on: whole events; of any other body nothing yet.

        A body that exceeds the buffer is passed on in parts. No id is cut: ids have no comma.
        """
        log = self.log
        if log.events:
            end, crlf_end = held.rfind(b"\n\n"), held.rfind(b"\r\n\r\n")
            if end >= 0 or crlf_end >= 0:
                return max(end + 2, crlf_end + 4 if crlf_end >= 0 else 0)
        if len(held) <= self._buffer_bytes:
            return 0
        log.pass_on_in_parts()
        return held.rfind(b",") + 1 or len(held)

    def _append(self, piece: bytes) -> None:
        """Adds a piece, in which no id is cut in two, and of a stream no event."""
        log = self.log
        if not self.started:
            self.started = True
            self.record.first_byte = time.monotonic_ns()
        known = self._id.is_known
        texts = self._id.split(piece)
        if not known and self._id.is_known:
            for subscriber in self._subscribers:
                subscriber.own_id = self._own_id(subscriber)
        size = len(piece) + _PIECE_BYTES
        log.pieces.append((size, texts))
        log.size += size
        for subscriber in tuple(self._subscribers):
            subscriber.advance()
        if log.size > self._buffer_bytes:
            self._balance()

    def _own_id(self, subscriber: Subscriber) -> bytes:
        return self._id.field_of(subscriber.writer.record.request_id)

    def _balance(self) -> None:
        """Keeps the log within its bound.

        Pieces that every subscriber has got are dropped. If all are behind, the engine is paused;
        otherwise the slowest are disconnected: they would slow down the others.
        """
        log = self.log
        self._trim()
        if log.ended or self._source is None:
            return
        behind = [subscriber for subscriber in self._subscribers if subscriber.writer.paused]
        if log.size > self._buffer_bytes and len(behind) == len(self._subscribers):
            if not self._source_paused:
                self._source_paused = True
                self._source.pause()
            return
        if self._source_paused:
            self._source_paused = False
            self._source.resume()
        behind.sort(key=lambda subscriber: subscriber.position)
        for subscriber in behind:
            if log.size <= self._buffer_bytes:
                break
            text = (
                f"this client is {log.size} bytes behind others that share the response, "
                f"more than the buffer of {self._buffer_bytes} bytes: read faster"
            )
            subscriber.fail(Refusal(Reason.CLIENT_STALLED, text))
            self._trim()

    def _trim(self) -> None:
        """Drops the pieces that every subscriber has got."""
        log = self.log
        positions = (subscriber.position for subscriber in self._subscribers)
        count = min(positions, default=log.end) - log.first
        if count:
            log.size -= sum(size for size, _ in log.pieces[:count])
            del log.pieces[:count]
            log.first += count


def _longest_s() -> float:
    return LONGEST_SILENCE_S
