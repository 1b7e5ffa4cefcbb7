"""Which addresses a name has, by numbers that stay while the addresses do.

Pure: told at times what was found, it says who has joined and who has left. A sidecar that is
about to leave says so itself, and long before its address goes; so one that is merely missing
from an answer is not given up at once: a name server that restarts must not cost the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

# Longer than a name server takes to restart and to hear of all endpoints.
MISSING_FOR_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Member:
    """An address. `number`: from 1, the lowest that was free when it joined."""

    number: int
    address: str


@dataclass(frozen=True, slots=True)
class Changes:
    """What is another than before."""

    joined: tuple[Member, ...] = ()
    left: tuple[Member, ...] = ()


@dataclass(slots=True)
class Members:
    """The addresses of one name. Times are seconds of one clock."""

    _present: dict[str, Member] = field(default_factory=dict)
    _missing_since: dict[str, float] = field(default_factory=dict)

    def found(
        self, addresses: Collection[str], now: float, answers: Callable[[Member], bool]
    ) -> Changes:
        """The name has these addresses now. `answers`: whether a member can be heard.

        One that is missing leaves at once if it cannot, else after MISSING_FOR_S.
        """
        left = []
        for address, member in list(self._present.items()):
            if address in addresses:
                self._missing_since.pop(address, None)
                continue
            since = self._missing_since.setdefault(address, now)
            if not answers(member) or now - since >= MISSING_FOR_S:
                del self._present[address], self._missing_since[address]
                left.append(member)
        joined = [self._join(each) for each in sorted(addresses) if each not in self._present]
        return Changes(tuple(joined), tuple(left))

    def _join(self, address: str) -> Member:
        taken = {member.number for member in self._present.values()}
        number = next(each for each in range(1, len(taken) + 2) if each not in taken)
        self._present[address] = Member(number, address)
        return self._present[address]
