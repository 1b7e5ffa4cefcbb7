"""Models how fast an engine reads the prompts that it is sent, and how much of that is for others.

Pure: times are seconds of a monotonic clock. All requests share the prefill: a prompt is read after
those sent before it, at the measured rate, between the decodes of the running sequences. A prompt
is known by its place in the sequence of all prompt tokens since the start. Reports of how many
prompts the engine has yet to read correct the model (cached prefixes are read in no time).

Where an engine cannot read all prompts in time, most requests are in time if the shortest go first.
So a new prompt is treated as if shorter ones that arrive meanwhile went before it: where these take
a share p of the time, it takes 1 / (1 - p) of its own (the busy period of a queue with priorities).

An engine generates less while it reads. So the more slots bulk requests have or wait for, the less
of its time interactive prompts get: SHARE_BESIDE_BULK where bulk requests ask for all slots. API
keys share that time by weight: another key's prompts count only up to what this key asked for.
"""

from __future__ import annotations

from collections import deque
from math import ceil, fsum
from typing import Final

from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease

# Prompts that an engine reads at once if it does not report the tokens of a step.
_PROMPTS_PER_STEP: Final = 4
# Over about this many recent prompts it is known which share of them the engine had to read.
_RECENT_PROMPTS: Final = 64
_MIN_READ_SHARE: Final = 0.01

SHARE_BESIDE_BULK: Final = 0.55
# For how long a prompt counts for longer ones, and how many do at most: enough to know the load,
# and to follow it.
WINDOW_S: Final = 10.0
MAX_PROMPTS: Final = 64
# A higher factor would mean that long prompts are never served.
MAX_SHORTER_FACTOR: Final = 8.0


class UnreadPrompts:
    """The prompts that one engine has been sent and has yet to read."""

    def __init__(self) -> None:
        self.tokens_per_s: float | None = None  # without decodes
        self.clears_at = float("-inf")  # when all will be read
        self._token_s = 0.0  # seconds per token between decodes; 0: unknown
        self._lone_token_s = 0.0  # the same of a single prompt
        self._chunk_tokens: int | None = None
        self._step_tokens: int | None = None
        self._sent_tokens = 0.0  # tokens since the start
        self._prompt_ends: deque[float] = deque()  # of unread prompts, in tokens since the start
        # Tokens of recent prompts, and those of them that were read sooner than the model expected.
        self._recent_tokens = self._recent_cached_tokens = 0.0

    def reported(
        self, report: EngineReport, leased: int, slowness: float, step_s: float | None, now: float
    ) -> None:
        """The engine reported its rate, and how many prompts it has yet to read."""
        left = self.unread(now)
        self.tokens_per_s = rate = report.prefill_tokens_per_s
        chunk = self._chunk_tokens = report.chunk_tokens
        self._step_tokens = report.step_tokens
        if self._step_tokens is None and chunk is not None:
            self._step_tokens = _PROMPTS_PER_STEP * chunk
        self._token_s = self._lone_token_s = 0.0
        if rate is not None:
            self._token_s = self._lone_token_s = slowness / rate
            if chunk is not None and self._step_tokens is not None and step_s is not None:
                self._token_s += step_s / self._step_tokens
                self._lone_token_s += step_s / chunk
        on_their_way = 0 if report.scheduled is None else max(0, leased - report.scheduled)
        unread, places, modelled = report.prefilling + on_their_way, self._prompt_ends, left
        while len(places) > unread:
            left = min(left, self._sent_tokens - places.popleft())
        self._recent_cached_tokens += modelled - left
        self.clears_at = now + max(0.0, left) * self._token_s

    @property
    def read_share(self) -> float:
        """The share of recent prompts that the engine had to read, because it was not cached."""
        share = 1 - self._recent_cached_tokens / self._recent_tokens if self._recent_tokens else 1.0
        return max(share, _MIN_READ_SHARE)

    def unread(self, now: float) -> float:
        """Returns the unread tokens."""
        return (self.clears_at - now) / self._token_s if now < self.clears_at else 0.0

    def unread_after(self, tokens: float, seconds: float) -> float:
        """Returns how many of these tokens are unread after `seconds`."""
        return max(0.0, tokens - seconds / self._token_s) if self._token_s else 0.0

    def tokens_read(self, now: float) -> float:
        """Returns the tokens read since the start."""
        return self._sent_tokens - self.unread(now)

    def sent(self, lease: Lease, tokens: int, now: float) -> None:
        """The prompt of a lease is sent to the engine."""
        token_s = self._token_s
        if not token_s:
            lease.read_from = lease.read_to = self._sent_tokens
            return
        clears_at = self.clears_at if now < self.clears_at else now
        lease.read_from = self._sent_tokens - (clears_at - now) / token_s
        self.clears_at = clears_at + tokens * token_s
        self._sent_tokens = lease.read_to = self._sent_tokens + tokens
        self._recent_tokens += tokens - self._recent_tokens / _RECENT_PROMPTS
        self._recent_cached_tokens -= self._recent_cached_tokens / _RECENT_PROMPTS
        self._prompt_ends.append(lease.read_to)

    def ended_early(self, lease: Lease, tokens: int, now: float) -> None:
        """A lease ended early: the unread part of its prompt will not be read."""
        unread = min(float(tokens), lease.read_to - self.tokens_read(now))
        if unread > 0 and now < self.clears_at:
            self.clears_at -= min(unread, self.unread(now)) * self._token_s

    def unread_of(self, lease: Lease, now: float) -> float:
        """Returns the unread tokens of a lease's prompt."""
        return max(0.0, lease.read_to - self.tokens_read(now))

    def may_be_late(
        self, request: AdmissionRequest, times: float, limit_s: float, now: float
    ) -> bool:
        """Whether a prompt that counts `times` times, if it is sent now, may be read later than
        `limit_s` because of those before it."""
        before_s, own_s = self.clears_at - now, request.prompt_tokens * self._lone_token_s
        return before_s > 0 and before_s + times * own_s > limit_s / 2

    def reading_s(self, before: float, prompt: int, step_s: float) -> float:
        """Returns the seconds until a prompt is read behind `before` other tokens, and its first
        token is generated. `step_s`: of the decodes of one step."""
        rate, tokens, steps = self.tokens_per_s, before + prompt, 1.0
        if self._chunk_tokens is not None and self._step_tokens is not None:
            steps = max(1.0, ceil(prompt / self._chunk_tokens), tokens / self._step_tokens)
        return (tokens / rate if rate else 0.0) + steps * step_s

    def wall_s(self, decoding_s: float, tokens: float, step_s: float) -> float:
        """Returns the seconds in which an engine decodes for `decoding_s` and reads `tokens`: until
        these are read, each step takes the time of its decodes and of its share of them."""
        rate = self.tokens_per_s
        if not rate or tokens <= 0 or decoding_s <= 0:
            return decoding_s
        reading_s = tokens / rate
        if self._step_tokens is not None and step_s > 0:
            reading_s = min(reading_s, decoding_s / step_s * self._step_tokens / rate)
        return decoding_s + reading_s


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
