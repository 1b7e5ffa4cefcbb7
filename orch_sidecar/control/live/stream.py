"""Streams the live document to its readers: `GET /v1/live` (see the package).

One task builds the document at intervals, only while there is a reader, and encodes each of its
events once for all readers of a channel, who may see the same. A reader that has not taken its
last event gets none, and the whole document once it has; one that takes none for a while is
disconnected. So a reader costs at most one document of memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from orch_sidecar.api.refusal import Refusal
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.control.live.document import with_rows
from orch_sidecar.control.live.source import LiveSource, Part
from orch_sidecar.control.stream_readers import Channel, Reader, Stream, Streams

logger = logging.getLogger("orch.sidecar")

# Smooth enough to look at, and no more work than a hundred requests.
EVENT_EVERY_S: Final = 0.25
ALIVE_EVERY_S: Final = 2.0
# After so long without taking anything a reader is disconnected; it may come back.
MAX_LAG_S: Final = 10.0
# Of an id at the clients' listener: enough to find a request, too few to cancel it.
SHORT_ID_CHARACTERS: Final = 8

_ALIVE_EVENT: Final = b": nothing new\n\n"


class _Stream(Stream):
    """One reader's stream. `sent`: the number of the last document that it got; `sent_at`: loop
    time of its last event, 0 before the first."""

    write_s = MAX_LAG_S
    sent = -1
    sent_at = 0.0

    def check(self, now: float) -> None:
        """Wakes the reader if there is something for it; disconnects one that takes nothing."""
        if not self.permits():
            self.close()
        elif self.is_behind:
            if self.sent_at and now - self.sent_at > MAX_LAG_S:
                self.transport.abort()
        elif self.channel.number != self.sent or now - self.sent_at >= ALIVE_EVERY_S:
            self.woken.set()

    def next(self, now: float) -> bytes:
        """Returns what is to be sent now; empty if there is nothing."""
        channel: _Channel = self.channel
        before = self.sent
        if self.is_behind or not channel.parts:
            return b""
        if channel.number == before:
            if now - self.sent_at < ALIVE_EVERY_S:
                return b""
            self.sent_at = now
            return _ALIVE_EVENT
        self.sent, self.sent_at = channel.number, now
        return channel.update if channel.number == before + 1 else channel.snapshot()


class _Channel(Channel):
    """The readers that get the same events: operators, clients without keys, or those of one key.
    `parts`: of the document, encoded."""

    def __init__(self, live: LiveStream, key: ApiKey | None, *, operator: bool) -> None:
        super().__init__((operator, key))
        self.key = key
        self.operator = operator
        self.number = 0
        self.parts: dict[str, bytes] = {}
        self.update = b""
        self._live = live
        self._source = live.source
        self._fixed = {"operator": _json(operator), "trace_url": _json(live.trace_url)}
        self._snapshot = b""

    def joined(self) -> None:
        self._live.run_or_stop()

    def left(self) -> None:
        self._live.run_or_stop()

    def publish(
        self, sidecar: Part, pools: list[Part], more: dict[str, list[Part]], changed: list[Part]
    ) -> None:
        """Encodes what has changed since the last call. `more`: lists of rows, by their parts."""
        if not self.operator:
            pools = with_rows(pools, self._own)
        before, self.parts = self.parts, {"sidecar": _json(sidecar), "pools": _json(pools)}
        self.parts |= {name: _json(self._own(rows)) for name, rows in more.items()}
        update = {name: part for name, part in self.parts.items() if before.get(name) != part}
        if changed := self._own(changed):
            update["requests"] = _json(changed)
        if not update:
            return
        self.number += 1
        self._snapshot = b""
        self.update = _event(b"update", update)

    def snapshot(self) -> bytes:
        """Returns the event with the whole document, as of the last `publish`."""
        if not self._snapshot:
            requests = {"requests": _json(self._own(self._source.requests()))}
            self._snapshot = _event(b"snapshot", self._fixed | self.parts | requests)
        return self._snapshot

    def _own(self, rows: list[Part]) -> list[Part]:
        """Returns the rows that a client may see, with ids by which nothing can be cancelled."""
        if self.operator:
            return rows
        if self.key is not None:
            rows = [row for row in rows if row["key"] == self.key.name]
        return [
            row | {"id": row["id"][:SHORT_ID_CHARACTERS]} if "id" in row else row for row in rows
        ]


class LiveStream:
    """Serves the streams of both listeners. Belongs to one event loop."""

    def __init__(
        self, source: LiveSource, trace_url: str | None, common_headers: Mapping[str, str]
    ) -> None:
        self.source = source
        self.trace_url = trace_url
        self.streams: Streams[_Channel, _Stream] = Streams(_Stream, common_headers)
        self._producer: asyncio.Task[None] | None = None

    async def stream(
        self, http: web.BaseRequest, key: ApiKey | None, *, operator: bool
    ) -> web.StreamResponse | Refusal:
        """Serves a stream until its reader disconnects or falls behind, its key is removed, or this
        closes. `operator`: at the operators' listener, which needs no key."""
        client = (http.remote or "") if key is None else key.name
        return await self.streams.serve(
            http,
            Reader(client, None, "operators" if operator else "clients"),
            _Channel(self, key, operator=operator),
            lambda: operator or self.source.permits(key),
            {},
        )

    def run_or_stop(self) -> None:
        """A stream begins or has ended: produces while there is one."""
        if self._producer is None:
            self._producer = asyncio.create_task(self._produce(), name="live document")
        elif not self.streams.open:
            self._producer.cancel()
            self._producer = None

    async def _produce(self) -> None:
        """Publishes the document at intervals, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                source = self.source
                sidecar, pools = source.sidecar(), source.pools()
                more, changed = source.more(), source.changed_requests()
                for channel in self.streams.channels.values():
                    channel.publish(sidecar, pools, more, changed)
                for stream in self.streams.open.values():
                    stream.check(loop.time())
            # A fault of what is looked at: nobody may take an old document for the present one.
            except Exception:
                logger.exception("the live document could not be built")
                for stream in self.streams.open.values():
                    stream.close()
            await asyncio.sleep(EVENT_EVERY_S)


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _event(name: bytes, parts: Mapping[str, bytes]) -> bytes:
    """Encodes an event from encoded parts."""
    members = b",".join(b'"%b":%b' % (each.encode(), part) for each, part in parts.items())
    return b'event: %b\ndata: {"at":%d,%b}\n\n' % (name, time.time_ns() // 10**6, members)
