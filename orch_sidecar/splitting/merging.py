"""Merges the answers to the parts of a request.

Pure. Lists of answers and counts are merged; all other fields are those of the first part's answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from orch_sidecar.api.endpoints import Division
from orch_sidecar.splitting.division import Object, Part

_OBJECT: Final = msgspec.json.Decoder(Object)
_OBJECTS: Final = msgspec.json.Decoder(list[Object])
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_LISTS: Final = msgspec.json.Decoder(dict[str, list[msgspec.Raw] | None])
_ENCODER: Final = msgspec.json.Encoder()
_VALUE: Final = msgspec.json.Decoder()
DONE: Final = b"data: [DONE]\n\n"
_DATA: Final = b"data:"
# Counts, in the APIs of OpenAI and of Cohere.
_COUNTS: Final = ("usage", "meta")


class Unmergeable(Exception):
    """An engine's answer does not have the form of this API."""


def merge(division: Division, answers: Sequence[tuple[Part, bytes]], top_n: int) -> bytes:
    """Returns the answer to a request of which these are the parts, in order. `top_n`: so many of
    those that are ranked; 0: all. Raises Unmergeable."""
    try:
        documents = [(part, _OBJECT.decode(body)) for part, body in answers]
        first = dict(documents[0][1])
        first[division.answers] = _merge_fields(division, documents, top_n)
        if "texts" in first:  # Cohere's embeddings repeat what they are of
            texts = [item for _, each in documents for item in _LIST.decode(each["texts"])]
            first["texts"] = _list(texts)
        for field in _COUNTS:
            if field in first:
                first[field] = sum_counts((part, each[field]) for part, each in documents)
        return _ENCODER.encode(first)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise Unmergeable(f"{type(error).__name__}: {error}") from error


def _merge_fields(
    division: Division, documents: Sequence[tuple[Part, Object]], top_n: int
) -> msgspec.Raw:
    name = division.answers
    if bytes(documents[0][1][name]).lstrip().startswith(b"{"):  # lists by their names
        lists: dict[str, list[msgspec.Raw] | None] = {}
        for _, document in documents:
            for key, values in _LISTS.decode(document[name]).items():
                known = lists.setdefault(key, None if values is None else [])
                if known is not None and values is not None:
                    known += values
        return msgspec.Raw(_ENCODER.encode(lists))
    items: list[Object] = []
    for part, document in documents:
        for item in _OBJECTS.decode(document[name]):
            item["index"] = _shifted(item["index"], part)
            items.append(item)
    if division.ranked:
        items.sort(key=lambda item: -float(bytes(item["relevance_score"])))
        items = items[:top_n] if top_n else items
    else:
        items.sort(key=lambda item: int(bytes(item["index"])))
    return msgspec.Raw(_ENCODER.encode(items))


def _shifted(index: msgspec.Raw, part: Part) -> msgspec.Raw:
    return msgspec.Raw(b"%d" % (part.offset + int(bytes(index))))


def _list(items: Sequence[msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(b"[" + b",".join(items) + b"]")


def sum_counts(counts: Iterator[tuple[Part, msgspec.Raw]]) -> msgspec.Raw:
    """Adds up the token counts of parts; a prompt that several parts repeat counts once."""
    total: Any = None
    for part, count in counts:
        found = _VALUE.decode(count)
        if part.repeats_prompt and isinstance(found, dict):
            read = found.get("prompt_tokens", 0)
            found = {
                name: 0 if name == "prompt_tokens" else value
                for name, value in found.items()
                if name != "prompt_tokens_details"
            }
            if "total_tokens" in found:
                found["total_tokens"] -= read
        total = _sum_of(total, found)
    return msgspec.Raw(_ENCODER.encode(total))


def _sum_of(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {name: _sum_of(one.get(name), value) for name, value in other.items()}
    if type(one) in (int, float) and type(other) in (int, float):
        return one + other
    return other if one is None else one


class MergedEvents:
    """The stream of a whole request, made of the events of its parts' streams.

    `usage`: the last event of each part that has counts, and no choices.
    """

    def __init__(self) -> None:
        self._created: msgspec.Raw | None = None
        self._usage: list[tuple[Part, Object]] = []
        self._failed = False

    def of(self, part: Part, event: bytes) -> bytes:
        """Returns the event of the merged stream for a part's event; nothing for those that end a
        stream, or come after an error. Raises Unmergeable."""
        if self._failed:
            return b""
        if not event.startswith(_DATA):
            return event  # a comment, which keeps the connection alive
        data = event[len(_DATA) :].strip()
        if data == b"[DONE]":
            return b""
        try:
            document = _OBJECT.decode(data)
            if "error" in document:
                self._failed = True
                return event
            choices = _OBJECTS.decode(document["choices"])
            if not choices and bytes(document.get("usage", b"null")) != b"null":
                self._usage.append((part, document))
                return b""
            if self._created is None:
                self._created = document.get("created")
            for choice in choices:
                choice["index"] = _shifted(choice["index"], part)
            document["choices"] = msgspec.Raw(_ENCODER.encode(choices))
            return self._event(document)
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            raise Unmergeable(f"{type(error).__name__}: {error}") from error

    def last(self) -> bytes:
        """Returns the events that end the stream."""
        out = b""
        if self._usage:
            document = dict(self._usage[0][1])
            document["usage"] = sum_counts((part, each["usage"]) for part, each in self._usage)
            out = self._event(document)
        return out + DONE

    def _event(self, document: Object) -> bytes:
        if self._created is not None:
            document["created"] = self._created
        return b"data: " + _ENCODER.encode(document) + b"\n\n"
