"""What else than slots is scarce: room in the KV cache, and the engine's time for prompts.

Pure: times are seconds of a monotonic clock. Counts are tokens.
"""

from __future__ import annotations

from collections import deque
from typing import Final

# The engine preempts when the cache is full. That much is left to what cannot be foreseen.
KV_FULL: Final = 0.9
QUIET_S: Final = 1.0
# Between a grant and a report that has it: the way to the engine, a step, the way back.
UNSEEN_S: Final = 0.05
MOST_UNSEEN: Final = 4096  # no engine has so many prompts still to read
# A preemption costs a whole prefill: back off by a quarter, and come back over half a minute.
SHRINK: Final = 0.75
LEAST: Final = 0.25
RECOVERY_S: Final = 30.0

# Bulk prompts may keep the engine busy for so long while interactive requests wait or stream:
# a quarter of the time in which an interactive answer must begin, and never long enough for a
# reader to notice.
STALL_SHARE: Final = 0.25
LONGEST_STALL_S: Final = 0.5


class KvBudget:
    """The tokens that leases will have in the KV cache at their ends.

    A request fits while these and its own stay within the cache. Prompts that share a prefix
    take less than that: so it also fits if the cache as it is now, and all that is still to be
    generated, stay within it, unless the cache is nearly full or was just now too small.
    """

    def __init__(self) -> None:
        self.total: int | None = None
        self.block_tokens = 1
        self.preemptions = 0  # seen since the sidecar started
        self._usage = 0.0
        self._known_preemptions: int | None = None
        self._preempted_at = float("-inf")
        self._shrunk_to = 1.0
        self._prompts = 0.0
        self._outputs = 0.0
        # Prompts granted that the reported usage need not hold yet: when, and of how many tokens.
        self._unseen: deque[tuple[float, float]] = deque()
        self._unseen_tokens = 0.0

    @property
    def committed(self) -> float:
        """Tokens of all leases at their ends."""
        return self._prompts + self._outputs

    def begin_epoch(self) -> None:
        """Another engine: an empty cache."""
        self._known_preemptions = None
        self._shrunk_to, self._preempted_at = 1.0, float("-inf")
        self._prompts = self._outputs = self._unseen_tokens = 0.0
        self._unseen.clear()

    def reported(
        self, total: int | None, usage: float, preemptions: int, now: float, unread: int = 0
    ) -> None:
        """The engine says how full its cache is, and how often it has preempted.

        `unread`: how many prompts it may not have read to their ends.
        """
        self.total, self._usage = total, usage
        self._forget_seen(unread, now)
        known = self._known_preemptions
        if known is not None and preemptions > known:
            self.preemptions += preemptions - known
            self._shrunk_to = max(LEAST, self._factor(now) * SHRINK)
            self._preempted_at = now
        self._known_preemptions = preemptions

    def granted(self, prompt: float, output: float, now: float) -> None:
        self._prompts += prompt
        self._outputs += output
        if len(self._unseen) >= MOST_UNSEEN:
            self._unseen_tokens -= self._unseen.popleft()[1]
        self._unseen.append((now, prompt))
        self._unseen_tokens += prompt

    def released(self, prompt: float, output: float) -> None:
        self._prompts -= prompt
        self._outputs -= output

    def fits(self, prompt: float, output: float | None, now: float) -> bool:
        """Whether a request fits. `output`: tokens it will generate, None if nobody knows."""
        if self.total is None:
            return True
        limit: float = self.total
        if self._shrunk_to != 1.0:
            limit *= self._factor(now)
        if output is not None and self._prompts + self._outputs + prompt + output <= limit:
            return True
        if self._usage >= KV_FULL or now - self._preempted_at < QUIET_S:
            return False
        in_cache = self._usage * self.total + self._unseen_tokens
        return in_cache + self._outputs + prompt + (output or 0.0) <= limit

    def _forget_seen(self, unread: int, now: float) -> None:
        """The usage holds what was granted long enough before it, but for the latest of them if
        so many are still to be read."""
        unseen = self._unseen
        while len(unseen) > unread and now - unseen[0][0] > UNSEEN_S:
            self._unseen_tokens -= unseen.popleft()[1]
        if not unseen:
            self._unseen_tokens = 0.0  # whatever rounding has left

    def _factor(self, now: float) -> float:
        if self._shrunk_to == 1.0:
            return 1.0
        recovered = (now - self._preempted_at) / RECOVERY_S
        return min(1.0, self._shrunk_to + (1 - self._shrunk_to) * min(1.0, recovered))


class PrefillBudget:
    """Bulk prompts that the engine was given and has yet to read.

    Drains at the engine's measured rate; until that is known, one prompt at a time.
    """

    def __init__(self) -> None:
        self.tokens_per_s: float | None = None
        self._level = 0.0
        self._at = 0.0

    def begin_epoch(self) -> None:
        """Another engine: it was given nothing yet."""
        self._level = 0.0

    def granted(self, tokens: float, now: float) -> None:
        self._level = self._left(now) + tokens
        self._at = now

    def settled(self) -> None:
        """A bulk request ended: without a rate, this says that its prompt was read."""
        if self.tokens_per_s is None:
            self._level = 0.0

    def fits(self, tokens: float, stall_s: float, now: float) -> bool:
        """Whether a prompt may be admitted beside interactive requests; one always may."""
        left = self._left(now)
        rate = self.tokens_per_s
        return left <= 0 or (rate is not None and left + tokens <= rate * stall_s)

    def fits_at(self, tokens: float, stall_s: float, now: float) -> float | None:
        """When it will fit, at the latest; None while no rate is known."""
        rate = self.tokens_per_s
        if rate is None:
            return None
        left = self._left(now)
        return now + min(left, max(0.0, left + tokens - rate * stall_s)) / rate

    def _left(self, now: float) -> float:
        drained = (now - self._at) * (self.tokens_per_s or 0.0)
        return max(0.0, self._level - drained)


def stall_s(ttft_p95_ms: float | None) -> float:
    """For how long bulk prompts may keep the engine busy, by the interactive SLO."""
    if ttft_p95_ms is None:
        return LONGEST_STALL_S
    return min(LONGEST_STALL_S, STALL_SHARE * ttft_p95_ms / 1000)
