"""The text, the ids and the failure in the body of an answer, by API."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.soak.answers import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES


class InvalidJson(Exception):
    """The body is not what the API sends."""


@dataclass(slots=True)
class Spoken:
    """What an answer says. `ended`: choices that are finished (0 for an API with one choice).
    `output_tokens`: of its usage. `error`: the failure with which a stream ends. Of OpenAI's API it
    may come behind the engine's own failure, if that is the last event but [DONE]."""

    texts: defaultdict[int, str] = field(default_factory=lambda: defaultdict(str))
    ended: set[int] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)
    output_tokens: int | None = None
    error: dict[str, Any] | None = None


def read_document(path: str, body: bytes) -> Spoken:
    """An answer that is no stream. Raises InvalidJson."""
    spoken = Spoken()
    try:
        document = json.loads(body)
        spoken.ids.add(document["id"])
        usage = document["usage"]
        if path == RESPONSES:
            spoken.texts[0] = document["output"][0]["content"][0]["text"]
            spoken.ended.add(0)
        elif path == MESSAGES:
            spoken.texts[0] = document["content"][0]["text"]
            spoken.ended.add(0)
        elif path == EMBEDDINGS:
            for vector in document["data"]:
                spoken.texts[vector["index"]] += vector["embedding"]
                spoken.ended.add(vector["index"])
        else:
            for choice in document["choices"]:
                part = choice["message"]["content"] if path == CHAT else choice["text"]
                spoken.texts[choice["index"]] += part
                spoken.ended.add(choice["index"])
        spoken.output_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidJson(f"{error!r} in {body[:200]!r}") from error
    return spoken


def read_stream(path: str, body: bytes) -> Spoken:
    """A stream that ended as it was framed. Raises InvalidJson, also if it only stops."""
    spoken = Spoken()
    try:
        events = list(_events(body))
        if path in (CHAT, COMPLETIONS):
            _read_chunks(path, events, spoken)
        else:
            _read_named(path, events, spoken)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidJson(f"{error!r} at the end of {body[-200:]!r}") from error
    return spoken


def _events(body: bytes) -> Iterator[tuple[str, str]]:
    *events, rest = body.split(b"\n\n")
    if rest:
        raise ValueError(f"half an event {rest[:80]!r}")
    for event in events:
        name, data = "", ""
        for line in event.decode().split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: ") and not data:
                data = line[6:]
            else:
                raise ValueError(f"line {line[:80]!r}")
        yield name, data


def _read_chunks(path: str, events: list[tuple[str, str]], spoken: Spoken) -> None:
    if not events or events[-1][1] != "[DONE]":
        raise ValueError("no [DONE]")
    for _, data in events[:-1]:
        if spoken.error is not None and not data.startswith('{"error"'):
            raise ValueError("an event after the error")
        document = json.loads(data)
        if "error" in document:
            spoken.error = document["error"]
            continue
        spoken.ids.add(document["id"])
        if document.get("usage"):
            spoken.output_tokens = document["usage"]["completion_tokens"]
        for choice in document["choices"]:
            index = choice["index"]
            if index in spoken.ended:
                raise ValueError(f"choice {index} goes on after its end")
            part = choice["delta"]["content"] if path == CHAT else choice["text"]
            spoken.texts[index] += part
            if choice["finish_reason"] is not None:
                spoken.ended.add(index)


def _read_named(path: str, events: list[tuple[str, str]], spoken: Spoken) -> None:
    for name, data in events:
        if spoken.error is not None or 0 in spoken.ended:
            raise ValueError(f"event {name!r} after the end")
        document = json.loads(data)
        if name != document["type"]:
            raise ValueError(f"event {name!r} of type {document['type']!r}")
        if name == "error":
            spoken.error = document.get("error") or document
        elif name in ("response.created", "response.completed"):
            response = document["response"]
            spoken.ids.add(response["id"])
            if name == "response.completed":
                spoken.ended.add(0)
                spoken.output_tokens = response["usage"]["output_tokens"]
        elif name == "message_start":
            spoken.ids.add(document["message"]["id"])
        elif name == "message_delta":
            spoken.output_tokens = document["usage"]["output_tokens"]
        elif name == "message_stop":
            spoken.ended.add(0)
        else:
            delta = document["delta"]
            spoken.texts[0] += delta["text"] if path == MESSAGES else delta
    if spoken.error is None and 0 not in spoken.ended:
        raise ValueError("it stops without an end")
