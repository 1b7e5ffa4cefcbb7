"""The instructions of a request to the scripted engine: written to and read from its prompt.

Every generated token carries the key of the order, the choice and a number, so that a client can
verify that an answer is complete and its own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

_BEGIN: Final = "soak:"


class Fault(StrEnum):
    """What is wrong with one answer of the engine."""

    NONE = "none"
    DRIBBLE = "dribble"  # a few bytes at a time: nothing is wrong
    EXTRA = "extra"  # bytes after the end of the answer
    GONE_ONCE = "gone_once"  # turned away untouched, the first time
    HTTP_400 = "http_400"
    HTTP_500 = "http_500"
    HTTP_503 = "http_503"
    ERROR_EVENT = "error_event"  # the engine itself ends the stream with an error
    RESET_FIRST = "reset_first"  # before the first byte
    CLOSE_FIRST = "close_first"
    BAD_HEAD = "bad_head"
    HANG_FIRST = "hang_first"
    RESET = "reset"  # after some tokens, as all that follow
    CUT = "cut"
    CUT_WITHIN = "cut_within"  # an event
    BAD_CHUNK = "bad_chunk"
    HANG = "hang"


# After these a client cannot have got anything of an answer, and another engine may be asked.
BEFORE_FIRST_BYTE: Final = frozenset({Fault.RESET_FIRST, Fault.CLOSE_FIRST})
HARMLESS: Final = frozenset({Fault.NONE, Fault.DRIBBLE, Fault.GONE_ONCE})


@dataclass(frozen=True, slots=True)
class Order:
    """`tokens`: of each choice. `first`: the number of the first choice. `pace_ms`: between two
    tokens. `after`: tokens before the fault. `apart`: the last writes go out one by one.
    `watched`: the engine reports when it begins and ends."""

    key: str
    tokens: int
    fault: Fault = Fault.NONE
    pace_ms: float = 0.0
    after: int = 1
    apart: bool = False
    watched: bool = False
    first: int = 0

    def prompt(self, padding: int = 0) -> str:
        return f"{_BEGIN}{json.dumps(asdict(self))}\n{'x' * padding}"

    def token(self, choice: int, number: int) -> str:
        return f"{self.key}.{self.first + choice}.{number} "

    def text(self, choice: int) -> str:
        """The whole text of a choice."""
        return "".join(self.token(choice, number) for number in range(self.tokens))


def order_of(body: dict[str, Any]) -> tuple[Order, int]:
    """The order in a request's body, and how many choices it asks for. Raises ValueError."""
    choices: int = body.get("n") or 1
    prompt: Any = body.get("prompt", body.get("input"))
    if prompt is None:
        prompt = body["messages"][-1]["content"]
    if isinstance(prompt, list):
        choices *= len(prompt)
        prompt = prompt[0]
    if not prompt.startswith(_BEGIN):
        raise ValueError(f"no order in {prompt[:80]!r}")
    fields = json.loads(prompt[len(_BEGIN) :].partition("\n")[0])
    fields["fault"] = Fault(fields["fault"])
    fields["first"] += body.get("seed") or 0  # vLLM counts up from it
    return Order(**fields), choices
