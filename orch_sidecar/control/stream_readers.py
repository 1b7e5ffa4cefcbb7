"""Serves streams of events to readers, and limits these, in all and for each client.

A parent sidecar that owns leases here is always served: only the stream reports their ends.
The other readers share a fixed number of places evenly: a client that has fewer than another
replaces a reader of the other. A client that is no parent has a few places at most. The more
readers there are, the fewer changes each is sent (`lease_protocol.changes_every_s`), so that the
limit is one of memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

from aiohttp import web

from orch_sidecar.api.headers import CACHE_CONTROL, CONTENT_TYPE, X_ACCEL_BUFFERING
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.wire.client_connection import ClientConnection

# Some ten kilobytes each; a cluster has tens of entries, hundreds if it is large.
MAX_READERS: Final = 1024
# Of one pool for a client that is no parent sidecar: dashboards, and pages that people look at.
MAX_READERS_PER_CLIENT: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """One stream. `client`: the name of its API key, or its address where keys are not used.
    `instance`: of the parent sidecar; None: it is none. `pool`: the name of the pool it reads."""

    client: str
    instance: str | None
    pool: str


class Readers:
    """The readers that are served."""

    def __init__(self) -> None:
        self._readers: dict[Reader, None] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._readers)

    def enter(self, reader: Reader, owners: Collection[str]) -> Reader | Refusal | None:
        """Admits a reader. Returns the Reader that it replaces, which must be ended, or None.

        `owners`: the instances that own leases here.
        """
        place = self._place_of(reader, owners)
        if not isinstance(place, Refusal):
            if place is not None:
                del self._readers[place]
            self._readers[reader] = None
        return place

    def leave(self, reader: Reader) -> None:
        """Removes a reader that has disconnected or was ended."""
        self._readers.pop(reader, None)

    def _place_of(self, new: Reader, owners: Collection[str]) -> Reader | Refusal | None:
        if new.instance is not None:
            # One stream for each pool: the connection of an earlier one is lost.
            same = next((each for each in self._readers if _same(each, new)), None)
            if same is not None or new.instance in owners:
                return same
        elif sum(_same(each, new) for each in self._readers) >= MAX_READERS_PER_CLIENT:
            most = MAX_READERS_PER_CLIENT
            text = f"{most} streams of this client are open, the limit of each client"
            return Refusal(Reason.READER_LIMIT, f"{text}: retry later")
        others = [each for each in self._readers if each.instance not in owners]
        if len(others) < MAX_READERS:
            return None
        count = Counter(each.client for each in others)
        client, most = count.most_common(1)[0]
        if most <= count[new.client] + 1:
            text = f"{len(others)} state streams are open, which is the limit: retry later"
            return Refusal(Reason.READER_LIMIT, text)
        return next(each for each in reversed(others) if each.client == client)


def _same(one: Reader, other: Reader) -> bool:
    return (one.instance, one.pool, one.client) == (other.instance, other.pool, other.client)


class Channel:
    """The streams that are sent the same events. `name`: equal for those that are alike."""

    def __init__(self, name: object) -> None:
        self.name = name
        self.streams: set[Any] = set()

    def joined(self) -> None:
        """A stream begins."""

    def left(self) -> None:
        """A stream has ended."""


class Stream:
    """One reader's stream. `write_s`: after so long without taking anything it is disconnected."""

    write_s: float

    def __init__(
        self, transport: asyncio.Transport, channel: Any, permits: Callable[[], bool]
    ) -> None:
        """`permits`: whether its reader is still served."""
        self.closed = False
        self.woken = asyncio.Event()
        self.channel = channel
        self.transport = transport
        self.permits = permits

    @property
    def is_behind(self) -> bool:
        """Whether its reader has yet to take what it was sent."""
        return self.transport.get_write_buffer_size() > 0

    def next(self, now: float) -> bytes:
        """Returns what is to be sent now; empty if there is nothing."""
        raise NotImplementedError

    def sleep_s(self, now: float) -> float | None:
        """Returns the seconds until there may be something, if it is not woken; None: unlimited."""
        return None

    def close(self) -> None:
        """Ends the stream, at once if its reader is behind."""
        self.closed = True
        if self.is_behind:
            self.transport.abort()
        self.woken.set()

    async def send(self, response: web.StreamResponse) -> None:
        """Sends until it is closed. Raises TimeoutError if its reader takes nothing."""
        loop = asyncio.get_running_loop()
        while not self.closed and self.permits():
            self.woken.clear()
            if data := self.next(loop.time()):
                async with asyncio.timeout(self.write_s):
                    await response.write(data)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.sleep_s(loop.time())):
                        await self.woken.wait()


C = TypeVar("C", bound=Channel)
S = TypeVar("S", bound=Stream)


class Streams(Generic[C, S]):
    """The streams that are served at one path, and their channels by name."""

    def __init__(self, kind: type[S], common_headers: Mapping[str, str]) -> None:
        self.open: dict[Reader, S] = {}
        self.channels: dict[object, C] = {}
        self._kind = kind
        self._headers: dict[str, str] = {
            **common_headers,
            CONTENT_TYPE: "text/event-stream",
            CACHE_CONTROL: "no-store",
            X_ACCEL_BUFFERING: "no",  # else nginx keeps the events to itself
        }
        self._readers = Readers()
        self._closed = False

    async def serve(
        self,
        http: web.BaseRequest,
        reader: Reader,
        channel: C,
        permits: Callable[[], bool],
        headers: Mapping[str, str],
        owners: Collection[str] = (),
    ) -> web.StreamResponse | Refusal:
        """Serves a stream until its reader disconnects, falls behind, is permitted no longer or
        replaced by another, or this closes. `channel`: used if there is none of its name yet.
        `owners`: the instances that own leases here."""
        if self._closed:
            return Refusal(Reason.DRAINING, "this sidecar is shutting down", retry_after_ms=1000)
        transport = http.transport
        if transport is None:
            raise asyncio.CancelledError  # the reader has disconnected already
        replaced = self._readers.enter(reader, owners)
        if isinstance(replaced, Refusal):
            return replaced
        if replaced is not None:
            self.open[replaced].close()
        channel = self.channels.setdefault(channel.name, channel)
        stream = self.open[reader] = self._kind(transport, channel, permits)
        channel.streams.add(stream)
        of_origin = cast(ClientConnection, http.protocol).origin_fields
        response = web.StreamResponse(headers={**self._headers, **headers, **of_origin})
        try:
            channel.joined()
            await response.prepare(http)
            await stream.send(response)
        except TimeoutError:
            transport.abort()
        except ConnectionError:
            pass  # the reader has disconnected, and aiohttp is about to notice
        finally:
            self._readers.leave(reader)
            del self.open[reader]
            channel.streams.remove(stream)
            if not channel.streams:
                del self.channels[channel.name]
            channel.left()
        response.force_close()
        return response

    def close(self) -> None:
        """Ends all streams, at once where a reader is behind, and refuses new ones."""
        self._closed = True
        for stream in self.open.values():
            stream.close()
