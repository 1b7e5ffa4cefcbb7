"""What an answer tells about itself as it passes: token counts and failures.

Also the tokens of a prompt not yet read. Pure. Nothing is parsed: inside generated text every
quote and line break is escaped, so that neither counts nor an error can be mistaken.
"""

from __future__ import annotations

import re
from typing import Final

# More than the events take that follow the last counts or an error, and than the counts take.
TAIL_BYTES: Final = 2048
# Content that is kept before it is looked at: to look at many chunks at once costs a tenth.
MOST_PIECES: Final = 32
MOST_PIECE_BYTES: Final = 4096

_USAGE: Final = b'"usage":'
_FLAT: Final = rb"[^{}]*"
_NESTED: Final = rb"%b(?:\{%b\}%b)*"
# An object with objects in it, such as `prompt_tokens_details`; none of them holds braces in text.
_OBJECT: Final = re.compile(
    rb'"usage":\s*\{(%b)\}' % (_NESTED % (_FLAT, _NESTED % (_FLAT, _FLAT, _FLAT), _FLAT))
)
_INPUT: Final = re.compile(rb'"(?:prompt|input)_tokens":\s*([0-9]{1,12})')
_OUTPUT: Final = re.compile(rb'"(?:completion|output)_tokens":\s*([0-9]{1,12})')
# Of names that look like it: a client's JSON, echoed in an answer, may be full of them.
_MOST_LOOKS: Final = 8

# As the APIs tell an error within a stream. One character before all alternatives: without it
# the search takes fifty times as long.
_FAILED: Final = re.compile(
    rb'\n(?:data: ?\{\s*"error":\s*[^\sn]|event: ?(?:error|response\.failed)[\r\n])'
)

# Bytes of a request's body per token of its prompt, before anything was measured: English text
# has about four, other scripts and the JSON around them fewer.
FIRST_BYTES_PER_TOKEN: Final = 3.0
# Slow, because it is a mean over all kinds of requests.
_LEARNING: Final = 0.02
_LEAST, _MOST = 0.25, 64.0

Counts = tuple[int | None, int | None]


def read(text: bytes) -> Counts:
    """Input and output tokens that a part of an answer tells; None for what is not there.

    The last ones count. What they leave out is taken from those before them: Anthropic's API
    tells the input tokens at the beginning of a stream and the output tokens at its end.
    """
    taken: int | None = None
    written: int | None = None
    at = len(text)
    for _ in range(_MOST_LOOKS):
        at = text.rfind(_USAGE, 0, at)
        if at < 0:
            break
        if text[at - 1 : at] == b"\\":
            continue  # a longer name ends like that
        usage = _OBJECT.match(text, at)
        if usage is None:
            continue  # such as null
        if taken is None and (count := _INPUT.search(usage[1])) is not None:
            taken = int(count[1])
        if written is None and (count := _OUTPUT.search(usage[1])) is not None:
            written = int(count[1])
        if taken is not None and written is not None:
            break
    return taken, written


class AnswerReader:
    """Reads an answer as it passes, wherever its bytes are cut: its counts, and how it ended.

    What passes the answer on appends the content of the body to `content`, and calls `fold` when
    that has MOST_PIECES, or after a piece of more than MOST_PIECE_BYTES. Of a stream the first
    events and the last ones are read, and those that are too long to be kept; of any other answer
    all of it.
    """

    __slots__ = ("_between", "_counts", "_events", "_failed", "_kept", "content")

    def __init__(self, *, events: bool) -> None:
        """`events`: it is a stream of server-sent events, which may end with an error."""
        self._events = events
        self._between = False  # the first events are read, and what is kept begins after an event
        self._failed = False
        self._counts: Counts = (None, None)
        self._kept = b"\n"  # the last of what has come, after the end of a line
        self.content: list[bytes] = []

    def fold(self) -> None:
        """Keeps of what has come only what the end may be in."""
        text = self._take()
        cut = len(text) - TAIL_BYTES
        if cut <= 0:
            return
        boundary = text.rfind(b"\n\n", 0, cut) if self._events else -1
        if not self._between or boundary < 0:
            self._read(text)
        self._between = boundary >= 0
        self._kept = text[boundary + 1 if self._between else cut :]

    @property
    def at_event_boundary(self) -> bool:
        """Whether an event has just ended, if this is a stream."""
        return self._take().endswith((b"\n\n", b"\r\n\r\n"))

    @property
    def counts(self) -> Counts:
        """Input and output tokens of the whole answer; None for what it does not tell."""
        self._read_end()
        return self._counts

    @property
    def failed(self) -> bool:
        """Whether the whole answer is a stream that tells an error."""
        self._read_end()
        return self._failed

    def _take(self) -> bytes:
        if self.content:
            self._kept += b"".join(self.content)
            self.content.clear()
        return self._kept

    def _read_end(self) -> None:
        text = self._take()
        if text:
            self._read(text)
            self._kept = b""

    def _read(self, text: bytes) -> None:
        (taken, written), (taken_before, written_before) = read(text), self._counts
        self._counts = (
            taken_before if taken is None else taken,
            written_before if written is None else written,
        )
        if self._events and not self._failed:
            self._failed = _FAILED.search(text) is not None


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
