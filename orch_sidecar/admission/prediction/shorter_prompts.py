"""Measures the time that an engine needs for the prompts which are shorter than a given one.

Pure: times are seconds of a monotonic clock. An engine reads prompts in the order in which it gets
them; where it cannot read all in time, most requests are in time if it reads the shortest first. So
a prompt counts with the shorter ones that come until it would be read then: where these take a part
p of the time, it takes 1 / (1 - p) of its own (the busy period of a queue with priorities).

While an engine reads it generates less. So of its time, interactive prompts have the less, the more
slots bulk requests have or wait for: SHARE_BESIDE_BULK where these ask for all. API keys share that
time by weight: another key's prompts count no further than that key has asked for as much.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from orch_sidecar.admission.types import AdmissionRequest

SHARE_BESIDE_BULK: Final = 0.55
# Prompts of so many seconds count, and so many of them: enough to follow the load, and to know it.
WINDOW_S: Final = 10.0
MAX_PROMPTS: Final = 64
# A prompt counts no more often than that beyond once, for else long ones would never be served.
MAX_SHORTER_FACTOR: Final = 8.0


class ShorterPrompts:
    """The interactive prompts that came to one engine of late, whatever became of them."""

    def __init__(self) -> None:
        # When each came; but for those that were retries.
        self.recent: deque[tuple[float, AdmissionRequest]] = deque(maxlen=MAX_PROMPTS)

    def factor(
        self, request: AdmissionRequest, tokens_per_s: float, bulk: float, now: float
    ) -> float:
        """How often the prompt of a request that arrives now counts beyond once.

        `tokens_per_s`: that the engine reads. `bulk`: the part of the slots (0 to 1) that bulk
        requests have or wait for.
        """
        recent = self.recent
        while recent and now - recent[0][0] > WINDOW_S:
            recent.popleft()
        shorter = self._shorter(request)
        seconds = now - recent[0][0] if len(recent) == MAX_PROMPTS else WINDOW_S
        readable = tokens_per_s * seconds * (1 - (1 - SHARE_BESIDE_BULK) * bulk)
        if shorter * (1 + MAX_SHORTER_FACTOR) > readable * MAX_SHORTER_FACTOR:
            return MAX_SHORTER_FACTOR
        return shorter / (readable - shorter) if shorter else 0.0

    def _shorter(self, request: AdmissionRequest) -> float:
        """Tokens of the prompts that would be read before that of a request: the shorter ones of
        its key, and those of the other keys up to what its key has asked for, by weight."""
        key, own = request.key, request.prompt_tokens
        shorter, asked = 0, own
        others: dict[bytes, int] = {}
        weights: dict[bytes, float] = {}
        for _, each in self.recent:
            of, tokens = each.key, each.prompt_tokens
            if of != key:
                others[of] = others.get(of, 0) + tokens
                weights[of] = each.weight
            elif tokens <= own:
                asked += tokens
                shorter += tokens if tokens < own else 0
        level = asked / request.weight
        return shorter + sum(min(total, weights[of] * level) for of, total in others.items())
