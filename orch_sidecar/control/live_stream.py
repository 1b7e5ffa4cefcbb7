"""Collects the live document, and streams it to its readers: `GET /v1/live` (see `live_document`).

One task builds the document at intervals, only while there is a reader, and encodes each of its
events once for all readers of a channel, who may see the same. A reader that has not taken its
last event gets none, and the whole document once it has; one that takes none for a while is
disconnected. So a reader costs at most one document of memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from itertools import islice
from typing import Any, Final

import msgspec
from aiohttp import web

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.control import live_document
from orch_sidecar.control.ended_requests import EndedRequests, latency_by_class
from orch_sidecar.control.live_document import (
    MAX_ADMITTED,
    MAX_QUEUED,
    Admitted,
    Clock,
    Queued,
    with_rows,
)
from orch_sidecar.control.stream_readers import Channel, Reader, Stream, Streams
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.recent import Ended, MeanBatches
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.request import Request
from vllm_plugin.contracts.profile import ServiceClass

logger = logging.getLogger("orch.sidecar")

# Smooth enough to look at, and no more work than a hundred requests.
EVENT_EVERY_S: Final = 0.25
ALIVE_EVERY_S: Final = 2.0
# After so long without taking anything a reader is disconnected; it may come back.
MAX_LAG_S: Final = 10.0
# Of an id at the clients' listener: enough to find a request, too few to cancel it.
SHORT_ID_CHARACTERS: Final = 8

_ALIVE_EVENT: Final = b": nothing new\n\n"

Part = dict[str, Any]


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


class LiveSource:
    """Collects the state of a sidecar for its readers. Remembers only what the engines reported
    while there was one."""

    def __init__(self, pools: PoolRegistry, metrics: Metrics, authorizer: Authorizer) -> None:
        self._pools = pools
        self._metrics = metrics
        self._authorizer = authorizer
        self.permits = authorizer.permits
        self.batches: Callable[[live_document.Names], list[Part]] | None = None
        # What of `sidecar` never changes.
        self._head: Part = {
            "version": version("orch-sidecar"),
            "run": os.urandom(8).hex(),
            "started_at": time.time_ns() // 10**6,
        }
        self._loop = asyncio.get_running_loop()
        self._mean_batches = MeanBatches()
        self._ended = EndedRequests(self._mean_batches, self._serves)

    def sidecar(self) -> Part:
        """Returns the part `sidecar`."""
        return self._head | {
            "state": self._pools.state.value,
            "keys": self._authorizer.requires_keys,
        }

    def pools(self) -> list[Part]:
        """Returns the part `pools`, in the order of the settings."""
        now = self._loop.time()
        clock, names = Clock(now, time.time() - now), self._authorizer.names()
        ended = self._metrics.recent().all()
        self._mean_batches.read(self._pools.all)
        return [
            *(self._entry(pool, names, ended, clock) for pool in self._pools),
            *(live_document.pool_entry(status, Ledger()) for status in self._pools.absent()),
        ]

    def more(self) -> dict[str, list[Part]]:
        """Returns the part `batches`, where they are on."""
        return {} if self.batches is None else {"batches": self.batches(self._authorizer.names())}

    def changed_requests(self) -> list[Part]:
        """Returns the rows of `requests` that are new or have changed since the last call."""
        return self._ended.update(self._metrics.recent(), time.monotonic_ns())

    def requests(self) -> list[Part]:
        """Returns the part `requests`, as of the last call of `changed_requests`."""
        return self._ended.rows

    def _entry(
        self, pool: Pool, names: live_document.Names, ended: list[Ended], clock: Clock
    ) -> Part:
        status = pool.status()
        rates, busy = self._mean_batches.histories[pool.name].token_rates(), status.busy_ratio
        own = [(record, at) for record, at in ended if record.pool == pool.name]
        return live_document.pool_entry(status, pool.ledger) | {
            "rates": rates | {"busy": None if busy is None else round(busy, 3)},
            "latency": latency_by_class(
                own, status.admission.classes, status.admission.rules, time.monotonic_ns()
            ),
            "keys": live_document.keys(pool.queues, names),
            "queue": live_document.queue(self._queued(pool, clock.now), names, clock),
            "admitted": live_document.admitted(
                islice(self._admitted(pool), MAX_ADMITTED), names, clock
            ),
        }

    def _queued(self, pool: Pool, now: float) -> Iterator[Queued]:
        for service_class in ServiceClass:
            for each in islice(pool.queues.line(service_class), MAX_QUEUED):
                place = pool.admission.place(each.ticket, now)
                if place is not None:
                    yield Queued(_id(pool, each.ticket), each, place)

    def _admitted(self, pool: Pool) -> Iterator[Admitted]:
        for lease in pool.ledger.all():
            owner = _owner(pool, lease.id)
            if owner is not None and lease.request is not None and not lease.closing:
                record = owner.record
                at_s = None if record.first_byte is None else record.first_byte / 1e9
                is_token = record.stream and record.endpoint.first_byte_is_token
                yield Admitted(record.id, lease, at_s, is_token)

    def _serves(self, pool: str, model: str) -> bool:
        try:
            return model in (self._pools[pool].watcher.models or ())
        except KeyError:
            return False


def _owner(pool: Pool, ticket_id: str) -> Request | None:
    """Returns the request with this ticket; None if that is about to be found without an owner."""
    ticket = pool.gate.tickets.get(ticket_id)
    owner = None if ticket is None else ticket.owner
    return owner if isinstance(owner, Request) else None


def _id(pool: Pool, ticket_id: str) -> str:
    owner = _owner(pool, ticket_id)
    return "" if owner is None else owner.record.id
