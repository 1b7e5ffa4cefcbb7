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
from typing import Final, cast

import msgspec
from aiohttp import web

from orch_sidecar.api.headers import CACHE_CONTROL, CONTENT_TYPE
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.control.live.document import with_rows
from orch_sidecar.control.live.source import LiveSource, Part
from orch_sidecar.control.stream_readers import Reader, Readers
from orch_sidecar.wire.client_connection import ClientConnection

logger = logging.getLogger("orch.sidecar")

# Smooth enough to look at, and no more work than a hundred requests.
EVENT_EVERY_S: Final = 0.25
ALIVE_EVERY_S: Final = 2.0
# A reader that takes nothing for so long is disconnected, and may come back.
MAX_LAG_S: Final = 10.0
# Of an id at the clients' listener: enough to find a request, too few to cancel it.
SHORT_ID_CHARACTERS: Final = 8

_ALIVE_EVENT: Final = b": nothing new\n\n"


class _Reader:
    """One stream."""

    def __init__(self, channel: _Channel, transport: asyncio.Transport, now: float) -> None:
        self.channel = channel
        self.closed = False
        self.woken = asyncio.Event()
        self._sent = -1  # the number of the last document that it got
        self._sent_at = now  # loop time of its last event
        self._transport = transport

    @property
    def is_behind(self) -> bool:
        """Whether it has yet to take its last event."""
        return self._transport.get_write_buffer_size() > 0

    def check(self, now: float) -> None:
        """Wakes the reader if there is something for it; disconnects one that takes nothing."""
        if self.is_behind:
            if now - self._sent_at > MAX_LAG_S:
                self._transport.abort()
        elif self.channel.number != self._sent or now - self._sent_at >= ALIVE_EVERY_S:
            self.woken.set()

    def next(self, now: float) -> bytes:
        """Returns what is to be sent now; empty if there is nothing."""
        channel, before = self.channel, self._sent
        if self.is_behind or not channel.parts:
            return b""
        if channel.number == before:
            if now - self._sent_at < ALIVE_EVERY_S:
                return b""
            self._sent_at = now
            return _ALIVE_EVENT
        self._sent, self._sent_at = channel.number, now
        return channel.update if channel.number == before + 1 else channel.snapshot()

    def close(self) -> None:
        """Ends the stream, at once if its reader is behind."""
        self.closed = True
        if self.is_behind:
            self._transport.abort()
        self.woken.set()


class _Channel:
    """The readers that get the same events: operators, clients without keys, or those of one key.
    `parts`: of the document, encoded."""

    def __init__(
        self, source: LiveSource, trace_url: str | None, key: ApiKey | None, *, operator: bool
    ) -> None:
        self.readers: set[_Reader] = set()
        self.key = key
        self.operator = operator
        self.number = 0
        self.parts: dict[str, bytes] = {}
        self.update = b""
        self._source = source
        self._fixed = {"operator": _json(operator), "trace_url": _json(trace_url)}
        self._snapshot = b""

    def publish(self, sidecar: Part, pools: list[Part], changed: list[Part]) -> None:
        """Encodes what has changed since the last call."""
        if not self.operator:
            pools = with_rows(pools, self._own)
        before, self.parts = self.parts, {"sidecar": _json(sidecar), "pools": _json(pools)}
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
        self._source = source
        self._trace_url = trace_url
        self._channels: dict[tuple[bool, ApiKey | None], _Channel] = {}
        self._headers = {
            **common_headers,
            CONTENT_TYPE: "text/event-stream",
            CACHE_CONTROL: "no-store",
        }
        self._readers = Readers()
        self._streams: dict[Reader, _Reader] = {}
        self._producer: asyncio.Task[None] | None = None
        self._closed = False

    async def stream(
        self, http: web.BaseRequest, key: ApiKey | None, *, operator: bool
    ) -> web.StreamResponse | Refusal:
        """Serves a stream until its reader disconnects or falls behind, its key is removed, or this
        closes. `operator`: at the operators' listener, which needs no key."""
        if self._closed:
            return Refusal(Reason.DRAINING, "this sidecar is shutting down", retry_after_ms=1000)
        transport = http.transport
        if transport is None:
            raise asyncio.CancelledError  # the reader has disconnected already
        client = (http.remote or "") if key is None else key.name
        place = Reader(client, None, "operators" if operator else "clients")
        replaced = self._readers.enter(place, ())
        if isinstance(replaced, Refusal):
            return replaced
        if replaced is not None:
            self._streams[replaced].close()
        new = _Channel(self._source, self._trace_url, key, operator=operator)
        channel = self._channels.setdefault((operator, key), new)
        now = asyncio.get_running_loop().time()
        reader = self._streams[place] = _Reader(channel, transport, now)
        channel.readers.add(reader)
        origin_fields = cast(ClientConnection, http.protocol).origin_fields
        response = web.StreamResponse(headers={**self._headers, **origin_fields})
        if self._producer is None:
            self._producer = asyncio.create_task(self._produce(), name="live document")
        try:
            await response.prepare(http)
            await _send(response, reader)
        except ConnectionError:
            pass  # the reader has disconnected, and aiohttp is about to notice
        finally:
            self._leave(place)
        response.force_close()
        return response

    def close(self) -> None:
        """Ends all streams, and refuses new ones."""
        self._closed = True
        for reader in self._streams.values():
            reader.close()

    def _leave(self, place: Reader) -> None:
        self._readers.leave(place)
        reader = self._streams.pop(place)
        reader.channel.readers.discard(reader)
        self._channels = {name: each for name, each in self._channels.items() if each.readers}
        if not self._streams and self._producer is not None:
            self._producer.cancel()
            self._producer = None

    async def _produce(self) -> None:
        """Publishes the document at intervals, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                source = self._source
                sidecar, pools = source.sidecar(), source.pools()
                changed = source.changed_requests()
                for channel in self._channels.values():
                    channel.publish(sidecar, pools, changed)
                for reader in self._streams.values():
                    if reader.channel.operator or source.permits(reader.channel.key):
                        reader.check(loop.time())
                    else:
                        reader.close()
            # A fault of what is looked at: nobody may take an old document for the present one.
            except Exception:
                logger.exception("the live document could not be built")
                for reader in self._streams.values():
                    reader.close()
            await asyncio.sleep(EVENT_EVERY_S)


async def _send(response: web.StreamResponse, reader: _Reader) -> None:
    """Sends the events of a stream."""
    loop = asyncio.get_running_loop()
    while not reader.closed:
        reader.woken.clear()
        if data := reader.next(loop.time()):
            await response.write(data)
        else:
            await reader.woken.wait()


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _event(name: bytes, parts: Mapping[str, bytes]) -> bytes:
    """Encodes an event from encoded parts."""
    members = b",".join(b'"%b":%b' % (each.encode(), part) for each, part in parts.items())
    return b'event: %b\ndata: {"at":%d,%b}\n\n' % (name, time.time_ns() // 10**6, members)
