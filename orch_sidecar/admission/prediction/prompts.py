"""Models how fast an engine reads the prompts that it has been sent.

Pure: times are seconds of a monotonic clock. Prefill is one resource that all requests share: a
prompt is read after those sent before it, at the measured rate, between the decodes of the running
sequences. Prompts are counted in tokens, from the start: each has a place in the order in which
they are read. Where the engine reports how many prompts it has yet to read, that corrects the model
(it reads cached prefixes in no time).
"""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Final

from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease

# Of an engine that does not report the tokens of a step: prompts that it reads at once.
_PROMPTS_PER_STEP: Final = 4
# Of about so many prompts, the last ones, it is known which part of them the engine had to read.
_RECENT_PROMPTS: Final = 64
_MIN_READ_SHARE: Final = 0.01


class UnreadPrompts:
    """The prompts that one engine has been sent and has yet to read."""

    def __init__(self) -> None:
        self.tokens_per_s: float | None = None  # without decodes
        self.clears_at = float("-inf")  # when all will be read
        self._token_s = 0.0  # seconds per token beside decodes; 0: unknown
        self._slowest_s = 0.0  # the same of one prompt alone
        self._chunk: int | None = None
        self._step: int | None = None
        self._sent = 0.0  # tokens since the start
        self._places: deque[float] = deque()  # in tokens since the start: the ends of prompts
        # Tokens of late, and those of them that the engine had read before the model would have.
        self._counted = self._skipped = 0.0

    def reported(
        self, report: EngineReport, leased: int, slowness: float, step_s: float | None, now: float
    ) -> None:
        """The engine reported its rate, and how many prompts it has yet to read."""
        left = self.left(now)
        self.tokens_per_s = rate = report.prefill_tokens_per_s
        chunk = self._chunk = report.chunk_tokens
        self._step = report.step_tokens
        if self._step is None and chunk is not None:
            self._step = _PROMPTS_PER_STEP * chunk
        self._token_s = self._slowest_s = 0.0
        if rate is not None:
            self._token_s = self._slowest_s = slowness / rate
            if chunk is not None and self._step is not None and step_s is not None:
                self._token_s += step_s / self._step
                self._slowest_s += step_s / chunk
        on_their_way = 0 if report.scheduled is None else max(0, leased - report.scheduled)
        unread, places, modelled = report.prefilling + on_their_way, self._places, left
        while len(places) > unread:
            left = min(left, self._sent - places.popleft())
        self._skipped += modelled - left
        self.clears_at = now + max(0.0, left) * self._token_s

    @property
    def read_share(self) -> float:
        """The part of the prompts of late that the engine had to read, and had not cached."""
        share = 1 - self._skipped / self._counted if self._counted else 1.0
        return max(share, _MIN_READ_SHARE)

    def left(self, now: float) -> float:
        """Unread tokens."""
        return (self.clears_at - now) / self._token_s if now < self.clears_at else 0.0

    def left_after(self, tokens: float, seconds: float) -> float:
        """How many of so many tokens are unread after that time."""
        return max(0.0, tokens - seconds / self._token_s) if self._token_s else 0.0

    def read(self, now: float) -> float:
        """Tokens read since the start."""
        return self._sent - self.left(now)

    def sent(self, lease: Lease, tokens: int, now: float) -> None:
        """The engine is sent the prompt of a lease."""
        token_s = self._token_s
        if not token_s:
            lease.read_from = lease.read_to = self._sent
            return
        clears_at = self.clears_at if now < self.clears_at else now
        lease.read_from = self._sent - (clears_at - now) / token_s
        self.clears_at = clears_at + tokens * token_s
        self._sent = lease.read_to = self._sent + tokens
        self._counted += tokens - self._counted / _RECENT_PROMPTS
        self._skipped -= self._skipped / _RECENT_PROMPTS
        self._places.append(lease.read_to)

    def cut(self, lease: Lease, tokens: int, now: float) -> None:
        """A lease ended early: what is unread of its prompt will not be read."""
        unread = min(float(tokens), lease.read_to - self.read(now))
        if unread > 0 and now < self.clears_at:
            self.clears_at -= min(unread, self.left(now)) * self._token_s

    def left_of(self, lease: Lease, now: float) -> float:
        """Unread tokens of the prompt of a lease."""
        return max(0.0, lease.read_to - self.read(now))

    def may_be_late(
        self, request: AdmissionRequest, times: float, limit_s: float, now: float
    ) -> bool:
        """Whether a prompt that is sent now may be read later than that, for those before it, if it
        counts so many times."""
        before_s, own_s = self.clears_at - now, request.prompt_tokens * self._slowest_s
        return before_s > 0 and before_s + times * own_s > limit_s / 2

    def reading_s(self, before: float, prompt: int, step_s: float) -> float:
        """Seconds until a prompt is read, and its first token generated, after `before` others.

        `step_s`: of the decodes of one step.
        """
        rate, tokens, steps = self.tokens_per_s, before + prompt, 1.0
        if self._chunk is not None and self._step is not None:
            steps = max(1.0, ceil(prompt / self._chunk), tokens / self._step)
        return (tokens / rate if rate else 0.0) + steps * step_s

    def stretched(self, decoding_s: float, tokens: float, step_s: float) -> float:
        """Seconds in which an engine decodes for `decoding_s`, with `tokens` to read meanwhile:
        until these are read, a step takes as long as its decodes and its share of them."""
        rate = self.tokens_per_s
        if not rate or tokens <= 0 or decoding_s <= 0:
            return decoding_s
        reading_s = tokens / rate
        if self._step is not None and step_s > 0:
            reading_s = min(reading_s, decoding_s / step_s * self._step / rate)
        return decoding_s + reading_s
