"""Extracts token counts and failures from an answer as it is forwarded; estimates prompt tokens.

Pure. Searches instead of parsing: quotes and line breaks in generated text are escaped, so that it
is never mistaken for counts or for an error.
"""

from __future__ import annotations

import re
from math import ceil
from typing import Final

_NO_EVENT: Final = b"\n"
# Longer than the counts, and than the events after the last counts or an error.
TAIL_BYTES: Final = 2048
# Content that is collected before it is searched: searching many chunks at once takes a tenth.
MAX_PIECES: Final = 32
MAX_PIECE_BYTES: Final = 4096

_USAGE: Final = b'"usage":'
_BACKSLASH: Final = ord("\\")
_FLAT_FIELDS: Final = rb"[^{}]*"
_NESTED_FIELDS: Final = rb"%b(?:\{%b\}%b)*"
# An object that contains objects, such as `prompt_tokens_details`; no text in it has braces.
_OBJECT: Final = re.compile(
    rb'"usage":\s*\{(%b)\}'
    % (
        _NESTED_FIELDS
        % (_FLAT_FIELDS, _NESTED_FIELDS % (_FLAT_FIELDS, _FLAT_FIELDS, _FLAT_FIELDS), _FLAT_FIELDS)
    )
)
_INPUT: Final = re.compile(rb'"(?:prompt|input)_tokens":\s*([0-9]{1,12})')
_OUTPUT: Final = re.compile(rb'"(?:completion|output)_tokens":\s*([0-9]{1,12})')
_CACHE_READ: Final = re.compile(rb'"(?:cached|cache_read_input)_tokens":\s*([0-9]{1,12})')
_REASONING: Final = re.compile(rb'"reasoning_tokens":\s*([0-9]{1,12})')
# Anthropic's API counts these apart from the input, vLLM as it does; OpenAI's as a part of it.
_APART: Final = re.compile(rb'"cache_(?:read|creation)_input_tokens":\s*([0-9]{1,12})')
# Both counts of an object without others, as vLLM writes it: in this order, and without spaces.
_TOKEN_COUNTS: Final = re.compile(
    rb'\{"(?:prompt|input)_tokens":(\d{1,12}),(?:"total_tokens":\d{1,12},)?'
    rb'"(?:completion|output)_tokens":(\d{1,12})(?:,"\w+":null)*+\}'
)
# Of candidates: a client's JSON, echoed in an answer, may contain many similar names.
_MAX_CANDIDATES: Final = 8

# How the APIs report an error within a stream. All alternatives begin with the same character;
# otherwise the search takes fifty times as long.
_FAILED_EVENT: Final = re.compile(
    rb'\n(?:data: ?\{\s*"error":\s*[^\sn]|event: ?(?:error|response\.failed)[\r\n])'
)
# The events that end a stream. After an error of the OpenAI API comes a [DONE].
_LAST_EVENT: Final = re.compile(
    rb"\n(?:data: ?\[DONE\]"
    rb"|event: ?(?:message_stop|error|response\.(?:completed|incomplete|failed)))[\r\n]"
)

# Bytes of a body per token of its prompts, before any measurement: English text has about four,
# other scripts fewer.
FIRST_BYTES_PER_TOKEN: Final = 3.0
# Of an exponential moving average; slow, because it is over all kinds of requests.
_LEARNING_RATE: Final = 0.02
_MIN_RATIO, _MAX_RATIO = 0.25, 64.0

Counts = tuple[int | None, int | None, int | None, int | None]
_NO_COUNTS: Final[Counts] = (None, None, None, None)


def read(text: bytes) -> Counts:
    """Returns the tokens that a part of an answer reports, each None if absent: input, output, and
    of these the input that the prefix cache had and the output that is reasoning.

    The last ones count, and where they lack one of the two, those before them: Anthropic's API
    reports input tokens at the beginning of a stream and output tokens at its end.
    """
    at = text.rfind(_USAGE, -TAIL_BYTES)
    if at < 0:
        if text.find(_USAGE) < 0:  # forwards takes a third of the time, where there are none
            return _NO_COUNTS
        at = text.rfind(_USAGE)
    # At 0 this is the last byte of the text, which is no backslash in an answer that is whole.
    if text[at - 1] != _BACKSLASH and (both := _TOKEN_COUNTS.match(text, at + len(_USAGE))):
        return int(both[1]), int(both[2]), None, None
    return _read_any(text)


