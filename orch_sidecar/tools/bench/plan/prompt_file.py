"""Reads prompts from a file.

The entries are objects of one of these kinds, one per line (JSONL) or in one JSON list:

    {"prompt": "a text", "output_tokens": 16}   as in `vllm bench serve --dataset-name custom`
    {"prompt": [1, 2, 3], "output_tokens": 16}  token ids
    {"messages": [{"role": "user", ...}], ...}  a chat
    {"conversations": [{"from": "human", "value": "a text"}, ...]}  as in ShareGPT

An entry without `output_tokens` gets the number from the command line. The prompt of a
conversation is the text of its first human turn; the recorded answer is another model's, so its
length is not used. Conversations without a human turn are skipped; ShareGPT has some.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from orch_sidecar.tools.bench.load.prompts import Content, Prompt

_KINDS: Final = ("prompt", "messages", "conversations")
_HUMAN: Final = ("human", "user")
_BLANK: Final = " \t\r\n"
_SHOWN: Final = 60  # characters of a value in an error: prompts are long

_DECODER: Final = json.JSONDecoder()


class _InvalidEntry(Exception):
    """An entry breaks a rule; the message lacks file and line, which the caller knows."""


def from_file(path: Path, default_output_tokens: int | None, seed: int) -> tuple[Prompt, ...]:
    """Reads the prompts of a file and shuffles them by the seed: a file may be sorted.

    `default_output_tokens`: for entries without a number, at least 1. Raises OSError, and
    ValueError with file, line, value and rule for an invalid entry or a file without prompts.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise ValueError(f"{path}:{line}: byte {byte:#x}: the file must be UTF-8") from None
    prompts = list(parse(str(path), text, default_output_tokens))
    if not prompts:
        raise ValueError(f"{path}: the file must contain at least one prompt")
    Random(f"{seed} file").shuffle(prompts)  # noqa: S311 (no secret)
    return tuple(prompts)


def parse(name: str, text: str, default_output_tokens: int | None) -> Iterator[Prompt]:
    """Yields the prompts of a file's text in its order; `name` is for errors.

    Raises ValueError as `from_file` does.
    """
    if default_output_tokens is not None and default_output_tokens < 1:
        raise ValueError(f"output tokens is {default_output_tokens}: it must be at least 1")
    in_list = text.lstrip(_BLANK).startswith("[")
    line, counted = 1, 0
    for start, entry in _listed(name, text) if in_list else _lined(name, text):
        line, counted = line + text.count("\n", counted, start), start
        try:
            prompt = _prompt(entry, default_output_tokens)
        except _InvalidEntry as error:
            raise ValueError(f"{name}:{line}: {error}") from None
        if prompt is not None:
            yield prompt


def _lined(name: str, text: str) -> Iterator[tuple[int, Any]]:
    """Yields the start and the value of each line."""
    start = 0
    for line in text.split("\n"):  # not splitlines: a JSON string may contain U+2028
        if line.strip(_BLANK):
            yield start, _decoded(name, text, start, start + len(line))[0]
        start += len(line) + 1


def _listed(name: str, text: str) -> Iterator[tuple[int, Any]]:
    """Yields the start and the value of each list item, one at a time: such files are large."""
    at = _next(text, text.index("[") + 1)
    while text[at : at + 1] != "]":
        entry, end = _decoded(name, text, at, None)
        yield at, entry
        at = _next(text, end)
        if text[at : at + 1] == ",":
            at = _next(text, at + 1)
            if text[at : at + 1] != "]":
                continue
        elif text[at : at + 1] == "]":
            continue
        raise ValueError(f"{_place(name, text, at)}: the list must continue with , or end with ]")
    if text[at + 1 :].strip(_BLANK):
        raise ValueError(f"{_place(name, text, at)}: nothing may follow the ] of the list")


def _next(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def _place(name: str, text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"{name}:{line}"


def _decoded(name: str, text: str, start: int, end: int | None) -> tuple[Any, int]:
    """Decodes the value at `start` and returns its end. With `end` it must fill the text to it."""
    try:
        value, after = _DECODER.raw_decode(text, _next(text, start))
    except RecursionError:
        raise ValueError(f"{_place(name, text, start)}: the JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{name}:{error.lineno}: must be JSON: {error.msg}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise ValueError(f"{_place(name, text, start)}: must be JSON: {error}") from None
    if end is not None and (after > end or text[after:end].strip(_BLANK)):
        raise ValueError(f"{_place(name, text, start)}: a line must be one JSON object")
    return value, after


def _prompt(entry: Any, default_output_tokens: int | None) -> Prompt | None:
    """Returns the prompt of an entry; None for a conversation without a human turn."""
    if not isinstance(entry, dict):
        raise _InvalidEntry(f"{_shown(entry)}: an entry must be an object")
    kinds = [kind for kind in _KINDS if kind in entry]
    if len(kinds) != 1:
        found = " and ".join(kinds) or f"only {_shown(list(entry))}"
        raise _InvalidEntry(f"has {found}: an entry must have exactly one of {', '.join(_KINDS)}")
    content: Content | None
    match kinds[0]:
        case "prompt":
            content = _text_or_ids(entry["prompt"])
        case "messages":
            content = _messages(entry["messages"])
        case _:
            content = _question(entry["conversations"])
    if content is None:
        return None
    output_tokens = entry.get("output_tokens", default_output_tokens)
    if output_tokens is None and "output_tokens" not in entry:
        raise _InvalidEntry("has no output_tokens: add them to the entry, or give --output-tokens")
    if type(output_tokens) is not int or output_tokens < 1:
        raise _InvalidEntry(
            f"output_tokens is {_shown(output_tokens)}: it must be an integer from 1"
        )
    by_ids = isinstance(entry.get("prompt"), list)
    return Prompt(content, len(content) if by_ids else None, output_tokens)


def _text_or_ids(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value):
        return tuple(value)
    raise _InvalidEntry(
        f"prompt is {_shown(value)}: it must be a text or a list of token ids, and not empty"
    )


def _messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise _InvalidEntry(f"messages is {_shown(value)}: it must be a list with messages")
    for each in value:
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise _InvalidEntry(f"the message {_shown(each)} must be an object with a role")
    return tuple(value)


def _question(turns: Any) -> str | None:
    """Returns the text of the first human turn, None without one."""
    if not isinstance(turns, list):
        raise _InvalidEntry(f"conversations is {_shown(turns)}: it must be a list of turns")
    for turn in turns:
        if not isinstance(turn, dict) or not all(
            isinstance(turn.get(key), str) for key in ("from", "value")
        ):
            raise _InvalidEntry(
                f"the turn {_shown(turn)} must be an object with the texts from and value"
            )
    texts = (turn["value"] for turn in turns if turn["from"] in _HUMAN)
    return next((text for text in texts if text.strip()), None)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
