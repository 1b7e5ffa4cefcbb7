"""Divides the body of a request into those of its parts, and merges the answers to these.

Pure. A list of prompts, texts or documents is divided into slices of it, and `n` of a prompt that
is larger than a part into smaller ones. All other fields stay as the client's bytes. Lists of
answers and counts are merged; all other fields are those of the first part's answer.

With a `seed`, vLLM 0.32 samples choice i of a prompt by `seed + i` (`ParentRequest`), and one
alone by `seed`: so the choices from i on are those of `seed + i`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import msgspec

from orch_sidecar.api.body import UTF_8, InvalidBody
from orch_sidecar.api.endpoints import Division
from orch_sidecar.api.generation import GenerationRequest

Object = dict[str, msgspec.Raw]

_OBJECT: Final = msgspec.json.Decoder(Object)
_OBJECTS: Final = msgspec.json.Decoder(list[Object])
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_LISTS: Final = msgspec.json.Decoder(dict[str, list[msgspec.Raw] | None])
_INTEGER: Final = msgspec.json.Decoder(int | None)
_ENCODER: Final = msgspec.json.Encoder()
_VALUE: Final = msgspec.json.Decoder()
_NULL: Final = msgspec.Raw(b"null")
_RANDOM_SEED: Final = -1  # to vLLM: none
# OpenAI's limit of inputs: a request of one that is never served whole is not held for hours.
MAX_PARTS: Final = 2048
# Below this temperature vLLM samples greedily, and then accepts no `n` above 1.
_GREEDY: Final = 1e-5
DONE: Final = b"data: [DONE]\n\n"
_DATA: Final = b"data:"
# Counts, in the APIs of OpenAI and of Cohere.
_COUNTS: Final = ("usage", "meta")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a request.

    `cost`: in sequences. `prompt_tokens`: of its prompts, None if they are not counted. `offset`:
    the index of its first answer. `repeats_prompt`: its prompt is that of the part before.
    """

    body: bytes
    cost: int
    prompt_tokens: int | None
    offset: int
    repeats_prompt: bool


def divide(
    body: bytes, division: Division, whole: GenerationRequest, size: int
) -> Iterator[Part] | None:
    """Divides a request into parts of at most `size` sequences, or of one item where that has more:
    each is made when it is asked for.

    None: it cannot be divided. Raises InvalidBody for too many parts, and if its choices have no
    equals in parts.
    """
    document = _parse(body)
    if document is None:
        return None
    n = (_INTEGER.decode(document["n"]) or 1) if division.n and "n" in document else 1
    lists = {
        field: items
        for field in division.lists
        if field in document and (items := _items(document[field])) is not None
    }
    count = max(map(len, lists.values()), default=1)
    lists = {field: items for field, items in lists.items() if len(items) == count > 1}
    found = _costs(division, whole.cost, count, n)
    if found is None:  # such as a list of token ids, which is one item
        lists, count = {}, 1
        found = _costs(division, whole.cost, count, n)
    if found is None:
        return None
    each, beside = found
    divider = _Divider(document, whole, lists, each, beside, choosing=division.n)
    by_choice = each == n > size and beside == 0
    most = size if by_choice else max(1, (size - beside) // each)
    made = count * ceil(n / most) if by_choice else ceil(count / most)
    if made > MAX_PARTS:
        raise InvalidBody(
            f"the request has {whole.cost} sequences, which {size} at a time would take {made} "
            f"parts, and {MAX_PARTS} are the most: send fewer at once",
            "n" if by_choice else next(iter(lists)),
        )
    if made < 2:
        return None
    return divider.choices(count, n, most) if by_choice else divider.slices(count, most)


def _parse(body: bytes) -> Object | None:
    """Returns the fields of a body, each as its bytes. None: this parser cannot read them."""
    encoding = json.detect_encoding(body)
    try:
        text = body if encoding == UTF_8[0] else body.decode(encoding).encode()
        return _OBJECT.decode(text.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _items(value: msgspec.Raw) -> list[msgspec.Raw] | None:
    try:
        return _LIST.decode(value)
    except msgspec.MsgspecError:
        return None


def _costs(division: Division, cost: int, count: int, n: int) -> tuple[int, int] | None:
    """Returns the sequences of each of `count` items, and those beside them in each part: a query
    of its own. None: the items are not all that is counted."""
    if cost == count * n:
        return n, 0
    if count > 1 and not division.n:  # there is a query, or each has one
        if cost == count + 1:
            return 1, 1
        if cost == 2 * count:
            return 2, 0
    return None


class _Divider:
    """Makes the bodies of the parts of one request."""

    def __init__(
        self,
        document: Object,
        whole: GenerationRequest,
        lists: dict[str, list[msgspec.Raw]],
        each: int,
        beside: int,
        *,
        choosing: bool,
    ) -> None:
        """`lists`: those that are divided. `each`: the sequences of an item, and `beside` it;
        `choosing`: each of these has an answer."""
        if "top_n" in document:
            document = document | {"top_n": msgspec.Raw(b"0")}  # it is cut when they are together
        self._document = document
        self._whole = whole
        self._lists = lists
        self._each, self._beside, self._choosing = each, beside, choosing

    def slices(self, count: int, most: int) -> Iterator[Part]:
        """Yields parts of at most so many items."""
        for start in range(0, count, most):
            stop = min(start + most, count)
            cost = (stop - start) * self._each + self._beside
            body = self._encoded(start, stop, {})
            offset = start * (self._each if self._choosing else 1)
            yield Part(body, cost, self._tokens(start, stop), offset, False)

    def choices(self, count: int, n: int, most: int) -> Iterator[Part]:
        """Returns parts of at most so many of the `n` choices of one item. Raises InvalidBody."""
        seed = _INTEGER.decode(self._document.get("seed", _NULL))
        temperature = _VALUE.decode(self._document.get("temperature", _NULL))
        if isinstance(temperature, int | float) and temperature < _GREEDY:
            raise InvalidBody(f"n must be 1 when using greedy sampling, got {n}", "n")
        if seed is not None and seed < _RANDOM_SEED:
            raise InvalidBody(
                f"seed must not be negative where n is run in parts, because vLLM counts up from "
                f"it, and takes -1 for none: it is {seed}",
                "seed",
            )
        return self._choices(count, n, most, None if seed == _RANDOM_SEED else seed)

    def _choices(self, count: int, n: int, most: int, seed: int | None) -> Iterator[Part]:
        for item in range(count):
            for start in range(0, n, most):
                cost = min(most, n - start)
                fields = {"n": msgspec.Raw(b"%d" % cost)}
                if seed is not None:
                    fields["seed"] = msgspec.Raw(b"%d" % (seed + start))
                body = self._encoded(item, item + 1, fields)
                tokens = self._tokens(item, item + 1)
                yield Part(body, cost, tokens, item * n + start, start > 0)

    def _encoded(self, start: int, stop: int, fields: Object) -> bytes:
        sliced = {field: _list(items[start:stop]) for field, items in self._lists.items()}
        return _ENCODER.encode(self._document | sliced | fields)

    def _tokens(self, start: int, stop: int) -> int | None:
        """Counts the token ids of these items, where the prompts are such."""
        tokens = self._whole.prompt_tokens
        if tokens is None or not self._lists:
            return tokens
        [items] = self._lists.values()
        return sum(bytes(item).count(b",") + 1 for item in items[start:stop])


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
