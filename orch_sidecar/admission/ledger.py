"""Keeps the slots of one engine, and the only record of the leases that own them.

Pure. BATCHING/ORCH-3911, 3922.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from orch_sidecar.admission.types import AdmissionRequest, KvNeed, Lease
from vllm_plugin.contracts.profile import BULK, INTERACTIVE, ServiceClass

MAX_UNSEEN_PROMPTS: Final = 4096  # no engine has so many prompts in prefill


class Ledger:
    """Grants and releases leases, and keeps their sums. Slots are counted in sequences.

    A lease is released exactly once; later releases do nothing.
    """

    def __init__(self) -> None:
        self.slots_total = 0
        self.foreign = 0
        self.foreign_interactive = 0  # of other sidecars' interactive requests
        self.epoch = ""
        self.violations = 0
        self.granted = [0 for _ in ServiceClass]  # leases since the start, by the rank of a class
        self.interactive_prompts = 0  # tokens, since the start
        self._peak = 0
        self._leases: dict[str, Lease] = {}
        self._reset_sums()

    def _reset_sums(self) -> None:
        # Sequences: of all leases, and of those with a known request by class.
        self.leased = self.interactive = self.bulk = self.idle = 0
        # The sum of the end times of bulk sequences, less that of their start times.
        self._bulk_slot_s = 0.0
        # KV blocks of all leases, see KvNeed.
        self.kv_prompts = self.kv_outputs = self.kv_swing = 0
        self.kv_unknown = 0  # leases whose output length cannot be estimated
        # When prompts were granted that the engine's reported usage may miss, and their blocks.
        self.unseen: deque[tuple[float, KvNeed]] = deque()
        self.unseen_blocks = self.unseen_reading = 0

    @property
    def room(self) -> int:
        """Slots that may be granted now; negative while foreign traffic exceeds what is left."""
        return self.slots_total - self.leased - self.foreign

    @property
    def non_idle(self) -> int:
        """Sequences in the engine without idle requests, which give way to all others."""
        return self.leased + self.foreign - self.idle

    @property
    def adopted(self) -> int:
        """Sequences of leases whose requests are unknown."""
        return self.leased - self.interactive - self.bulk - self.idle

    @property
    def grants(self) -> int:
        """Leases of all classes since the start."""
        return sum(self.granted)

    @property
    def kv_committed(self) -> int:
        """KV blocks of all leases at their ends."""
        return self.kv_prompts + self.kv_outputs

    @property
    def kv_growth(self) -> int:
        """Those of them that prefill does not take."""
        return self.kv_outputs + self.kv_swing

    def grant(self, lease_id: str, request: AdmissionRequest, now: float) -> Lease:
        """Grants a lease. The caller has checked `room`; a grant beyond it is a violation."""
        cost, service_class, need = request.cost, request.service_class, request.kv
        if cost > self.slots_total - self.leased - self.foreign:
            self.violations += 1
        lease = self._leases[lease_id] = Lease(lease_id, cost, self.epoch, request, now, need)
        self.granted[service_class.rank] += 1
        self.leased += cost
        if service_class is INTERACTIVE:
            self.interactive += cost
            self.interactive_prompts += request.prompt_tokens
        else:
            self._add_background(service_class, cost, now)
        self.unseen.append((now, need))
        self.unseen_blocks += need.prompt
        if need.reading:
            self.unseen_reading += need.reading
        if len(self.unseen) > MAX_UNSEEN_PROMPTS:
            self.count_oldest_as_seen()
        self.kv_prompts += need.prompt
        if need.swing:
            self.kv_swing += need.swing
        if need.output is None:
            self.kv_unknown += 1
        else:
            self.kv_outputs += need.output
        return lease

    def count_oldest_as_seen(self) -> None:
        """Removes the first unseen prompt: the reported usage includes it now."""
        _, need = self.unseen.popleft()
        self.unseen_blocks -= need.prompt
        self.unseen_reading -= need.reading

    def release(self, lease_id: str, now: float) -> Lease | None:
        """Ends a lease and returns it; None if it had ended before."""
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return None
        self.leased -= lease.cost
        request, need = lease.request, lease.kv
        if request is None:
            return lease
        if request.service_class is INTERACTIVE:
            self.interactive -= lease.cost
        else:
            self._add_background(request.service_class, -lease.cost, now)
        self.kv_prompts -= need.prompt
        if need.swing:
            self.kv_swing -= need.swing
        if need.output is None:
            self.kv_unknown -= 1
        else:
            self.kv_outputs -= need.output
        return lease

    def of(self, service_class: ServiceClass) -> int:
        """Returns the sequences of a class."""
        if service_class is INTERACTIVE:
            return self.interactive
        return self.bulk if service_class is BULK else self.idle

    def bulk_slot_s(self, now: float) -> float:
        """Returns the slot-seconds of bulk requests in this epoch, up to now."""
        return self._bulk_slot_s + self.bulk * now

    def abandon(self, lease_id: str) -> None:
        """Keeps the slots of a response that was cut short until the engine confirms its end."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.closing = True

    def adopt(self, lease_id: str, cost: int) -> None:
        """Books a lease that the engine reports; an unknown one is closing from the start."""
        if lease_id not in self._leases:
            self._leases[lease_id] = Lease(lease_id, cost, self.epoch, closing=True)
            self.leased += cost

    def get(self, lease_id: str) -> Lease | None:
        """Returns the lease, unless it has ended or is closing."""
        lease = self._leases.get(lease_id)
        return None if lease is None or lease.closing else lease

    def owns(self, lease_id: str) -> bool:
        """Whether this lease owns slots in the current epoch."""
        return lease_id in self._leases

    def all(self) -> Iterator[Lease]:
        """Returns all leases, in the order in which they were granted."""
        return iter(self._leases.values())

    @property
    def lease_count(self) -> int:
        return len(self._leases)

    def in_use(self) -> set[str]:
        """Returns the ids of all leases that are not closing."""
        return {lease.id for lease in self._leases.values() if not lease.closing}

    def closing(self) -> list[str]:
        """Returns the ids of leases whose end the engine has yet to confirm."""
        return [lease.id for lease in self._leases.values() if lease.closing]

    def observe_peak(self, peak: int, *, since_before: bool = False) -> None:
        """Records the most sequences that the engine ever ran; a rise beyond the slots is a
        violation. `since_before`: the peak precedes the connection to this engine."""
        if peak > max(self._peak, self.slots_total) and not since_before:
            self.violations += 1
        self._peak = peak

    def begin_epoch(self, epoch: str) -> None:
        """Forgets all leases: the engine restarted, and its requests are gone."""
        self.epoch = epoch
        self.foreign = self.foreign_interactive = 0
        self._leases.clear()
        self._reset_sums()

    def _add_background(self, service_class: ServiceClass, cost: int, now: float) -> None:
        """Adds the sequences of a bulk or an idle request; negative: it ends."""
        if service_class is BULK:
            self.bulk += cost
            self._bulk_slot_s -= cost * now
        else:
            self.idle += cost
