"""Prompts that somebody else has written: a file of them.

Its entries are objects of one of these kinds, one a line (JSONL) or in one JSON list:

    {"prompt": "a text", "output_tokens": 16}   as `vllm bench serve --dataset-name custom` has it
    {"prompt": [1, 2, 3], "output_tokens": 16}  token ids
    {"messages": [{"role": "user", ...}], ...}  a chat
    {"conversations": [{"from": "human", "value": "a text"}, ...]}  as in ShareGPT

Without `output_tokens` an entry asks for as many as the command line says. Of a conversation the
first thing that a human says is the prompt, as a text. The answer that stands there is none of
this engine, and how many tokens it would have only the tokenizer could tell: its length is not
guessed at. Conversations in which no human says anything are left out; ShareGPT has some.
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


class _Wrong(Exception):
    """Carries out of the reading functions what is wrong with an entry."""


def from_file(path: Path, default_output_tokens: int | None, seed: int) -> tuple[Prompt, ...]:
    """The prompts of a file, in an order of the seed's: a file may be sorted, traffic is not.

    `default_output_tokens`: of entries that say none, at least 1. Raises OSError, and ValueError
    with file, line, value and rule for what is no prompt, and for a file without any.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise ValueError(f"{path}:{line}: byte {byte:#x}: must be UTF-8") from None
    prompts = list(parse(str(path), text, default_output_tokens))
    if not prompts:
        raise ValueError(f"{path}: must have at least one prompt")
    Random(f"{seed} file").shuffle(prompts)  # noqa: S311 (no secret)
    return tuple(prompts)


def parse(name: str, text: str, default_output_tokens: int | None) -> Iterator[Prompt]:
    """The prompts of a file's text, in its order. Pure; `name` is for errors.

    Raises ValueError as `from_file` does.
    """
    if default_output_tokens is not None and default_output_tokens < 1:
        raise ValueError(f"output tokens {default_output_tokens}: must be at least 1")
    in_list = text.lstrip(_BLANK).startswith("[")
    line, counted = 1, 0
    for start, entry in _listed(name, text) if in_list else _lined(name, text):
        line, counted = line + text.count("\n", counted, start), start
        try:
            prompt = _prompt(entry, default_output_tokens)
        except _Wrong as wrong:
            raise ValueError(f"{name}:{line}: {wrong}") from None
        if prompt is not None:
            yield prompt


def _lined(name: str, text: str) -> Iterator[tuple[int, Any]]:
    """Where each line's value starts, and the value."""
    start = 0
    for line in text.split("\n"):  # not splitlines: a string may have a U+2028 in it
        if line.strip(_BLANK):
            yield start, _decoded(name, text, start, start + len(line))[0]
        start += len(line) + 1


def _listed(name: str, text: str) -> Iterator[tuple[int, Any]]:
    """Where each value of a list starts, and the value: one at a time, for such files are large."""
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
        raise ValueError(f"{_place(name, text, at)}: the list must go on with , or end with ]")
    if text[at + 1 :].strip(_BLANK):
        raise ValueError(f"{_place(name, text, at)}: nothing must follow the list's ]")


def _next(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def _place(name: str, text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"{name}:{line}"


def _decoded(name: str, text: str, start: int, end: int | None) -> tuple[Any, int]:
    """The value that starts there, and where it ends: all that there is up to `end`, if given."""
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
    """None of a conversation without a question."""
    if not isinstance(entry, dict):
        raise _Wrong(f"{_shown(entry)}: must be an object with {', '.join(_KINDS)}")
    kinds = [kind for kind in _KINDS if kind in entry]
    if len(kinds) != 1:
        found = " and ".join(kinds) or f"only {_shown(list(entry))}"
        raise _Wrong(f"has {found}: must have one of {', '.join(_KINDS)}")
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
        raise _Wrong("has no output_tokens: must have them, or --output-tokens must say how many")
    if type(output_tokens) is not int or output_tokens < 1:
        raise _Wrong(f"output_tokens {_shown(output_tokens)}: must be a number of at least 1")
    by_ids = isinstance(entry.get("prompt"), list)
    return Prompt(content, len(content) if by_ids else None, output_tokens)


def _text_or_ids(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value):
        return tuple(value)
    raise _Wrong(f"prompt {_shown(value)}: must be a text, or a list of token ids, not empty")


def _messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise _Wrong(f"messages {_shown(value)}: must be a list, not empty")
    for each in value:
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise _Wrong(f"message {_shown(each)}: must be an object with a role")
    return tuple(value)


def _question(turns: Any) -> str | None:
    """The first thing that a human says; None if there is none."""
    if not isinstance(turns, list):
        raise _Wrong(f"conversations {_shown(turns)}: must be a list of turns")
    for turn in turns:
        if not isinstance(turn, dict) or not all(
            isinstance(turn.get(key), str) for key in ("from", "value")
        ):
            raise _Wrong(f"turn {_shown(turn)}: must be an object with texts, from and value")
    said = (turn["value"] for turn in turns if turn["from"] in _HUMAN)
    return next((text for text in said if text.strip()), None)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
