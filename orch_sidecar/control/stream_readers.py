"""Which readers of the state stream are served: so many in all, and for each client.

Pure. A sidecar above that holds leases here always gets in: without the stream it would not hear
of their ends. For all others there are places, shared evenly: a client that has fewer than another
takes one of the other's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal

# Each costs some microseconds whenever something changes; tiers have a handful of sidecars.
MOST_READERS: Final = 64
MOST_OF_A_CLIENT: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """One stream. `client`: its API key's name, or its address where no keys are asked for.
    `instance`: of the sidecar above, as it says itself. `pool`: the one that it reads."""

    client: str
    instance: str | None
    pool: str


class Readers:
    """Those that are served."""

    def __init__(self) -> None:
        self._readers: dict[Reader, None] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._readers)

    def enter(self, reader: Reader, holders: Collection[str]) -> Reader | Refusal | None:
        """A reader came. A Reader: it takes the place of that one, which is to be ended; None:
        it has one of its own. `holders`: the instances that hold leases."""
        place = self._place_of(reader, holders)
        if not isinstance(place, Refusal):
            if place is not None:
                del self._readers[place]
            self._readers[reader] = None
        return place

    def leave(self, reader: Reader) -> None:
        """It has gone, or was ended."""
        self._readers.pop(reader, None)

    def _place_of(self, new: Reader, holders: Collection[str]) -> Reader | Refusal | None:
        if new.instance in holders:
            # One stream for each pool: an earlier one is on a connection that was lost.
            same = (each for each in self._readers if _same(each, new))
            return next(same, None)
        others = [each for each in self._readers if each.instance not in holders]
        count = Counter(each.client for each in others)
        own = count[new.client]
        if own >= MOST_OF_A_CLIENT:
            text = f"this client reads the state {own} times already, which is the most"
            return Refusal(Reason.READER_LIMIT, text)
        if len(others) < MOST_READERS:
            return None
        client, most = count.most_common(1)[0]
        if most <= own + 1:
            text = f"the state is read {len(others)} times already, which is the most"
            return Refusal(Reason.READER_LIMIT, text)
        return next(each for each in reversed(others) if each.client == client)


def _same(one: Reader, other: Reader) -> bool:
    return (one.instance, one.pool, one.client) == (other.instance, other.pool, other.client)
