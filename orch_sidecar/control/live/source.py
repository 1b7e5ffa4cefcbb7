"""Collects the parts of the live document from the pools and the requests that ended."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import islice
from typing import Any

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.control.live import document, latency
from orch_sidecar.control.live.document import (
    MAX_ADMITTED,
    MAX_QUEUED,
    Admitted,
    Clock,
    Queued,
)
from orch_sidecar.control.live.ended_requests import EndedRequests, Row
from orch_sidecar.observability.mean_batches import MeanBatches
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.recent import Ended
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.request import Request
from vllm_plugin.contracts.profile import ServiceClass

Part = dict[str, Any]


def live_head() -> Part:
    """Returns what of `sidecar` never changes, for a sidecar that starts now."""
    return {
        "version": version("orch-sidecar"),
        "run": os.urandom(8).hex(),
        "started_at": time.time_ns() // 10**6,
    }


class LiveSource:
    """Collects the state of a sidecar for its readers. Remembers only what the engines reported
    while there was one."""

    def __init__(
        self, pools: PoolRegistry, metrics: Metrics, authorizer: Authorizer, head: Part
    ) -> None:
        """`head`: what of `sidecar` never changes."""
        self._pools = pools
        self._metrics = metrics
        self._authorizer = authorizer
        self.permits = authorizer.permits
        self.batches: Callable[[document.Names], list[Part]] | None = None
        self._head = head
        self._loop = asyncio.get_running_loop()
        self._batches = MeanBatches()
        self._ended = EndedRequests(self._batches, self._serves)

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
        self._batches.read(self._pools.all)
        return [
            *(self._entry(pool, names, ended, clock) for pool in self._pools),
            *(document.pool_entry(status, Ledger()) for status in self._pools.absent()),
        ]

    def more(self) -> dict[str, list[Part]]:
        """Returns the part `batches`, where they are on."""
        return {} if self.batches is None else {"batches": self.batches(self._authorizer.names())}

    def changed_requests(self) -> list[Row]:
        """Returns the rows of `requests` that are new or have changed since the last call."""
        return self._ended.update(self._metrics.recent(), time.monotonic_ns())

    def requests(self) -> list[Row]:
        """Returns the part `requests`, as of the last call of `changed_requests`."""
        return self._ended.rows

    def _entry(self, pool: Pool, names: document.Names, ended: list[Ended], clock: Clock) -> Part:
        status = pool.status()
        rates, busy = self._batches.histories[pool.name].token_rates(), status.busy_ratio
        own = [(record, at) for record, at in ended if record.pool == pool.name]
        return document.pool_entry(status, pool.ledger) | {
            "rates": rates | {"busy": None if busy is None else round(busy, 3)},
            "latency": latency.of_classes(
                own, status.admission.classes, status.admission.rules, time.monotonic_ns()
            ),
            "keys": document.keys(pool.queues, names),
            "queue": document.queue(self._queued(pool, clock.now), names, clock),
            "admitted": document.admitted(islice(self._admitted(pool), MAX_ADMITTED), names, clock),
        }

    def _queued(self, pool: Pool, now: float) -> Iterator[Queued]:
        for service_class in ServiceClass:
            for each in islice(pool.queues.line(service_class), MAX_QUEUED):
                place = pool.gate.places.of(each.ticket, now)
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
