"""Limits the readers of the state stream, in all and for each client.

Pure. A parent sidecar that owns leases here is always served: only the stream reports their ends.
The other readers share a fixed number of places evenly: a client that has fewer than another
replaces a reader of the other. A client that is no parent has a few places at most. The more
readers there are, the fewer changes each is sent (`lease_protocol.changes_every_s`), so that the
limit is one of memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal

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
