"""Measures how much time an engine needs for the prompts that are shorter than a given one.

Pure: times are seconds of a monotonic clock. An engine reads prompts in the order in which it gets
them. Where it cannot read all in time, most requests are in time if the shortest go first. So a
prompt is treated as if shorter ones that arrive meanwhile went before it: where these take a share
p of the time, it takes 1 / (1 - p) of its own (the busy period of a queue with priorities).

An engine generates less while it reads. So the more slots bulk requests have or wait for, the less
of its time interactive prompts get: SHARE_BESIDE_BULK where bulk requests ask for all slots. API
keys share that time by weight: another key's prompts count only up to what this key asked for.
"""

from __future__ import annotations

from collections import deque
from math import fsum
from typing import Final

from orch_sidecar.admission.types import AdmissionRequest

SHARE_BESIDE_BULK: Final = 0.55
# For how long a prompt counts, and how many do at most: enough to know the load, and to follow it.
WINDOW_S: Final = 10.0
MAX_PROMPTS: Final = 64
# A higher factor would mean that long prompts are never served.
MAX_SHORTER_FACTOR: Final = 8.0


class ShorterPrompts:
    """The interactive prompts that arrived recently for one engine, served or not."""

    def __init__(self) -> None:
        # With the times of their arrival; without retries.
        self.recent: deque[tuple[float, AdmissionRequest]] = deque(maxlen=MAX_PROMPTS)

    def factor(
        self, request: AdmissionRequest, tokens_per_s: float, bulk: float, now: float
    ) -> float:
        """Returns how long a new prompt waits for shorter ones, as a multiple of its own time.

        `tokens_per_s`: what the engine reads. `bulk`: the share of the slots (0 to 1) that bulk
        requests have or wait for.
        """
        recent = self.recent
        while recent and now - recent[0][0] > WINDOW_S:
            recent.popleft()
        shorter = self._shorter_tokens(request)
        seconds = now - recent[0][0] if len(recent) == MAX_PROMPTS else WINDOW_S
        readable = tokens_per_s * seconds * (1 - (1 - SHARE_BESIDE_BULK) * bulk)
        if shorter * (1 + MAX_SHORTER_FACTOR) > readable * MAX_SHORTER_FACTOR:
            return MAX_SHORTER_FACTOR
        return shorter / (readable - shorter) if shorter else 0.0

    def _shorter_tokens(self, request: AdmissionRequest) -> float:
        """Returns the tokens of prompts that would be read before that of a request: shorter ones
        of its key, and those of other keys up to what its key has asked for, by weight."""
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
        return shorter + fsum(min(total, weights[of] * level) for of, total in others.items())