def _read_any(text: bytes) -> Counts:
    """Does the same, however they are written."""
    input_tokens, output_tokens, cached, reasoning = _NO_COUNTS
    at = len(text)
    for _ in range(_MAX_CANDIDATES):
        at = text.rfind(_USAGE, 0, at)
        if at < 0:
            break
        if text[at - 1] == _BACKSLASH:
            continue  # the end of a longer name
        usage = _OBJECT.match(text, at)
        if usage is None:
            continue  # such as null
        fields = usage[1]
        if input_tokens is None and (count := _INPUT.search(fields)) is not None:
            input_tokens = sum(map(int, _APART.findall(fields))) + int(count[1])
            cached = _count(_CACHE_READ, fields)
        if output_tokens is None and (count := _OUTPUT.search(fields)) is not None:
            output_tokens, reasoning = int(count[1]), _count(_REASONING, fields)
        if input_tokens is not None and output_tokens is not None:
            break
    return input_tokens, output_tokens, cached, reasoning


def _count(name: re.Pattern[bytes], fields: bytes) -> int | None:
    found = name.search(fields)
    return None if found is None else int(found[1])


class AnswerReader:
    """Reads counts and failure of an answer as it is forwarded in pieces of any size.

    The owner appends the content of the body to `content`, and calls `fold` when that has
    MAX_PIECES, or after a piece of more than MAX_PIECE_BYTES. Of a stream, the first and the last
    events are searched, and those that are too long to be kept; any other answer completely.
    After `end`, `counts` are the tokens as `read` returns them, and `failed` states whether the
    answer is a stream that reports an error.
    """

    __slots__ = ("_between", "_events", "_kept", "_last", "content", "counts", "failed")

    def __init__(self, events: bool) -> None:
        """`events`: the answer is a stream of server-sent events, which may end with an error."""
        self._events = events
        # The first events have been searched, and `_kept` begins after an event.
        self._between = False
        self._last = False  # the last event has begun, and is too long to be kept
        self.failed = False
        self.counts = _NO_COUNTS
        self._kept = _NO_EVENT  # the last bytes that were received, beginning after a line
        self.content: list[bytes] = []

    def fold(self) -> None:
        """Drops everything that cannot contain the end of the answer."""
        text = self._take()
        cut = len(text) - TAIL_BYTES
        if cut <= 0:
            return
        boundary = text.rfind(b"\n\n", 0, cut) if self._events else -1
        if not self._between or boundary < 0:
            self._read(text)
        if self._events and boundary < 0:
            self._last = self._last or _LAST_EVENT.search(text) is not None
        self._between = boundary >= 0
        self._kept = text[boundary + 1 if self._between else cut :]

    @property
    def at_event_boundary(self) -> bool:
        """Whether the last bytes are the end of an event, if this is a stream."""
        return self._take().endswith((b"\n\n", b"\r\n\r\n"))

    @property
    def finished(self) -> bool:
        """Whether this is a stream, and its last event is complete: the engine has only to end the
        body."""
        if not (self._events and self.at_event_boundary):
            return False
        return self._last or _LAST_EVENT.search(self._kept) is not None

    def end(self) -> None:
        """Reads the end of a complete answer: from here on `counts` and `failed` are known."""
        content = self.content
        if len(content) == 1 and not self._events and self._kept == _NO_EVENT:
            self.counts = read(content[0])  # an answer that came in one piece
        elif text := self._take():
            self._read(text)
        content.clear()
        self._kept = b""

    def _take(self) -> bytes:
        if self.content:
            self._kept += b"".join(self.content)
            self.content.clear()
        return self._kept

    def _read(self, text: bytes) -> None:
        (input_tokens, output_tokens, cached, reasoning), earlier = read(text), self.counts
        self.counts = (
            earlier[0] if input_tokens is None else input_tokens,
            earlier[1] if output_tokens is None else output_tokens,
            earlier[2] if input_tokens is None else cached,
            earlier[3] if output_tokens is None else reasoning,
        )
        if self._events and not self.failed:
            # Hardly anything follows an error, which is a whole event. The words are found in a
            # half of the time that the expression takes.
            last = max(0, text.rfind(b"\n\n", 0, max(0, len(text) - TAIL_BYTES)))
            if text.find(b"error", last) >= 0 or text.find(b".failed", last) >= 0:
                self.failed = _FAILED_EVENT.search(text, last) is not None


class PromptSize:
    """Estimates prompt tokens from the size of a request, with a ratio learned from answers."""

    __slots__ = ("bytes_per_token",)

    def __init__(self) -> None:
        self.bytes_per_token = FIRST_BYTES_PER_TOKEN

    def estimate(self, body_bytes: int, most: int | None) -> int:
        """Estimates the tokens of all prompts in a body, `most` at most if it is not None."""
        tokens = ceil(body_bytes / self.bytes_per_token)
        return tokens if most is None or tokens < most else most

    def learn(self, body_bytes: int, prompt_tokens: int) -> None:
        """Updates the ratio by an answer that reported the tokens of its prompts."""
        if prompt_tokens > 0:
            ratio = body_bytes / prompt_tokens
            if not _MIN_RATIO <= ratio <= _MAX_RATIO:
                ratio = _MIN_RATIO if ratio < _MIN_RATIO else _MAX_RATIO
            self.bytes_per_token += _LEARNING_RATE * (ratio - self.bytes_per_token)
