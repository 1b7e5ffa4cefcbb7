"""The engine's side of the state stream, served by this sidecar for one of its pools.

    GET    /v1/capabilities/stream?instance=I[&pool=P]  the pool as seen by sidecar instance I,
                                                        then its changes, as the plugin tells them
    DELETE /v1/capabilities/leases/{lease}              spends a lease of a sidecar above

The shell around `upper`. Between events a reader costs one sleeping wait, and nobody listening
costs nothing: the pools are asked to tell of changes only while there is a reader. A reader that
falls behind is dropped, and gets the whole state when it comes again. `readers` decides how many
there may be in all, and of each client.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from orch_sidecar.api.headers import CACHE_CONTROL, CONTENT_TYPE, X_MEASUREMENT_TYPE
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.control.stream_readers import Reader, Readers
from orch_sidecar.pools.parent_leases import Feed, Listener, ParentLeases, PoolView, State

# A reader gives up after 3 s of silence; one that takes nothing for so long is gone.
TAKES_WITHIN_S: Final = 3.0


class _Stream:
    """A stream that is served."""

    def __init__(self, listener: Listener, transport: asyncio.Transport) -> None:
        self.listener = listener
        self.ended = False
        self._transport = transport

    def end(self) -> None:
        """Ends it, at once where its reader is behind."""
        self.ended = True
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        self.listener.wake()


class Publisher:
    """Tells sidecars above of the pools of this one."""

    def __init__(
        self,
        pools: Callable[[], Mapping[str, Callable[[], PoolView]]],
        attach: Callable[[Callable[[], None] | None], None],
        common_headers: Mapping[str, str],
    ) -> None:
        """`pools`: those there are, by name. `attach` has the pools call what it is given
        whenever one of them changes; None: nobody listens any more."""
        self.leases = ParentLeases(os.urandom(8).hex())
        self._pools = pools
        self._attach = attach
        self._headers = {
            **common_headers,
            CONTENT_TYPE: "text/event-stream",
            CACHE_CONTROL: "no-store",
        }
        self._readers = Readers()
        self._streams: dict[Reader, _Stream] = {}
        self._closed = False

    async def stream(
        self, http: web.BaseRequest, client: str | None
    ) -> web.StreamResponse | Refusal:
        """Serves the stream until the reader goes, falls behind, loses its place to another, or
        this is closed. `client`: the name of its API key; None: no keys are asked for."""
        found = self._pool(http.query.get("pool"))
        if isinstance(found, Refusal):
            return found
        pool, look = found
        if self._closed:
            return Refusal(Reason.DRAINING, "this sidecar is shutting down", retry_after_ms=1000)
        transport = http.transport
        if transport is None:
            raise asyncio.CancelledError  # the reader has gone already
        response = web.StreamResponse(
            headers={**self._headers, X_MEASUREMENT_TYPE: look().profile.measurement_type.value}
        )
        instance = http.query.get("instance")
        reader = Reader(client or http.remote or "", instance, pool)
        replaced = self._readers.enter(reader, self.leases.instances())
        if isinstance(replaced, Refusal):
            return replaced
        if replaced is not None:
            self._streams[replaced].end()
        woken = asyncio.Event()
        stream = self._streams[reader] = _Stream(Listener(instance, woken.set), transport)
        self._listen(stream.listener)
        try:
            await response.prepare(http)
            await self._tell(response, stream, look, woken)
        except TimeoutError:
            transport.abort()
        except ConnectionError:
            pass  # the reader has gone, and aiohttp is about to say so
        finally:
            self._readers.leave(reader)
            del self._streams[reader]
            self._unlisten(stream.listener)
        response.force_close()
        return response

    def revoke(self, lease: str) -> web.Response | Refusal:
        """Answers the revocation of a lease."""
        try:
            ended = self.leases.revoke(lease)
        except ValueError as error:
            return Refusal(Reason.INVALID_REQUEST, str(error))
        return web.json_response({"ended": ended})

    def close(self) -> None:
        """Ends all streams, at once where the reader is behind; later ones are refused."""
        self._closed = True
        for stream in self._streams.values():
            stream.end()

    async def _tell(
        self,
        response: web.StreamResponse,
        stream: _Stream,
        look: Callable[[], PoolView],
        woken: asyncio.Event,
    ) -> None:
        """Writes what is due. Raises TimeoutError when the reader does not take it."""
        loop, feed = asyncio.get_running_loop(), Feed(self.leases, stream.listener, look)
        while not stream.ended:
            woken.clear()
            if events := feed.due(loop.time()):
                async with asyncio.timeout(TAKES_WITHIN_S):
                    await response.write(b"".join(_event(name, data) for name, data in events))
            await _woken_within(woken, feed.rest_s(loop.time()))

    def _pool(self, name: str | None) -> tuple[str, Callable[[], PoolView]] | Refusal:
        pools = self._pools()
        if name is None and len(pools) == 1:
            return next(iter(pools.items()))
        names = ", ".join(sorted(pools))
        if name is None:
            text = f"this sidecar has several pools ({names}): say which, by ?pool=NAME"
            return Refusal(Reason.INVALID_REQUEST, text, param="pool")
        found = pools.get(name)
        if found is None:
            text = f"there is no pool {name[:80]!r} here; there are {names}"
            return Refusal(Reason.NOT_FOUND, text, param="pool")
        assert name is not None
        return name, found

    def _listen(self, listener: Listener) -> None:
        if not self.leases.listened:
            self._attach(self.leases.changed)
        self.leases.listen(listener)

    def _unlisten(self, listener: Listener) -> None:
        self.leases.unlisten(listener)
        if not self.leases.listened:
            self._attach(None)


def _event(name: str, data: State) -> bytes:
    """One server-sent event."""
    if name != "ended":
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        data = data | {"observed_at": now}
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def _woken_within(woken: asyncio.Event, timeout_s: float) -> None:
    """Returns when woken, or when the time has passed."""
    try:
        async with asyncio.timeout(timeout_s):
            await woken.wait()
    except TimeoutError:
        return
