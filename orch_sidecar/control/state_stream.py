"""Publishes the state of this sidecar's pools to parent sidecars.

    GET    /v1/capabilities/stream?instance=I[&pool=P][&changes_every_ms=T]
                                                        the pool as seen by sidecar instance I,
                                                        then its changes (see `lease_protocol`)
    DELETE /v1/capabilities/leases/{lease}              spends a lease of a parent sidecar
    PUT    /v1/capabilities/claims/{instance}[?pool=P]  what a parent sidecar waits for, where the
                                                        engine of that pool is shared

Only parents may name an instance. For readers that name none the same events are made once. Between
events a stream costs one waiting task, and without streams nothing: the pools report their changes
only while there is one. A reader that falls behind is disconnected, and gets the whole state when
it reconnects. `stream_readers` limits the streams, in all and of each client.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from typing import Protocol

from aiohttp import web

from orch_sidecar.api.headers import CACHE_CONTROL, CONTENT_TYPE, X_MEASUREMENT_TYPE
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.authorizer import NO_PARENT, Authorizer
from orch_sidecar.auth.keys import ApiKey, owner_of
from orch_sidecar.control.state_feed import PublishedPool, State, StateFeed
from orch_sidecar.control.stream_readers import Reader, Readers
from orch_sidecar.pools.parent_leases import ParentLeases, StateSubscriber
from vllm_plugin.contracts import lease_protocol
from vllm_plugin.contracts.lease_protocol import (
    CHANGES_EVERY_MS,
    ENDED,
    OFFER,
    STALE_AFTER_S,
    incompatible,
    parse_changes_every_s,
    parse_claim,
)

# A reader gives a silent stream up after that time; so is a reader that takes nothing.
WRITE_TIMEOUT_S = STALE_AFTER_S
# A claim is a hundred bytes.
READ_TIMEOUT_S = STALE_AFTER_S


class PublishedPools(Protocol):
    """As much of the pool registry as the publisher uses."""

    def __iter__(self) -> Iterator[PublishedPool]: ...

    def report_changes(self, leases: ParentLeases | None) -> None: ...


class _Stream:
    """A stream that is being served."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.closed = False
        self.woken = asyncio.Event()
        self.unsent = b""
        self._transport = transport

    def close(self) -> None:
        """Ends the stream, at once if its reader is behind."""
        self.closed = True
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        self.woken.set()


class _Channel:
    """The streams that are sent the same events: one of a parent, or all that name no instance."""

    def __init__(
        self,
        instance: str | None,
        leases: ParentLeases,
        pool: PublishedPool,
        asked_s: float,
        private: bool,
    ) -> None:
        """`private`: with what tells of the requests of others."""
        self.subscriber = StateSubscriber(instance, self._wake)
        self.streams: set[_Stream] = set()
        self.feed = StateFeed(leases, self.subscriber, pool, asked_s, private)

    def _wake(self) -> None:
        for each in self.streams:
            each.woken.set()

    def look(self, now: float) -> None:
        """Makes the events that are due, for all streams, whichever looks first."""
        if events := self.feed.due(now):
            encoded = b"".join(_encoded(*each) for each in events)
            for each in self.streams:
                each.unsent += encoded
                each.woken.set()


