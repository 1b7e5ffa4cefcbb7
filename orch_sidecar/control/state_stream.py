"""Publishes the state of this sidecar's pools to parent sidecars.

    GET    /v1/capabilities/stream?instance=I[&pool=P][&changes_every_ms=T]
                                                        the pool as seen by sidecar instance I,
                                                        then its changes (see `lease_protocol`)
    DELETE /v1/capabilities/leases/{lease}              spends a lease of a parent sidecar
    PUT    /v1/capabilities/claims/{instance}[?pool=P]  what a parent sidecar waits for, where the
                                                        engine of that pool is shared

Between events a stream costs one waiting task, and without streams nothing: the pools report their
changes only while there is one. A reader that falls behind is disconnected, and gets the whole
state when it reconnects. `stream_readers` limits the streams, in all and of each client.
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


class _Stream(StateSubscriber):
    """A stream that is being served."""

    def __init__(self, instance: str | None, transport: asyncio.Transport) -> None:
        super().__init__(instance)
        self.closed = False
        self.woken = asyncio.Event()
        self._transport = transport

    def wake(self) -> None:
        self.woken.set()

    def close(self) -> None:
        """Ends the stream, at once if its reader is behind."""
        self.closed = True
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        self.wake()


class Publisher:
    """Serves the state streams of this sidecar's pools."""

    def __init__(self, pools: PublishedPools, common_headers: Mapping[str, str]) -> None:
        self.leases = ParentLeases(os.urandom(8).hex())
        self._pools = pools
        self._headers = {
            **common_headers,
            CONTENT_TYPE: "text/event-stream",
            CACHE_CONTROL: "no-store",
        }
        self._readers = Readers()
        self._streams: dict[Reader, _Stream] = {}
        self._closed = False

    async def stream(
        self, http: web.BaseRequest, client: str | None, *, private: bool = True
    ) -> web.StreamResponse | Refusal:
        """Serves a stream until its reader disconnects, falls behind or is replaced by another, or
        the publisher closes. `client`: the name of its API key, None where keys are not used.
        `private`: with what tells of the requests of others."""
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
        measurement_type = pool.snapshot().measurement_type.value
        response = web.StreamResponse(
            headers={**self._headers, X_MEASUREMENT_TYPE: measurement_type}
        )
        instance = http.query.get("instance")
        reader = Reader(client or http.remote or "", instance, pool.name)
        replaced = self._readers.enter(reader, self.leases.instances())
        if isinstance(replaced, Refusal):
            return replaced
        if replaced is not None:
            self._streams[replaced].close()
        stream = self._streams[reader] = _Stream(instance, transport)
        feed = StateFeed(self.leases, stream, pool, asked_s, private)
        self._subscribe(stream, pool)
        try:
            await response.prepare(http)
            await self._send(response, stream, feed)
        except TimeoutError:
            transport.abort()
        except ConnectionError:
            pass  # the reader has disconnected, and aiohttp is about to notice
        finally:
            self._readers.leave(reader)
            del self._streams[reader]
            self._unsubscribe(stream, pool)
        response.force_close()
        return response

    def revoke(self, lease: str) -> web.Response | Refusal:
        """Spends a lease and returns the answer to the request for that."""
        try:
            ended = self.leases.revoke(lease)
        except ValueError as error:
            return Refusal(Reason.INVALID_REQUEST, str(error))
        return web.json_response({"ended": ended})

    async def claim(self, instance: str, http: web.BaseRequest) -> web.Response | Refusal:
        """Takes what a parent sidecar claims, and returns the answer to that."""
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
        if not pool.claims.claimed(instance, call, asyncio.get_running_loop().time()):
            text = f"instance {instance[:40]!r} must read the state stream, where slots are offered"
            error = {"message": text, "type": "no_stream", "code": 409}
            return web.json_response({"error": error}, status=409)
        return web.Response(status=204)

    def close(self) -> None:
        """Ends all streams, at once where the reader is behind, and refuses new ones."""
        self._closed = True
        for stream in self._streams.values():
            stream.close()

    async def _send(self, response: web.StreamResponse, stream: _Stream, feed: StateFeed) -> None:
        """Sends the events of a stream. Raises TimeoutError when the reader takes none."""
        loop = asyncio.get_running_loop()
        while not stream.closed:
            stream.woken.clear()
            if events := feed.due(loop.time()):
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await response.write(b"".join(_encoded(*each) for each in events))
            await _set_within(stream.woken, feed.rest_s(loop.time()))

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

    def _subscribe(self, stream: _Stream, pool: PublishedPool) -> None:
        if not self.leases.subscribers:
            self._pools.report_changes(self.leases)
        self.leases.subscribe(stream)
        if stream.instance is not None:
            pool.claims.parents.books.opened(stream.instance)

    def _unsubscribe(self, stream: _Stream, pool: PublishedPool) -> None:
        if stream.instance is not None:
            pool.claims.parents.closed(stream.instance)
        self.leases.unsubscribe(stream)
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
