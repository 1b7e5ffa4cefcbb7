"""Room in the KV cache.

Pure: times are seconds of a monotonic clock. Counts are blocks: what a request takes of them is
computed from the engine's own groups of layers, and corrected where the engine takes more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from orch_sidecar.admission.types import KvCache

# The engine preempts when the cache is full. That much is left to what cannot be foreseen.
KV_FULL: Final = 0.9
QUIET_S: Final = 1.0
# Between a grant and a report that has it: the way to the engine, a step, the way back.
UNSEEN_S: Final = 0.05
MOST_UNSEEN: Final = 4096  # no engine has so many prompts still to read
# A preemption costs a whole prefill: back off by a quarter, and come back over half a minute.
SHRINK: Final = 0.75
RECOVERY_S: Final = 30.0
# A cache that is half full shows how much more is taken of it than was counted, and leaves time
# to act on it. Blocks of a lease that ended may be in the usage for some steps more.
SHOWS_FROM: Final = 0.5
SETTLED_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class KvNeed:
    """Blocks that a request takes of the KV cache.

    `prompt`: when its prompts were read. `reading`: more than that while they are read. `output`:
    more than that at its end; None: nobody knows. `swing`: of these, what it may not have now and
    take again.
    """

    prompt: int = 0
    reading: int = 0
    output: int | None = None
    swing: int = 0

    @property
    def counted(self) -> int:
        """Blocks at its end, as far as they are known."""
        return self.prompt + (self.output or 0)


NO_NEED: Final = KvNeed()


class KvBudget:
    """The blocks that leases will have in the KV cache at their ends.

    A request fits while these and its own stay within the cache. Prompts that share a prefix
    take less than that: so it also fits if the cache as it is now, and all that is still to be
    generated, stay within it, unless the cache is nearly full or was just now too small.

    Where the engine takes more than is counted (its groups of layers are not known, answers are
    longer than their like were), the usage shows it: then no more may be counted than the same
    share of the whole cache.
    """

    def __init__(self) -> None:
        self.cache: KvCache | None = None
        self._bounded = False  # some of its groups
        self.preemptions = 0  # seen since the sidecar started
        self.committed = 0  # blocks of all leases at their ends
        self._usage = 0.0
        self._known_preemptions: int | None = None
        self._preempted_at = self._shrunk_at = float("-inf")
        self._share = 1.0  # of the cache that may be counted, when it was last lowered
        self._lowered_at = float("-inf")
        self._growth = 0  # of what leases have in the cache after their prompts
        self._open = 0  # leases of which nobody knows how much they will generate
        # Since when more was taken than was counted, and the counted share of it, at the most.
        self._exceeded_from: float | None = None
        self._exceeded = 0.0
        # Prompts granted that the reported usage need not hold yet: when, and what they take.
        self._unseen: deque[tuple[float, KvNeed]] = deque()
        self._unseen_blocks = 0
        self._unseen_reading = 0

    def need(self, prompt_tokens: float, output_tokens: float | None, sequences: int) -> KvNeed:
        """What a request takes. `prompt_tokens`: of all prompts; `output_tokens`: of each."""
        cache = self.cache
        if cache is None:
            return NO_NEED
        each = prompt_tokens / sequences
        end = each + (output_tokens or 0)
        prompt, reading, swing = cache.blocks_of(each), 0, 0
        if self._bounded:
            reading = cache.blocks_while_read(each) - prompt
            swing = cache.swing(end)
        output = None if output_tokens is None else sequences * (cache.blocks_of(end) - prompt)
        return KvNeed(sequences * prompt, sequences * reading, output, sequences * swing)

    def begin_epoch(self) -> None:
        """Another engine: an empty cache."""
        self._known_preemptions = None
        self._share, self._lowered_at = 1.0, float("-inf")
        self._preempted_at = self._shrunk_at = float("-inf")
        self._exceeded_from = None
        self.committed = self._growth = self._open = 0
        self._unseen_blocks = self._unseen_reading = 0
        self._unseen.clear()

    def reported(
        self,
        cache: KvCache | None,
        usage: float,
        preemptions: int,
        now: float,
        unread: int = 0,
        unbegun: int | None = 0,
        needs: Iterable[tuple[KvNeed, int]] = (),
    ) -> None:
        """The engine reports how full its cache is, and how often it has preempted.

        `unread`: how many prompts it may not have read to their ends. `unbegun`: sequences of
        leases that have no block yet; None: others than leases may have some, too. `needs`: of all
        leases, with their sequences; looked at only where some are not begun.
        """
        self.cache, self._usage = cache, usage
        self._bounded = cache is not None and any(each.blocks_most for each in cache.groups)
        self._forget_seen(unread, now)
        before = self._factor(now)
        self._compare(unbegun, needs, now)
        known = self._known_preemptions
        if known is not None and preemptions > known:
            self.preemptions += preemptions - known
            self._preempted_at = now
            if now - self._shrunk_at >= QUIET_S:  # what follows is not yet an effect of that
                self._shrunk_at = now
                self._lower(min(self._factor(now), before * SHRINK), now)
        self._known_preemptions = preemptions

    def granted(self, need: KvNeed, now: float) -> None:
        if need.output is None:
            self._open += 1
        self._growth += (need.output or 0) + need.swing
        self.committed += need.counted
        if len(self._unseen) >= MOST_UNSEEN:
            self._forget_oldest()
        self._unseen.append((now, need))
        self._unseen_blocks += need.prompt
        self._unseen_reading += need.reading

    def released(self, need: KvNeed) -> None:
        if need.output is None:
            self._open -= 1
        self._growth -= (need.output or 0) + need.swing
        self.committed -= need.counted

    def fits(self, need: KvNeed, now: float) -> bool:
        """Whether a request fits."""
        cache = self.cache
        if cache is None:
            return True
        limit: float = cache.blocks_total
        if self._share != 1.0:
            limit *= self._factor(now)
        own = need.counted + self._reading(cache, need.reading)
        if need.output is not None and self.committed + own <= limit:
            return True
        if self._usage >= KV_FULL or now - self._preempted_at < QUIET_S:
            return False
        in_cache = self._usage * cache.blocks_total + self._unseen_blocks
        return in_cache + self._growth + own <= limit

    def _compare(
        self, unbegun: int | None, needs: Iterable[tuple[KvNeed, int]], now: float
    ) -> None:
        """Lowers what may be counted to its share of what is taken, if that exceeds it for long."""
        share = self._share_of_taken(unbegun, needs)
        if share is None or share >= self._factor(now):
            self._exceeded_from = None
        elif self._exceeded_from is None:
            self._exceeded_from, self._exceeded = now, share
        else:
            self._exceeded = max(self._exceeded, share)
            if now - self._exceeded_from >= SETTLED_S:
                self._exceeded_from = None
                self._lower(self._exceeded, now)

    def _share_of_taken(
        self, unbegun: int | None, needs: Iterable[tuple[KvNeed, int]]
    ) -> float | None:
        """The counted share of what is taken; None while the usage does not show it."""
        if self.cache is None or self._usage < SHOWS_FROM or self._open or unbegun is None:
            return None
        counted = self.committed - (_counted_least(needs, unbegun) if unbegun else 0)
        if counted <= 0:
            return None
        taken = self._usage * self.cache.blocks_total - self._reading(self.cache)
        return counted / taken if taken > 0 else None

    def _lower(self, share: float, now: float) -> None:
        self._share, self._lowered_at = share, now

    def _forget_seen(self, unread: int, now: float) -> None:
        """The usage holds what was granted long enough before it, but for the latest of them if
        so many are still to be read."""
        unseen = self._unseen
        while len(unseen) > unread and now - unseen[0][0] > UNSEEN_S:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, need = self._unseen.popleft()
        self._unseen_blocks -= need.prompt
        self._unseen_reading -= need.reading

    def _reading(self, cache: KvCache, more: int = 0) -> int:
        """Blocks that prompts take while they are read, beyond those that they keep."""
        reading = self._unseen_reading + more
        return min(reading, cache.reading_most) if reading else 0

    def _factor(self, now: float) -> float:
        if self._share == 1.0:
            return 1.0
        recovered = (now - self._lowered_at) / RECOVERY_S
        return min(1.0, self._share + (1 - self._share) * min(1.0, recovered))


def _counted_least(needs: Iterable[tuple[KvNeed, int]], sequences: int) -> int:
    """Blocks that were counted for so many of these sequences, those with the fewest.

    Which of them the engine has not begun is not known: a long prompt that is being read must not
    look like many short ones that take more than was counted.
    """
    counted = 0
    for blocks, cost in sorted((need.counted // cost, cost) for need, cost in needs):
        counted += blocks * min(cost, sequences)
        sequences -= cost
        if sequences <= 0:
            break
    return counted
