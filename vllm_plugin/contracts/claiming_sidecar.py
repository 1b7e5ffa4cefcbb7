"""What one sidecar claims of an engine's slots, what it is offered, and for how long.

Pure: times are seconds of the caller's clock. An offer is booked for twice the time that the last
one took until the sidecar showed that it had heard of it, by a request or a call: for OFFER_S at
least and MAX_OFFER_S at most. Else a sidecar farther away than OFFER_S could never take any.
One farther away than MAX_OFFER_S cannot: its offers are booked for OFFER_S.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from vllm_plugin.contracts.lease_protocol import MAX_OFFER_S, OFFER_S, Claim


@dataclass(slots=True)
class Offer:
    """`slots` are booked for a sidecar instance until then. `number`: from 1; `left`: those that
    no request has used."""

    instance: str
    slots: int
    until_s: float
    number: int
    left: int


@dataclass(slots=True)
class ClaimingSidecar:
    """What a sidecar that reads the state claims, and is offered."""

    streams: int = 0
    claim: Claim | None = None
    start: int = 0  # of its next grant, in sequences granted: the lowest is next
    age: int = 0  # of its claim, or of the last grant under it: the older, the lower
    number: int = 0  # of its last call
    has_unclaimed_demand: bool = False  # for something else than slots
    called_s: float = 0.0  # when it last called, or a request of it was rejected
    offers: deque[Offer] = field(default_factory=deque)  # the oldest first
    offer_s: float = OFFER_S  # for which an offer is booked
    unheard: tuple[int, float] | None = None  # the first offer after which it was not heard of

    @property
    def booked(self) -> int:
        return sum(offer.left for offer in self.offers)

    def offer(self, instance: str, number: int, now_s: float) -> Offer:
        """Makes an offer of no slots yet."""
        made = Offer(instance, 0, now_s + self.offer_s, number, 0)
        self.offers.append(made)
        if self.unheard is None:
            self.unheard = number, now_s
        return made

    def heard(self, number: int, now_s: float) -> None:
        """The sidecar has heard of the offers up to this number."""
        if self.unheard is not None and self.unheard[0] <= number:
            delay_s = now_s - self.unheard[1]
            booked_s = min(max(OFFER_S, 2 * delay_s), MAX_OFFER_S)
            self.offer_s = booked_s if delay_s <= MAX_OFFER_S else OFFER_S
            self.unheard = None
