"""The requests of a trace, and the parts and multiples of it that are replayed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Final

# A block of less than one token of a scaled trace still distinguishes prefixes.
_LEAST_TOKENS: Final = 1


class InvalidTrace(ValueError):
    """A file is not a trace; the message gives file, line, value and rule."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request. `at_s`: seconds since the start of the trace.

    `prefix_blocks`: ids of the blocks of its prompt, in order; prompts with the same first ids
    begin with the same tokens. Empty where the trace does not record them.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival.

    `name`: of the file. `sha256`: of its bytes, in hexadecimal, whatever part of it is replayed.
    `block_tokens`: tokens of a prefix block, None where the trace has none. `left_out`: rows
    without a prompt or without an answer, which failed or were cancelled there.
    """

    name: str
    sha256: str
    requests: tuple[TracedRequest, ...]
    block_tokens: int | None = None
    left_out: int = 0

    @property
    def seconds(self) -> float:
        """The time of the last arrival."""
        return self.requests[-1].at_s if self.requests else 0.0

    def window(self, from_s: float, until_s: float = inf) -> Trace:
        """Returns the requests that arrived in that part, `until_s` excluded, from its start on.

        Raises InvalidTrace for a part without requests.
        """
        found = tuple(
            replace(each, at_s=each.at_s - from_s)
            for each in self.requests
            if from_s <= each.at_s < until_s
        )
        if not found:
            raise InvalidTrace(
                f"{self.name}: no request arrived from {from_s:g} to {until_s:g} s: the window "
                f"must overlap the {self.seconds:g} s of the trace"
            )
        return replace(self, requests=found)

    def scaled(self, time: float = 1.0, lengths: float = 1.0) -> Trace:
        """Returns the same requests with their times and their lengths multiplied.

        A time factor of 0.5 doubles the rate. No length falls below one token.
        """

        def tokens(count: int) -> int:
            return max(_LEAST_TOKENS, round(lengths * count))

        return replace(
            self,
            requests=tuple(
                TracedRequest(
                    time * each.at_s,
                    tokens(each.prompt_tokens),
                    tokens(each.output_tokens),
                    each.prefix_blocks,
                )
                for each in self.requests
            ),
            block_tokens=None if self.block_tokens is None else tokens(self.block_tokens),
        )
