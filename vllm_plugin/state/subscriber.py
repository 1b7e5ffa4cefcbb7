"""The readers of an engine's state: woken by changes, each looks at them when it may send them.

Pure: waking is a callback.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm_plugin.contracts.claiming_sidecar import Offer


class Subscriber:
    """One reader of the state: is woken by changes, and collects what concerns only its sidecar:
    the ended leases it owns, and the slots it is offered."""

    def __init__(
        self, instance: str | None, wake: Callable[[], None], *, claims: bool = True
    ) -> None:
        """`claims`: it is a sidecar that understands offers."""
        self.instance = instance
        self.wake = wake
        self.claims = claims and instance is not None
        self.changed = False  # something has, since it last looked
        self.replaced = False  # its sidecar has opened another stream: this one is to end
        self.ended: list[str] = []
        self.offers: list[Offer] = []

    def replace(self) -> None:
        """Its stream is to end."""
        self.replaced = True
        self.wake()


class Subscribers(set[Subscriber]):
    """All subscribers. A change costs time for those only that do not know of one yet: of many,
    most wait for their turn to send it."""

    def __init__(self) -> None:
        super().__init__()
        self._up_to_date: set[Subscriber] = set()

    def discard(self, subscriber: object) -> None:
        super().discard(subscriber)
        self._up_to_date.discard(subscriber)

    def looks(self, subscriber: Subscriber) -> None:
        """The subscriber looks at the state now: the next change wakes it again."""
        subscriber.changed = False
        self._up_to_date.add(subscriber)

    def change(self) -> None:
        """Something has changed, which each sends in its turn."""
        up_to_date, self._up_to_date = self._up_to_date, set()
        for subscriber in up_to_date:
            subscriber.changed = True
            subscriber.wake()

    def wake_all(self) -> None:
        """Something has changed that each sends at once."""
        self._up_to_date.clear()
        for subscriber in self:
            subscriber.changed = True
            subscriber.wake()
