"""Numbers the addresses of a name; a number is stable while its address stays.

Pure. A sidecar that is about to stop reports that, long before its address is removed; so an
address that is only missing from an answer is kept for a while: the restart of a name server must
not cost the pool.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

# Longer than a name server takes to restart and to learn of all endpoints.
MISSING_FOR_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Member:
    """An address. `number`: from 1, the lowest that was free when the address was added."""

    number: int
    address: str


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference that a look-up made."""

    added: tuple[Member, ...] = ()
    removed: tuple[Member, ...] = ()


@dataclass(slots=True)
class Members:
    """The addresses of one name. Times are seconds of one clock."""

    _present: dict[str, Member] = field(default_factory=dict)
    _missing_since: dict[str, float] = field(default_factory=dict)

    def update(
        self, addresses: Collection[str], answering: Collection[Member], now: float
    ) -> Changes:
        """Takes the result of a look-up, and returns what it changes.

        A missing address is removed after MISSING_FOR_S, or at once unless its member is one of
        those `answering`.
        """
        removed = []
        for address, member in list(self._present.items()):
            if address in addresses:
                self._missing_since.pop(address, None)
                continue
            since = self._missing_since.setdefault(address, now)
            if member not in answering or now - since >= MISSING_FOR_S:
                del self._present[address], self._missing_since[address]
                removed.append(member)
        added = [self._add(each) for each in sorted(addresses) if each not in self._present]
        return Changes(tuple(added), tuple(removed))

    def _add(self, address: str) -> Member:
        taken = {member.number for member in self._present.values()}
        number = next(each for each in range(1, len(taken) + 2) if each not in taken)
        self._present[address] = Member(number, address)
        return self._present[address]
