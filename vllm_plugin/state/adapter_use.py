"""Decides which sidecar's requests may bring a LoRA adapter into the engine's batch.

Pure: times are seconds of the caller's clock. vLLM runs sequences of at most `max_loras` adapters
at once; a request of another one would wait inside, in a slot that it does not use. So it enters
only if its adapter is in use, or there is room for one more that no sidecar has waited for longer.
Requests of adapters in use enter at once, until another adapter has waited for PASSED_S since the
last change: then those in use end, and the one that has waited longest follows.

An adapter is in use while a request in the engine has it, as far as is known: by the header of a
request, then by its body; without a lease by vLLM's statistics, too, which may be late.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from typing import Any, Final

from vllm_plugin.contracts.lease_protocol import CLAIM_S, OFFER_S, PASSED_S

_NO_ADAPTERS: Final[frozenset[str]] = frozenset()


class AdapterUse:
    """The adapters of the requests in the engine, and those that sidecars wait for."""

    def __init__(self, most: int) -> None:
        """`most`: adapters at once; 0: the engine has none."""
        self.most = most
        self.loads_total = 0  # adapters that were not resident when a request of theirs entered
        self._requests: dict[int, tuple[str | None, str]] = {}  # sidecar and adapter, by request
        self._in_use = Counter[str]()  # requests, by adapter
        self._statistics = _NO_ADAPTERS  # adapters in use besides
        self._resident = OrderedDict[str, None]()  # in use or used last, the oldest first
        self._changed_s = float("-inf")  # when an adapter came into use
        self._wanted: dict[tuple[str, str], float] = {}  # since when, by sidecar and adapter
        # Wants that a sidecar names no more, and until when they count: a request may be under way.
        self._ending: dict[tuple[str, str], float] = {}
        self._called_s: dict[str, float] = {}  # by sidecar
        self._overdue: set[tuple[str, str]] = set()

    # Requests

    def try_enter(self, instance: str, adapter: str, now_s: float) -> bool:
        """Lets a request of a sidecar in, or returns False and keeps that it wants its adapter."""
        in_use = {*self._in_use, *self._statistics}
        if adapter in in_use:
            enters = self._joinable(instance)
        else:
            since_s = self._wanted.get((instance, adapter), now_s)
            before = self._waiting_before(instance, since_s) - {adapter}
            enters = len(in_use) + len(before) < self.most
        if not enters:
            self._wanted.setdefault((instance, adapter), now_s)
            self._called_s[instance] = now_s
        return enters

    def entered(self, key: int, instance: str | None, adapter: str, now_s: float) -> None:
        """A request entered; `instance`: None without a lease."""
        self._requests[key] = instance, adapter
        if not self._in_use[adapter]:
            self._changed_s = now_s
            for want in [want for want in self._wanted if want[1] == adapter]:
                self._forget(want)
        self._in_use[adapter] += 1
        self.loads_total += adapter not in self._resident
        self._resident[adapter] = None
        self._resident.move_to_end(adapter)
        unused = [each for each in self._resident if each not in self._in_use]
        for each in unused[: max(0, len(self._resident) - self.most)]:
            del self._resident[each]

    def left(self, key: int) -> bool:
        """A request left. Returns whether it had an adapter."""
        found = self._requests.pop(key, None)
        if found is None:
            return False
        self._in_use[found[1]] -= 1
        if not self._in_use[found[1]]:
            del self._in_use[found[1]]
        return True

    def adapter_of(self, key: int) -> str | None:
        """Returns the adapter of a request in the engine; None: the base model."""
        return self._requests[key][1] if key in self._requests else None

    def reported(self, adapters: Iterable[str]) -> None:
        """Takes the adapters in use by vLLM's statistics, of which some may be of no lease."""
        self._statistics = frozenset(adapters)

    # Sidecars

    def wants(self, instance: str, adapters: Collection[str], now_s: float) -> None:
        """Sets the adapters for which requests wait at a sidecar."""
        if not adapters and not self._wanted:
            return
        self._called_s[instance] = now_s
        for want in self._wanted:
            if want[0] == instance and want[1] not in adapters:
                self._ending.setdefault(want, now_s + OFFER_S)
        for adapter in adapters:
            self._wanted.setdefault((instance, adapter), now_s)
            self._ending.pop((instance, adapter), None)

    def closed(self, instance: str) -> None:
        """A sidecar is gone."""
        for want in [want for want in self._wanted if want[0] == instance]:
            self._forget(want)
        self._called_s.pop(instance, None)

    def expire(self, now_s: float) -> bool:
        """Forgets the wants that have ended, and of sidecars that have not repeated them. Returns
        whether others than before are wanted, or have been for long enough."""
        ended = [want for want, until_s in self._ending.items() if now_s >= until_s]
        for want in ended:
            self._forget(want)
        for instance, called_s in list(self._called_s.items()):
            if not called_s <= now_s < called_s + CLAIM_S:
                self.closed(instance)
        before = self._overdue
        self._overdue = {
            want
            for want, since_s in self._wanted.items()
            if self._waits(want) and now_s >= max(since_s, self._changed_s) + PASSED_S
        }
        return bool(ended) or self._overdue != before

    def expires_at(self) -> float | None:
        """Returns when the next want ends, or has waited for long enough; None: there is none."""
        overdue = (
            max(since_s, self._changed_s) + PASSED_S
            for want, since_s in self._wanted.items()
            if want not in self._overdue and self._waits(want)
        )
        return min((*self._ending.values(), *overdue), default=None)

    def fields(self, instance: str | None) -> dict[str, Any]:
        """Returns what a sidecar has to know: the adapters of `foreign` requests, those that are
        `wanted` by others before any that it wants itself, whether adapters in use are `joinable`,
        and those that are `resident`, in use or used last."""
        foreign = {adapter for owner, adapter in self._requests.values() if owner != instance}
        own = (since_s for (of, _), since_s in self._wanted.items() if of == instance)
        wanted = self._waiting_before(instance, min(own, default=float("inf")))
        return {
            "foreign": sorted(foreign | self._statistics),
            "wanted": sorted(wanted),
            "joinable": self._joinable(instance),
            "resident": sorted(self._resident),
            "loads_total": self.loads_total,
        }

    # Parts

    def _forget(self, want: tuple[str, str]) -> None:
        del self._wanted[want]
        self._ending.pop(want, None)

    def _waits(self, want: tuple[str, str]) -> bool:
        return want[1] not in self._in_use and want[1] not in self._statistics

    def _waiting_before(self, instance: str | None, since_s: float) -> set[str]:
        """Returns the adapters for which other sidecars have waited for longer."""
        return {
            want[1]
            for want, others_s in self._wanted.items()
            if want[0] != instance and others_s < since_s and self._waits(want)
        }

    def _joinable(self, instance: str | None) -> bool:
        """Whether requests of adapters in use enter: no other sidecar has waited long enough."""
        return not any(
            want[0] != instance and want in self._wanted and self._waits(want)
            for want in self._overdue
        )