class Publisher:
    """Serves the state streams of this sidecar's pools."""

    def __init__(
        self, pools: PublishedPools, authorizer: Authorizer, common_headers: Mapping[str, str]
    ) -> None:
        self.leases = ParentLeases(os.urandom(8).hex())
        self._pools = pools
        self._authorizer = authorizer
        self._headers = {
            **common_headers,
            CONTENT_TYPE: "text/event-stream",
            CACHE_CONTROL: "no-store",
        }
        self._readers = Readers()
        self._streams: dict[Reader, _Stream] = {}
        self._channels: dict[object, _Channel] = {}  # by stream of a parent, or pool and interval
        self._closed = False

    async def stream(
        self, http: web.BaseRequest, key: ApiKey | None
    ) -> web.StreamResponse | Refusal:
        """Serves a stream until its reader disconnects, falls behind or is replaced by another, its
        key permits it no longer, or the publisher closes. `key`: None where keys are not used."""
        instance = http.query.get("instance")
        if instance is not None:
            if not self._authorizer.permits(key, parent=True):
                return NO_PARENT
            instance = owner_of(key) + instance
        pool = self._pool(http.query.get("pool"))
        if isinstance(pool, Refusal):
            return pool
        if (text := incompatible(http.query.get("api_version", ""))) is not None:
            body = {"message": f"the parent's {text}", "type": "api_version", "code": 409}
            return web.json_response({"error": body}, status=409)
        try:
            asked_s = parse_changes_every_s(http.query.get(CHANGES_EVERY_MS, ""))
        except ValueError as error:
            return Refusal(Reason.INVALID_REQUEST, str(error), param=CHANGES_EVERY_MS)
        if self._closed:
            return Refusal(Reason.DRAINING, "this sidecar is shutting down", retry_after_ms=1000)
        transport = http.transport
        if transport is None:
            raise asyncio.CancelledError  # the reader has disconnected already
        measurement_type = pool.profile.measurement_type.value
        response = web.StreamResponse(
            headers={**self._headers, X_MEASUREMENT_TYPE: measurement_type}
        )
        client = (http.remote or "") if key is None else key.name
        reader = Reader(client, instance, pool.name)
        replaced = self._readers.enter(reader, self.leases.instances())
        if isinstance(replaced, Refusal):
            return replaced
        if replaced is not None:
            self._streams[replaced].close()
        stream = self._streams[reader] = _Stream(transport)
        private = self._authorizer.sees_all(key) or (key is not None and key.sidecar)
        alike = (id(pool), asked_s, private) if instance is None else stream
        channel = self._channels.get(alike)
        if channel is None:
            channel = _Channel(instance, self.leases, pool, asked_s, private)
            self._channels[alike] = channel
        self._subscribe(channel, pool)
        channel.streams.add(stream)
        try:
            channel.look(asyncio.get_running_loop().time())
            stream.unsent = _encoded(*channel.feed.whole())
            await response.prepare(http)
            await self._send(response, stream, channel, key)
        except TimeoutError:
            transport.abort()
        except ConnectionError:
            pass  # the reader has disconnected, and aiohttp is about to notice
        finally:
            self._readers.leave(reader)
            del self._streams[reader]
            channel.streams.remove(stream)
            if not channel.streams:
                del self._channels[alike]
            self._unsubscribe(channel, pool)
        response.force_close()
        return response

    def revoke(self, lease: str, key: ApiKey | None) -> web.Response | Refusal:
        """Spends a lease and returns the answer to the request for that."""
        if not self._authorizer.permits(key, parent=True):
            return NO_PARENT
        try:
            ended = self.leases.revoke(lease)
        except ValueError as error:
            return Refusal(Reason.INVALID_REQUEST, str(error))
        return web.json_response({"ended": ended})

    async def claim(
        self, instance: str, http: web.BaseRequest, key: ApiKey | None
    ) -> web.Response | Refusal:
        """Takes what a parent sidecar claims, and returns the answer to that."""
        if not self._authorizer.permits(key, parent=True):
            return NO_PARENT
        pool = self._pool(http.query.get("pool"))
        if isinstance(pool, Refusal):
            return pool
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                body = await http.read()
            call = parse_claim(body, pool.ledger.slots_total)
        except ValueError as invalid:
            return Refusal(Reason.INVALID_REQUEST, str(invalid))
        except TimeoutError:
            text = f"the body did not arrive within {READ_TIMEOUT_S:g} s: send it again"
            return Refusal(Reason.BODY_TIMEOUT, text)
        except web.HTTPRequestEntityTooLarge as found:
            text = f"{found.text}; a claim has about a hundred bytes"
            return Refusal(Reason.BODY_TOO_LARGE, text)
        if key is not None and key.bulk and call.claim is not None:
            call = call._replace(claim=call.claim._replace(urgent=False))
        now = asyncio.get_running_loop().time()
        if not pool.claims.claimed(owner_of(key) + instance, call, now):
            text = f"instance {instance[:40]!r} must read the state stream, where slots are offered"
            error = {"message": text, "type": "no_stream", "code": 409}
            return web.json_response({"error": error}, status=409)
        return web.Response(status=204)

    def close(self) -> None:
        """Ends all streams, at once where the reader is behind, and refuses new ones."""
        self._closed = True
        for stream in self._streams.values():
            stream.close()

    async def _send(
        self, response: web.StreamResponse, stream: _Stream, channel: _Channel, key: ApiKey | None
    ) -> None:
        """Sends the events of a stream. Raises TimeoutError when the reader takes none."""
        loop, parent = asyncio.get_running_loop(), channel.subscriber.instance is not None
        while not stream.closed and self._authorizer.permits(key, parent=parent):
            channel.look(loop.time())
            stream.woken.clear()
            if stream.unsent:
                data, stream.unsent = stream.unsent, b""
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await response.write(data)
            await _set_within(stream.woken, channel.feed.rest_s(loop.time()))

    def _pool(self, name: str | None) -> PublishedPool | Refusal:
        pools = {pool.name: pool for pool in self._pools}
        if name is None and len(pools) == 1:
            return next(iter(pools.values()))
        names = ", ".join(sorted(pools))
        if name is None:
            text = f"this sidecar has several pools ({names}): select one by ?pool=NAME"
            return Refusal(Reason.INVALID_REQUEST, text, param="pool")
        if name not in pools:
            text = f"there is no pool {name[:80]!r} here; the pools are {names}"
            return Refusal(Reason.NOT_FOUND, text, param="pool")
        return pools[name]

    def _subscribe(self, channel: _Channel, pool: PublishedPool) -> None:
        if not self.leases.subscribers:
            self._pools.report_changes(self.leases)
        self.leases.subscribe(channel.subscriber)
        if channel.subscriber.instance is not None:
            pool.claims.parents.claim_table.opened(channel.subscriber.instance)

    def _unsubscribe(self, channel: _Channel, pool: PublishedPool) -> None:
        if channel.subscriber.instance is not None:
            pool.claims.parents.closed(channel.subscriber.instance)
        self.leases.unsubscribe(channel.subscriber)
        if not self.leases.subscribers:
            self._pools.report_changes(None)


def _encoded(name: str, data: State) -> bytes:
    if name not in (ENDED, OFFER):
        data = data | {"observed_at": lease_protocol.timestamp(time.time())}
    return lease_protocol.event(name, data)


async def _set_within(event: asyncio.Event, timeout_s: float) -> None:
    """Returns when the event is set, or after the timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
