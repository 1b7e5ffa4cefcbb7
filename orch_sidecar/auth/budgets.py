"""Budgets of an API key: requests and tokens per minute, and the headers that report them.

Pure: times are seconds of a monotonic clock. A budget is a bucket that drains at its rate and
holds that of a minute: so a key that used nothing for a minute may use a minute's worth at once.
Tokens are reserved when a request arrives, by its prompt and the length that requests of this key
had, and settled when it ends by what it took. A request that needs more than a whole minute's
worth is let in when nothing is used, and the rest is paid off by the next ones' waiting.

Where several sidecars are entries for the same clients, each of them grants its part of a budget:
the budget divided by the number of entries (the setting `entries`). Together they never grant more;
a client whose connections all lead to one entry gets that part alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from orch_sidecar.api.headers import (
    X_RATELIMIT_LIMIT_REQUESTS,
    X_RATELIMIT_LIMIT_TOKENS,
    X_RATELIMIT_REMAINING_REQUESTS,
    X_RATELIMIT_REMAINING_TOKENS,
    X_RATELIMIT_RESET_REQUESTS,
    X_RATELIMIT_RESET_TOKENS,
)
from orch_sidecar.api.usage import PromptSize

_MINUTE_S: Final = 60.0
# Output tokens of a request without a limit, before any of the key has ended.
_FIRST_OUTPUT_TOKENS: Final = 256.0
_LEARNING_RATE: Final = 0.1

_REQUESTS: Final = (
    X_RATELIMIT_LIMIT_REQUESTS,
    X_RATELIMIT_REMAINING_REQUESTS,
    X_RATELIMIT_RESET_REQUESTS,
)
_TOKENS: Final = (
    X_RATELIMIT_LIMIT_TOKENS,
    X_RATELIMIT_REMAINING_TOKENS,
    X_RATELIMIT_RESET_TOKENS,
)
Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a request has reserved of its key's budgets. In tokens: of its prompts, and of all."""

    prompt: int
    tokens: int


class Bucket:
    """What is used of a budget."""

    __slots__ = ("_at", "_per_minute", "used")

    def __init__(self) -> None:
        self.used = 0.0
        self._at = 0.0
        self._per_minute = 0.0

    def drain(self, per_minute: float, now: float) -> None:
        """Lets what was used drain until now. Another budget than before is used by the same part,
        and one that is new is not used."""
        drained = self._per_minute * (now - self._at) / _MINUTE_S
        self.used = self.used - drained if self.used > drained else 0.0
        self._at = now
        if per_minute != self._per_minute:
            self.used *= per_minute / self._per_minute if self._per_minute else 0.0
            self._per_minute = per_minute

    def is_full_at(self, now: float) -> bool:
        """Whether all of the budget is there again; one without a limit always is."""
        return self.used * _MINUTE_S <= self._per_minute * (now - self._at) or not self._per_minute

    def wait_s(self, needed: float, per_minute: float) -> float:
        """Returns the seconds until there is room for `needed`; 0: there is."""
        over = self.used + min(needed, per_minute) - per_minute
        return over * _MINUTE_S / per_minute if over > 0 else 0.0

    def fields(self, names: tuple[str, str, str], per_minute: float) -> Fields:
        """Returns the headers of a budget: the limit, what is left, and when all of it will be."""
        left = max(0, int(per_minute - self.used))
        reset = duration(self.used * _MINUTE_S / per_minute)
        limit = max(1, int(per_minute))  # less than one a minute is one in several
        return (names[0], str(limit)), (names[1], str(left)), (names[2], reset)


class Budgets:
    """The budgets of one key. A limit of None is no limit."""

    __slots__ = ("_output", "_prompt_size", "requests", "tokens")

    def __init__(self) -> None:
        self.requests, self.tokens = Bucket(), Bucket()
        self._prompt_size = PromptSize()
        self._output = _FIRST_OUTPUT_TOKENS  # tokens per sequence

    def expected(
        self, body_bytes: int, prompt_tokens: int | None, max_tokens: int | None, cost: int
    ) -> Reservation:
        """Returns what a request is expected to take: `cost` sequences, of `max_tokens` at the
        most."""
        if prompt_tokens is None:
            prompt_tokens = self._prompt_size.estimate(body_bytes, None)
        output = self._output if max_tokens is None else min(max_tokens, self._output)
        return Reservation(prompt_tokens, prompt_tokens + int(output * cost))

    def reserve(self, reserved: Reservation) -> None:
        """Reserves one request and its tokens."""
        self.requests.used += 1
        self.tokens.used += reserved.tokens

    def settle(
        self,
        reserved: Reservation,
        body_bytes: int,
        input_tokens: int | None,
        output_tokens: int | None,
        cost: int,
    ) -> None:
        """A request ended after so many tokens; None: unknown, and as many as were reserved."""
        prompt, output = reserved.prompt, reserved.tokens - reserved.prompt
        if input_tokens is not None:
            self._prompt_size.learn(body_bytes, input_tokens)
            prompt = input_tokens
        if output_tokens is not None:
            self._output += _LEARNING_RATE * (output_tokens / cost - self._output)
            output = output_tokens
        self._return(self.tokens, reserved.tokens - prompt - output)

    def give_back(self, reserved: Reservation) -> None:
        """A request that no engine was asked for takes nothing."""
        self._return(self.requests, 1)
        self.give_back_tokens(reserved)

    def give_back_tokens(self, reserved: Reservation) -> None:
        """A request that the engine answered with an error generated nothing."""
        self._return(self.tokens, reserved.tokens)

    def fields(
        self, requests_per_minute: float | None, tokens_per_minute: float | None, now: float
    ) -> Fields:
        """Returns the headers of these budgets."""
        found: Fields = ()
        if requests_per_minute is not None:
            self.requests.drain(requests_per_minute, now)
            found += self.requests.fields(_REQUESTS, requests_per_minute)
        if tokens_per_minute is not None:
            self.tokens.drain(tokens_per_minute, now)
            found += self.tokens.fields(_TOKENS, tokens_per_minute)
        return found

    def are_full_at(self, now: float) -> bool:
        """Whether nothing would differ from budgets that were never used."""
        return self.requests.is_full_at(now) and self.tokens.is_full_at(now)

    @staticmethod
    def _return(bucket: Bucket, amount: float) -> None:
        bucket.used = max(0.0, bucket.used - amount)


def duration(seconds: float) -> str:
    """Returns a time as OpenAI writes it: `20ms`, `7.66s`, `6m0s`, `1h6m0s`."""
    ms = math.ceil(seconds * 1000)
    if ms < 1000:
        return f"{ms}ms"
    if ms < 1000 * _MINUTE_S:
        return f"{ms / 1000:g}s"
    minutes, rest = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
