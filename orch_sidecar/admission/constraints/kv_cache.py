"""Decides whether the KV cache has room for a request.

Pure: times are seconds of a monotonic clock. Counts are blocks: the need of a request follows
from the engine's own groups of layers, and is corrected where the engine takes more.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, fsum, inf
from typing import ClassVar, Final

from orch_sidecar.admission.constraints.constraint import POLL_S, Ahead, Constraint, Occupancy
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.freed_slots import MAX_AGE_S, MAX_FRESH_LEASES
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.types import NO_KV_NEED, AdmissionRequest, EngineReport, KvNeed
from vllm_plugin.contracts.kv_cache import KvCache

# The engine preempts when the cache is full: the rest is a margin for what cannot be predicted.
FULL_USAGE: Final = 0.9
# For how long the usage is not trusted after a preemption.
BACK_OFF_S: Final = 1.0
# From a grant to the first report that includes it: the way to the engine, a step, the way back.
UNSEEN_S: Final = 0.05
# A preemption costs a whole prefill: shrink by a quarter, and recover over half a minute.
SHRINK_FACTOR: Final = 0.75
RECOVERY_S: Final = 30.0
# A cache that is half full shows how far usage exceeds the estimates, and leaves time to react. The
# blocks of a lease that ended may count as used for some more steps.
MIN_SHOWN_USAGE: Final = 0.5
SETTLING_S: Final = 0.5


@dataclass(slots=True)
class _Ends:
    """When running requests will end, as predicted after so many `grants`: in how many seconds
    (`at_s`), and the blocks that are free by then. `per_s`: blocks per second, while others take
    the places of those that end."""

    predicted_at: float = -inf
    grants: int = 0
    at_s: list[float] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    per_s: float = 1e-3

    def freed_in_s(self, blocks: float) -> float:
        """Returns in how many seconds so many blocks are free, if nobody takes any."""
        at = bisect_left(self.freed, blocks)
        return self.at_s[at] if at < len(self.at_s) else inf


class KvBudget(Constraint):
    """Keeps the KV blocks that all leases will have taken by their ends within the cache.

    A request fits while these blocks and its own stay within the cache. Prompts that share a prefix
    take less than that: so it also fits if the current usage and all that is still to be generated
    stay within the cache, unless the cache is nearly full or the engine preempted a moment ago.

    Where the engine takes more than estimated (its groups of layers are unknown, or outputs are
    longer than earlier ones), its usage shows that: then the estimates may fill only the
    corresponding share of the cache.
    """

    reason: ClassVar[str] = "kv"

    def __init__(self, ledger: Ledger, service_times: ServiceTimes) -> None:
        self.cache: KvCache | None = None
        self._ledger = ledger
        self._service_times = service_times
        self._predicted_ends = _Ends()
        self._has_bounded_groups = False  # of layers, in the cache
        self._block_tokens = 0  # above 0 where the blocks of a sequence follow from it alone
        self._usage = 0.0
        self._known_preemptions: int | None = None
        self._preempted_at = self._shrunk_at = float("-inf")
        self._share = 1.0  # of the cache that estimates may fill: as it was last lowered
        self._lowered_at = float("-inf")
        # Since when usage has exceeded the estimates, and the largest ratio of both since then.
        self._exceeded_from: float | None = None
        self._exceeded = 0.0

    def need(self, prompt_tokens: float, output_tokens: float | None, sequences: int) -> KvNeed:
        """Estimates the blocks of a request.

        `prompt_tokens`: of all prompts; `output_tokens`: of each sequence, None if unknown.
        """
        cache = self.cache
        if cache is None:
            return NO_KV_NEED
        each = prompt_tokens / sequences
        if self._block_tokens and output_tokens is not None:  # as of most models
            prompt = ceil(each / self._block_tokens)
            grows = ceil((each + output_tokens) / self._block_tokens) - prompt
            return KvNeed(sequences * prompt, 0, sequences * grows, 0)
        prompt = cache.blocks_of(each)
        reading, swing, output = 0, 0, None
        if output_tokens is not None:
            output = sequences * (cache.blocks_of(each + output_tokens) - prompt)
        if self._has_bounded_groups:
            reading = cache.blocks_of(each, reading=True) - prompt
            swing = cache.swing(each + (output_tokens or 0))
        return KvNeed(sequences * prompt, sequences * reading, output, sequences * swing)

    def begin_epoch(self) -> None:
        self._known_preemptions = None
        self._share, self._lowered_at = 1.0, float("-inf")
        self._preempted_at = self._shrunk_at = float("-inf")
        self._exceeded_from = None

    def reported(self, report: EngineReport, now: float) -> None:
        """The engine reported its cache, how full it is, and its preemptions so far."""
        if report.kv is not self.cache:
            self._block_tokens = 0 if report.kv is None else report.kv.block_tokens
        cache = self.cache = report.kv
        self.inactive = cache is None
        self._usage = report.kv_usage
        self._has_bounded_groups = cache is not None and any(
            each.blocks_most for each in cache.groups
        )
        arriving = 0  # sequences of leases that are on their way to the engine's scheduler
        if report.scheduled is not None:
            arriving = max(0, self._ledger.leased - report.scheduled)
        self._forget_seen(report.prefilling + arriving, now)
        before = self._usable_share(now)
        self._compare(self._estimated_share(report, report.waiting + arriving), now)
        known, preemptions = self._known_preemptions, report.preemptions_total
        if known is not None and preemptions > known:
            self._preempted_at = now
            if now - self._shrunk_at >= BACK_OFF_S:  # before that, it has had no effect yet
                self._shrunk_at = now
                self._lower_share(min(self._usable_share(now), before * SHRINK_FACTOR), now)
        self._known_preemptions = preemptions

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        # The leases that are assumed to have ended have freed their blocks, too.
        return not occupancy.freed and not self.fits(request.kv, now)

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        return now + POLL_S  # a lowered share recovers without any event

    def starts_in_s(self, request: AdmissionRequest, ahead: Ahead, now: float) -> float | None:
        """Predicts when enough running requests will have ended for it, and for those that go
        before it, some of which end meanwhile."""
        cache, need = self.cache, request.kv
        if cache is None:
            return 0.0
        before = 0
        if ahead.sequences:
            each = ahead.output_tokens / ahead.sequences
            before = self.need(ahead.prompt_tokens, each, ahead.sequences).at_end
        if self.fits(KvNeed(need.prompt + before, need.reading, need.output), now):
            return 0.0
        ends = self._ends(now)
        if not ends.at_s:  # of its own requests unknown: slots show the rate; others': nothing does
            return 0.0 if self._ledger.leased > self._ledger.adopted else None
        lacking = self._ledger.kv_committed + need.at_end
        lacking += self._reading_blocks(cache, need.reading)
        lacking += cache.blocks_kept - int(cache.blocks_total * self._usable_share(now))
        own_s = 0.0 if self.fits(need, now) else min(ends.freed_in_s(lacking), ends.at_s[-1])
        both_s = min(ends.freed_in_s(lacking + before), (lacking + before) / ends.per_s)
        return max(own_s, both_s)

    def _ends(self, now: float) -> _Ends:
        ledger, ends, times = self._ledger, self._predicted_ends, self._service_times
        changed = ends.grants != ledger.grants and ledger.lease_count <= MAX_FRESH_LEASES
        if changed or now - ends.predicted_at > MAX_AGE_S:
            found = []
            for lease in ledger.all():
                if lease.request is not None:
                    remaining_s = times.remaining_s(lease, lease.request, now)
                    if remaining_s is not None:
                        took_s = max(now - lease.granted_at + remaining_s, 1e-3)
                        found.append((remaining_s, lease.kv.at_end, lease.kv.at_end / took_s))
            found.sort()
            ends = self._predicted_ends = _Ends(
                now,
                ledger.grants,
                [at_s for at_s, _, _ in found],
                list(accumulate(blocks for _, blocks, _ in found)),
                fsum(per_s for _, _, per_s in found) or 1e-3,
            )
        return ends

    def text(self) -> str:
        return "room in the KV cache: the running requests are expected to fill it"

    def fits(self, need: KvNeed, now: float) -> bool:
        """Whether a request with this need fits."""
        cache = self.cache
        if cache is None:
            return True
        limit = float(cache.blocks_total)
        if self._share != 1.0:
            limit *= self._usable_share(now)
        reading = self._reading_blocks(cache, need.reading)
        in_cache = self._usage * cache.blocks_total + self._ledger.unseen_blocks
        least = need.prompt + reading + cache.blocks_kept
        if cache.blocks_kept and in_cache and in_cache + least > cache.blocks_total:
            return False  # beside others the engine would not begin it
        own = need.prompt + (need.output or 0) + reading
        if need.output is not None and self._ledger.kv_committed + own <= limit:
            return True
        if self._usage >= FULL_USAGE or now - self._preempted_at < BACK_OFF_S:
            return False
        return in_cache + self._ledger.kv_growth + own <= limit

    def _compare(self, share: float | None, now: float) -> None:
        """Lowers the share that estimates may fill once usage has exceeded them for long enough."""
        if share is None or share >= self._usable_share(now):
            self._exceeded_from = None
        elif self._exceeded_from is None:
            self._exceeded_from, self._exceeded = now, share
        else:
            self._exceeded = max(self._exceeded, share)
            if now - self._exceeded_from >= SETTLING_S:
                self._exceeded_from = None
                self._lower_share(self._exceeded, now)

    def _estimated_share(self, report: EngineReport, unbegun: int) -> float | None:
        """Returns the ratio of estimated to used blocks; None while the usage does not show it.

        `unbegun`: sequences of leases that have no block yet.
        """
        ledger, cache = self._ledger, self.cache
        if cache is None or self._usage < MIN_SHOWN_USAGE or ledger.kv_unknown:
            return None
        if report.foreign or ledger.adopted:  # these may have blocks, or none yet, too
            return None
        counted = ledger.kv_committed - (_fewest_blocks(ledger, unbegun) if unbegun else 0)
        if counted <= 0:
            return None
        taken = self._usage * cache.blocks_total - self._reading_blocks(cache)
        return counted / taken if taken > 0 else None

    def _lower_share(self, share: float, now: float) -> None:
        self._share, self._lowered_at = share, now

    def _forget_seen(self, unread: int, now: float) -> None:
        """Drops prompts that the usage includes: those granted long enough ago, except the latest
        `unread` sequences."""
        ledger = self._ledger
        while len(ledger.unseen) > unread and now - ledger.unseen[0][0] > UNSEEN_S:
            ledger.count_oldest_as_seen()

    def _reading_blocks(self, cache: KvCache, more: int = 0) -> int:
        """Returns the blocks that prompts take during prefill beyond those that they keep."""
        reading = self._ledger.unseen_reading + more
        return min(reading, cache.reading_most) if reading else 0

    def _usable_share(self, now: float) -> float:
        if self._share == 1.0:
            return 1.0
        recovered = (now - self._lowered_at) / RECOVERY_S
        return min(1.0, self._share + (1 - self._share) * min(1.0, recovered))


def _fewest_blocks(ledger: Ledger, sequences: int) -> int:
    """Returns the estimated blocks of those `sequences` leased sequences that have the fewest.

    Nobody knows which ones the engine has not begun: a long prompt in prefill must not look like
    many short ones that exceed their estimates.
    """
    leases = (lease for lease in ledger.all() if lease.request is not None)
    counted = 0
    for blocks, cost in sorted((lease.kv.at_end // lease.cost, lease.cost) for lease in leases):
        counted += blocks * min(cost, sequences)
        sequences -= cost
        if sequences <= 0:
            break
    return counted
