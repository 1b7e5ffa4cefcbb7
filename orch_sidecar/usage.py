"""How an answer ended: token counts and failures, from its end without parsing it.

Also the tokens of a prompt not yet read. Pure. vLLM writes `usage` near the end of a JSON
answer, and in the last event of a stream that asks for it; inside generated text every quote and
line break is escaped, so that neither it nor an error can be mistaken.
"""

from __future__ import annotations

import re
from typing import Final

# `usage` and what may follow it is far shorter.
TAIL_BYTES: Final = 4096

_USAGE: Final = b'"usage":'
_USAGE_BYTES: Final = 512
# As vLLM writes it for completions and chats: one match instead of two searches.
_BOTH: Final = re.compile(
    rb'"usage":\{"prompt_tokens":([0-9]{1,12}),"total_tokens":[0-9]+,'
    rb'"completion_tokens":([0-9]{1,12})'
)
_INPUT: Final = re.compile(rb'"(?:prompt|input)_tokens":\s*([0-9]{1,12})')
_OUTPUT: Final = re.compile(rb'"(?:completion|output)_tokens":\s*([0-9]{1,12})')

# As the APIs say in a stream that it came to nothing.
_FAILED: Final = re.compile(
    rb'(?:\A|\n)(?:data: \{"error":|event: (?:error|response\.failed)\r?\n)'
)

# Bytes of a request's body per token of its prompt, before anything was measured: English text
# has about four, other scripts and the JSON around them fewer.
FIRST_BYTES_PER_TOKEN: Final = 3.0
# Slow, because it is a mean over all kinds of requests.
_LEARNING: Final = 0.02
_LEAST, _MOST = 0.25, 64.0


def end_of(before: bytes, last: bytes) -> bytes:
    """The end of an answer, by its last two writes: as much of it as `read` looks at."""
    return last[-TAIL_BYTES:] if len(last) >= TAIL_BYTES else before[-TAIL_BYTES:] + last


def read(tail: bytes) -> tuple[int | None, int | None]:
    """Input and output tokens from the end of an answer; None for what is not there."""
    at = tail.rfind(_USAGE, max(0, len(tail) - TAIL_BYTES))
    if at < 0:
        return None, None
    both = _BOTH.match(tail, at)
    if both is not None:
        return int(both[1]), int(both[2])
    usage = tail[at : at + _USAGE_BYTES]
    read_in, written = _INPUT.search(usage), _OUTPUT.search(usage)
    return int(read_in[1]) if read_in else None, int(written[1]) if written else None


def failed(before: bytes, last: bytes) -> bool:
    """Whether a stream ended with an error, by its last two writes."""
    tail = before[-TAIL_BYTES:] + last[-TAIL_BYTES:]
    if b"error" not in tail and b"failed" not in tail:  # which is quick to see
        return False
    return _FAILED.search(tail) is not None


class PromptSize:
    """How many tokens a prompt has, by the size of its request, learned from answers."""

    __slots__ = ("bytes_per_token",)

    def __init__(self) -> None:
        self.bytes_per_token = FIRST_BYTES_PER_TOKEN

    def estimate(self, body_bytes: int, most: int | None) -> int:
        """Tokens of all prompts in a body, at most `most` where that is known."""
        tokens = int(-(-body_bytes // self.bytes_per_token))  # rounded up
        return tokens if most is None or tokens < most else most

    def learn(self, body_bytes: int, prompt_tokens: int) -> None:
        """An answer said how many tokens its request's prompts had."""
        if prompt_tokens > 0:
            ratio = body_bytes / prompt_tokens
            if not _LEAST <= ratio <= _MOST:
                ratio = _LEAST if ratio < _LEAST else _MOST
            self.bytes_per_token += _LEARNING * (ratio - self.bytes_per_token)
