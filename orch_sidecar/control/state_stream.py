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
from collections.abc import Mapping

from aiohttp import web

from orch_sidecar.api.headers import X_MEASUREMENT_TYPE
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.authorizer import NO_PARENT, Authorizer
from orch_sidecar.auth.keys import ApiKey, owner_of
from orch_sidecar.control.capabilities import State, StateFeed
from orch_sidecar.control.stream_readers import Channel, Reader, Stream, Streams
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
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
from vllm_plugin.contracts.slot_claims import Subscriber

# A reader gives a silent stream up after that time; so is a reader that takes nothing.
WRITE_TIMEOUT_S = STALE_AFTER_S
# A claim is a hundred bytes.
READ_TIMEOUT_S = STALE_AFTER_S


class _Channel(Channel):
    """The streams that are sent the same events: one of a parent, or all that name no instance."""

    def __init__(
        self,
        name: object,
        instance: str | None,
        publisher: Publisher,
        pool: Pool,
        asked_s: float,
        private: bool,
    ) -> None:
        """`private`: with what tells of the requests of others."""
        super().__init__(name)
        self.feed = StateFeed(
            publisher.leases, Subscriber(instance, self._wake), pool, asked_s, private
        )
        self._publisher = publisher
        self._pool = pool
        self._subscriber = self.feed.subscriber

    def _wake(self) -> None:
        for each in self.streams:
            each.woken.set()

    def joined(self) -> None:
        leases, instance = self._publisher.leases, self._subscriber.instance
        if not leases.subscribers:
            self._publisher.pools.report_changes(leases)
        leases.readers += 1
        leases.subscribers.add(self._subscriber)
        if instance is not None:
            self._pool.claims.parents.claim_table.opened(instance)

    def left(self) -> None:
        leases, instance = self._publisher.leases, self._subscriber.instance
        if instance is not None:
            self._pool.claims.parents.closed(instance)
        leases.readers -= 1
        if not self.streams:
            leases.subscribers.discard(self._subscriber)
        if not leases.subscribers:
            self._publisher.pools.report_changes(None)


class _Stream(Stream):
    """One reader's stream. `unsent`: events that were made for it; None: it has none yet."""

    write_s = WRITE_TIMEOUT_S
    unsent: bytes | None = None

    def next(self, now: float) -> bytes:
        """Makes the events that are due, for all streams of the channel, whichever looks first."""
        channel = self.channel
        if events := channel.feed.due(now):
            encoded = b"".join(_encoded(*each) for each in events)
            for each in channel.streams:
                if each.unsent is not None:
                    each.unsent += encoded
                    each.woken.set()
        data, self.unsent = self.unsent, b""
        return _encoded(*channel.feed.whole()) if data is None else data

    def sleep_s(self, now: float) -> float:
        sleep_s: float = self.channel.feed.sleep_s(now)
        return sleep_s


class Publisher:
    """Serves the state streams of this sidecar's pools."""

    def __init__(
        self, pools: PoolRegistry, authorizer: Authorizer, common_headers: Mapping[str, str]
    ) -> None:
        self.leases = ParentLeases(os.urandom(8).hex())
        self.pools = pools
        self.streams: Streams[_Channel, _Stream] = Streams(_Stream, common_headers)
        self._authorizer = authorizer

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
        private = self._authorizer.sees_all(key) or (key is not None and key.sidecar)
        alike = (id(pool), asked_s, private) if instance is None else object()
        return await self.streams.serve(
            http,
            Reader((http.remote or "") if key is None else key.name, instance, pool.name),
            _Channel(alike, instance, self, pool, asked_s, private),
            lambda: self._authorizer.permits(key, parent=instance is not None),
            {X_MEASUREMENT_TYPE: pool.profile.measurement_type.value},
            self.leases.instances(),
        )

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

    def _pool(self, name: str | None) -> Pool | Refusal:
        pools = {pool.name: pool for pool in self.pools}
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


def _encoded(name: str, data: State) -> bytes:
    if name not in (ENDED, OFFER):
        data = data | {"observed_at": lease_protocol.timestamp(time.time())}
    return lease_protocol.event(name, data)
