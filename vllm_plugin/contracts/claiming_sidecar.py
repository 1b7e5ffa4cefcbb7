"""Keeps what a sidecar that reads a state (an engine's or a pool's) claims, is offered, and hears.

Pure: times are seconds of the caller's clock, and waking is a callback. An offer is booked for
twice the time after which the sidecar last showed, by a request or a call, that it had heard of an
offer: between OFFER_S and MAX_OFFER_S. With a fixed OFFER_S, a sidecar farther away could never use
an offer. One farther away than MAX_OFFER_S cannot: its offers are booked for OFFER_S.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from vllm_plugin.contracts.lease_protocol import MAX_OFFER_S, OFFER_S, Claim


@dataclass(slots=True)
class Offer:
    """An offer of `slots`, booked for a sidecar instance until `until_s`. `number`: from 1; `left`:
    slots that no request has used."""

    instance: str
    slots: int
    until_s: float
    number: int
    left: int


@dataclass(slots=True)
class ClaimingSidecar:
    """The claim of a sidecar that reads the state, and its offers."""

    streams: int = 0
    claim: Claim | None = None
    next_start: int = 0  # of its next grant, in sequences granted: the lowest is next
    age: int = 0  # of its claim, or of the last grant under it: the older, the lower
    number: int = 0  # of its last call
    has_unclaimed_demand: bool = False  # for anything but slots
    called_s: float = 0.0  # when it last called, or its last request was rejected
    offers: deque[Offer] = field(default_factory=deque)  # the oldest first
    offer_s: float = OFFER_S  # for how long an offer is booked
    unheard: tuple[int, float] | None = None  # the first offer that it may not have heard of

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


class Subscriber:
    """One reader of the state: is woken by changes, and collects what concerns only its sidecar:
    the ended leases it owns, and the slots that an engine offers it."""

    def __init__(
        self, instance: str | None, wake: Callable[[], None], *, claims: bool = True
    ) -> None:
        """`claims`: it is a sidecar that understands offers."""
        self.instance = instance
        self.wake = wake
        self.claims = claims and instance is not None
        self.changed = False  # something has changed since it last looked
        self.at_once = False  # that must not wait for its turn
        self.replaced = False  # its sidecar has opened another stream: this one has to end
        self.ended: list[str] = []
        self.offers: list[Offer] = []

    def replace(self) -> None:
        """Has its stream end."""
        self.replaced = True
        self.wake()


class Subscribers(set[Subscriber]):
    """All subscribers. A change costs time only for those without an earlier one: most of many
    still wait for their turns to send that."""

    def __init__(self) -> None:
        super().__init__()
        self._up_to_date: set[Subscriber] = set()

    def discard(self, subscriber: object) -> None:
        super().discard(subscriber)
        self._up_to_date.discard(subscriber)

    def looked(self, subscriber: Subscriber) -> None:
        """The subscriber has looked at the state: the next change wakes it again."""
        subscriber.changed = subscriber.at_once = False
        self._up_to_date.add(subscriber)

    def change(self) -> None:
        """Wakes subscribers for a change that each sends in its turn."""
        up_to_date, self._up_to_date = self._up_to_date, set()
        for subscriber in up_to_date:
            subscriber.changed = True
            subscriber.wake()

    def wake_all(self) -> None:
        """Wakes all subscribers for a change that each sends at once."""
        self._up_to_date.clear()
        for subscriber in self:
            subscriber.changed = subscriber.at_once = True
            subscriber.wake()
