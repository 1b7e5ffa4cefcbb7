"""One answer, several clients: what is produced once goes to each of them.

The answer belongs to nobody: clients join while all of it is retained, and leave; it is given
up when the last has left. Each gets an answer of its own, with its own head and its own
response id, at its own pace: what is produced goes into a bounded log, in which each follower
has its place. Knows no engine, no admission, and not who is the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.api.usage import MOST_PIECE_BYTES, MOST_PIECES, AnswerReader
from orch_sidecar.coalescing.response_id import ResponseId
from orch_sidecar.coalescing.subscriber import Log, Subscriber
from orch_sidecar.observability.record import RequestRecord

# Per piece, on top of its bytes: a tuple, a list, and a header for each of its texts.
_PIECE_BYTES: Final = 300


class Source(Protocol):
    """Where the answer comes from."""

    def pause(self) -> None:
        """Nobody can take more for now."""

    def resume(self) -> None:
        """More can be taken again."""

    def stop(self) -> None:
        """Nobody wants more."""


class Broadcast:
    """An answer that is shared, and the place where clients join it."""

    def __init__(
        self,
        request_id: str,
        on_abandoned: Callable[[], None],
        *,
        stream: bool,
        buffer_bytes: int,
    ) -> None:
        """`request_id`: what the engine gets as X-Request-Id. `stream`: events are asked for.

        `on_abandoned`: called once, when the last client leaves before the answer has ended.
        `buffer_bytes`: the most that is retained for late and for slow clients.
        """
        self._on_abandoned = on_abandoned
        self._followers: dict[Subscriber, None] = {}
        self._id = ResponseId(request_id)
        self._source_paused = False
        self.answer = AnswerReader(events=stream)
        self.buffer_bytes = buffer_bytes
        self.log = Log()
        self.source: Source | None = None
        self.admitted = False

    @property
    def joinable(self) -> bool:
        """Whether another client can still get all of the answer."""
        return not self.log.ended and self.log.first == 0

    @property
    def untouched(self) -> bool:
        """Whether nothing has been produced yet: the clients know of no answer."""
        return self.log.end == 0

    @property
    def followers(self) -> tuple[Subscriber, ...]:
        """The clients that are on it now."""
        return tuple(self._followers)

    # What clients do.

    def join(
        self,
        client: asyncio.Transport,
        record: RequestRecord,
        extra: Callable[[], bytes],
        *,
        http10: bool,
        keep_alive: bool,
    ) -> Subscriber:
        """Another client, to be started once its connection knows its follower.

        `extra`: our fields for its head, asked for when that goes out: by then more is known.
        """
        assert self.joinable
        follower = Subscriber(
            self.log,
            client,
            record,
            extra,
            http10=http10,
            keep_alive=keep_alive,
            on_left=self._on_left,
            on_moved=self._on_moved,
        )
        if self._id.known:
            self._name(follower)
        if self.admitted:
            record.admitted = time.monotonic_ns()
        self._followers[follower] = None
        return follower

    def _on_left(self, follower: Subscriber) -> None:
        self._followers.pop(follower, None)
        if not self._followers and not self.log.ended:
            self.log.ended = True
            if self.source is not None:
                self.source.stop()
            self._on_abandoned()
        elif self._source_paused:
            self._balance()

    def _on_moved(self) -> None:
        if self._source_paused:
            self._balance()

    # What becomes of the answer.

    def admit(self, at: int) -> None:
        """It got its slot, at this time of the monotonic clock (ns)."""
        self.admitted = True
        for follower in self._followers:
            follower.record.admitted = at

    def withdraw(self) -> None:
        """It has no slot any more, and nothing was produced: it waits again, or elsewhere."""
        self.admitted = False
        for follower in self._followers:
            follower.record.admitted = None

    def append(self, piece: bytes) -> None:
        """More of the answer, in which no id is cut in two, and of a stream no event."""
        log = self.log
        known = self._id.known
        texts = self._id.split(piece)
        if not known and self._id.known:
            for follower in self._followers:
                self._name(follower)
        content = self.answer.content
        content.append(piece)
        if len(content) >= MOST_PIECES or len(piece) > MOST_PIECE_BYTES:
            self.answer.fold()
        size = len(piece) + _PIECE_BYTES
        log.pieces.append((size, texts))
        log.size += size
        for follower in self.followers:
            follower.advance()
        if log.size > self.buffer_bytes:
            self._balance()

    def finish(self, piece: bytes) -> None:
        """The answer is complete, with `piece` at its end. Who is behind goes on alone."""
        self.log.ended = True
        if piece:
            self.append(piece)
        else:
            for follower in self.followers:
                follower.advance()

    def fail(self, refusal: Refusal) -> None:
        """The answer ends here. Who is behind gets what there is, and is told then."""
        log = self.log
        if log.ended:
            return
        log.ended = True
        log.failure = refusal
        if self.source is not None:
            self.source.stop()
        for follower in self.followers:
            if not (follower.paused and follower.draining):
                follower.fail(refusal)

    def _name(self, follower: Subscriber) -> None:
        follower.own_id = self._id.field_of(follower.record.request_id)

    def _balance(self) -> None:
        """Keeps the log within its bound.

        What all have got is dropped. Then those who are furthest behind hold up the source if
        that holds up nobody else; otherwise they are told that they are too slow.
        """
        log = self.log
        self._trim()
        if log.ended or self.source is None:
            return
        behind = [follower for follower in self._followers if follower.paused]
        if log.size > self.buffer_bytes and len(behind) == len(self._followers):
            if not self._source_paused:
                self._source_paused = True
                self.source.pause()
            return
        if self._source_paused:
            self._source_paused = False
            self.source.resume()
        behind.sort(key=lambda follower: follower.place)
        for follower in behind:
            if log.size <= self.buffer_bytes:
                break
            text = f"others get the same answer, and this client is {log.size} bytes behind them"
            follower.fail(Refusal(Reason.CLIENT_STALLED, text))
            self._trim()

    def _trim(self) -> None:
        """Drops the pieces that every follower has got."""
        log = self.log
        count = min((follower.place for follower in self._followers), default=log.end) - log.first
        if count:
            log.size -= sum(size for size, _ in log.pieces[:count])
            del log.pieces[:count]
            log.first += count
