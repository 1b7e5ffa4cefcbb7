"""The live document of a sidecar, as its events have it, and what of it a reader has chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

SNAPSHOT: Final = "snapshot"
UPDATE: Final = "update"

_ENDED_KEPT: Final = 100

Document = Mapping[str, Any]


class Cycled(StrEnum):
    """A choice; `next` is the one after it, the first one after the last."""

    @property
    def next(self) -> Self:
        members = list(type(self))
        return members[(members.index(self) + 1) % len(members)]


class Order(Cycled):
    """How requests are sorted."""

    STATE = "state"  # running ones first, then the queue in its order
    AGE = "age"  # the oldest first
    CLASS = "class"
    KEY = "key"


class PoolOrder(Cycled):
    """How pools are sorted."""

    GIVEN = "given"  # as they are configured
    QUEUE = "queue"  # the longest first
    STATE = "state"  # those that take no requests first


class InvalidDocument(ValueError):
    """An event that is not of a live document; the message names what is missing."""


class Live:
    """The document as of the last event."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}

    def apply(self, name: str, data: object) -> None:
        """Applies an event. Raises InvalidDocument."""
        if not isinstance(data, Mapping):
            raise InvalidDocument("the data of an event must be a JSON object")
        if name == SNAPSHOT:
            self.document = dict(data)
        elif name == UPDATE and self.document:
            try:
                ended = _merged(self.document["requests"], data.get("requests", []))
            except (KeyError, TypeError) as error:
                raise InvalidDocument("`requests` must be a list of rows with numbers") from error
            self.document |= dict(data) | {"requests": ended}
        begun = name == SNAPSHOT or self.document
        if begun and not isinstance(self.document.get("pools"), list):
            raise InvalidDocument("the document must have a list `pools`")

    @property
    def pools(self) -> list[Document]:
        return list(self.document.get("pools", []))

    @property
    def at(self) -> int:
        """When the sidecar made the document, in Unix milliseconds of its clock."""
        return int(self.document["at"])


def _merged(before: list[Document], changed: list[Document]) -> list[Document]:
    """Returns the rows of ended requests; one that has changed replaces its former row."""
    rows = {row["number"]: row for row in before} | {row["number"]: row for row in changed}
    return [rows[number] for number in sorted(rows)][-_ENDED_KEPT:]


@dataclass(slots=True)
class Choice:
    """What the reader has chosen: a pool and a request by name and id, as rows move."""

    pool: str = ""
    request: str = ""
    order: Order = Order.STATE
    pool_order: PoolOrder = PoolOrder.GIVEN

    def pools_of(self, live: Live) -> list[Document]:
        """Returns the pools, sorted."""
        pools = live.pools
        match self.pool_order:
            case PoolOrder.QUEUE:
                pools.sort(key=lambda pool: -sum(pool["queued"].values()))
            case PoolOrder.STATE:
                pools.sort(key=lambda pool: pool["state"] == "ready" and not pool["drain"])
            case PoolOrder.GIVEN:
                pass
        return pools

    def sort_pools(self, live: Live) -> None:
        """Sorts the pools in another way; the chosen one stays chosen."""
        chosen = self.pool_of(live)
        self.pool = chosen["name"] if chosen is not None else ""
        self.pool_order = self.pool_order.next

    def pool_of(self, live: Live) -> Document | None:
        """Returns the chosen pool, the first one if it is gone; None without pools."""
        pools = self.pools_of(live)
        found = next((pool for pool in pools if pool["name"] == self.pool), None)
        return found or (pools[0] if pools else None)

    def request_of(self, pool: Document | None) -> Document | None:
        """Returns the chosen request of the pool, None if it is gone."""
        rows = in_flight(pool, self.order) if pool is not None else []
        return next((row for row in rows if row["id"] == self.request), None)

    def move_pool(self, live: Live, by: int) -> None:
        """Chooses another pool."""
        names = [pool["name"] for pool in self.pools_of(live)]
        chosen = self.pool_of(live)
        if chosen is not None:
            self.pool = names[(names.index(chosen["name"]) + by) % len(names)]
            self.request = ""

    def move_request(self, live: Live, by: int) -> None:
        """Chooses another request of the pool; the first or last where none was chosen."""
        pool = self.pool_of(live)
        ids = [row["id"] for row in in_flight(pool, self.order)] if pool is not None else []
        if ids:
            start = 0 if by > 0 else len(ids) - 1
            at = ids.index(self.request) + by if self.request in ids else start
            self.request = ids[min(max(at, 0), len(ids) - 1)]


def in_flight(pool: Document, order: Order) -> list[Document]:
    """Returns the rows of a pool's requests that run or wait, sorted."""
    rows = [*pool.get("admitted", []), *pool.get("queue", [])]
    match order:
        case Order.AGE:
            rows.sort(key=since_at)
        case Order.CLASS:
            rows.sort(key=lambda row: row["class"], reverse=True)
        case Order.KEY:
            rows.sort(key=lambda row: row["key"] or "")
        case Order.STATE:
            pass  # as the document has them
    return rows


def since_at(row: Document) -> int:
    """Returns when a request was admitted, or came if it waits, in Unix milliseconds."""
    return int(row["admitted_at"] if "admitted_at" in row else row["queued_at"])
