"""Reads prompts from a file.

The entries are objects of one of these kinds, one after the other (JSONL) or in one JSON list:

    {"prompt": "a text", "output_tokens": 16}   as in `vllm bench serve --dataset-name custom`
    {"prompt": [1, 2, 3], "output_tokens": 16}  token ids
    {"messages": [{"role": "user", ...}], ...}  a chat
    {"conversations": [{"from": "human", "value": "a text"}, ...]}  as in ShareGPT

An entry without `output_tokens` gets the number from the command line. The prompt of a
conversation is the text of its first human turn; the recorded answer is another model's, so its
length is not used. Conversations without a human turn are skipped; ShareGPT has some.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, Field, StrictInt, StrictStr, ValidationError

from orch_sidecar.tools.bench.load.prompts import Content, Prompt
from orch_sidecar.tools.facts.labels.documents import first_problem, parse_all

_KINDS: Final = ("prompt", "messages", "conversations")
_HUMAN: Final = ("human", "user")


def _text_or_ids(value: object) -> object:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value):
        return tuple(value)
    raise ValueError("it must be a text or a list of token ids, and not empty")


def _message(value: object) -> object:
    if isinstance(value, dict) and isinstance(value.get("role"), str):
        return value
    raise ValueError("it must be an object with a role")


class _Turn(BaseModel):
    sender: StrictStr = Field(alias="from")
    value: StrictStr


class _Entry(BaseModel):
    """An entry. Of `prompt`, `messages` and `conversations` it has one."""

    prompt: Annotated[str | tuple[int, ...], BeforeValidator(_text_or_ids)] = ""
    messages: Annotated[list[Annotated[Any, BeforeValidator(_message)]], Field(min_length=1)] = []
    conversations: list[_Turn] = []
    output_tokens: Annotated[StrictInt, Field(ge=1)] = 1

    @property
    def content(self) -> Content | None:
        """What is asked; None of a conversation without a human turn."""
        texts = (turn.value for turn in self.conversations if turn.sender in _HUMAN)
        question = next((text for text in texts if text.strip()), None)
        return self.prompt or tuple(self.messages) or question


def from_file(path: Path, default_output_tokens: int | None, seed: int) -> tuple[Prompt, ...]:
    """Reads the prompts of a file and shuffles them by the seed: a file may be sorted.

    `default_output_tokens`: for entries without a number, at least 1. Raises OSError, and
    ValueError with file, line, value and rule for an invalid entry or a file without prompts.
    """
    prompts = list(parse(str(path), path.read_bytes(), default_output_tokens))
    if not prompts:
        raise ValueError(f"{path}: the file must contain at least one prompt")
    Random(f"{seed} file").shuffle(prompts)  # noqa: S311 (no secret)
    return tuple(prompts)


def parse(name: str, content: bytes, default_output_tokens: int | None) -> Iterator[Prompt]:
    """Yields the prompts of a file in its order; `name` is for errors.

    Raises ValueError as `from_file` does.
    """
    documents = parse_all(name, content) if content.strip() else []
    is_list = len(documents) == 1 and isinstance(documents[0][1], list)
    entries = enumerate(documents[0][1], 1) if is_list else iter(documents)
    for number, entry in entries:
        place = f"{name}: entry {number}" if is_list else f"{name}:{number}"
        try:
            prompt = _prompt(entry, default_output_tokens)
        except ValidationError as error:
            raise ValueError(f"{place}: {first_problem(error)}") from None
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        if prompt is not None:
            yield prompt


def _prompt(entry: Any, default_output_tokens: int | None) -> Prompt | None:
    """Returns the prompt of an entry; None for a conversation without a human turn."""
    if not isinstance(entry, dict):
        raise ValueError(f"{entry!r:.60}: an entry must be an object")
    kinds = [kind for kind in _KINDS if kind in entry]
    if len(kinds) != 1:
        found = " and ".join(kinds) or f"only {', '.join(entry)!r:.60}"
        raise ValueError(f"has {found}: an entry must have exactly one of {', '.join(_KINDS)}")
    if "output_tokens" not in entry and default_output_tokens is None:
        raise ValueError("has no output_tokens: add them to the entry, or give --output-tokens")
    made = _Entry.model_validate({"output_tokens": default_output_tokens, **entry})
    content = made.content
    if content is None:
        return None
    by_ids = isinstance(made.prompt, tuple)
    return Prompt(content, len(content) if by_ids else None, made.output_tokens)
