"""Reads parsed bodies into GenerationRequests: how many sequences the engine runs, how long each.

Pure. It must agree with vLLM on every body, or a request would cost more than it was admitted for.
vLLM parses with the same JSON library and then coerces (`"8"`, `8.0` and `true` become integers); a
value that could be read in two ways is rejected here instead.

Sequences (vLLM 0.32): `n` per prompt for completions and chat, prompts of a list each; one for
a response, a message or a recording. A list of token ids is one prompt; prompt embeddings count as
prompts. Of models that pool, one for each input; for scores one for each text, or for each pair of
texts if the model reads them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from orch_sidecar.api.body import Document, InvalidBody, kind_of, shown
from orch_sidecar.api.options import NO_OPTIONS, RequestOptions
from orch_sidecar.api.refusal import well_formed
from vllm_plugin.contracts.profile import INTERACTIVE, ServiceClass


@dataclass(slots=True)
class GenerationRequest:
    """What a request asks of an engine, before a pool is chosen for it. `cost` is in sequences.

    Of its body:
    `prompt_tokens`: of all prompts together, where all are token ids and none is truncated.
    `service_tier`, `priority`: as given. `cache_salt`: as given, empty for null, None without one.
    `coalescing_key`: equal for requests that one generation can answer; None if this one cannot be
    coalesced, or if no key was requested. `joint`: so many sequences fewer where the model reads
    the two texts of a pair together. `refers`: to something that an engine may have stored.
    Of its client: `options`, `service_class`, `body_bytes`. `key`: the digest of its API key, empty
    without one; `weight`: of that key. `cache_owner`: equal for clients that share the engines'
    prefix cache; empty without keys. `prefixes`: of its prompt, if pools are chosen by them.
    `is_later_part`: it is a part of a request, and not its first.
    """

    cost: int
    stream: bool
    model: str
    max_tokens: int | None
    prompt_tokens: int | None = None
    service_tier: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    coalescing_key: bytes | None = None
    joint: int = 0
    refers: bool = False
    options: RequestOptions = NO_OPTIONS
    service_class: ServiceClass = INTERACTIVE
    body_bytes: int = 0
    key: bytes = b""
    weight: float = 1.0
    cache_owner: bytes = b""
    prefixes: tuple[int, ...] = ()
    is_later_part: bool = False


# Looked at only where one of them is there at all.
# For a divided engine: with them a client would name the peers from which the engine takes blocks
# or encoded media, and its figures would be those of others' work.
_TRANSFERS: Final = ("kv_transfer_params", "ec_transfer_params")
_OPTIONAL_FIELDS: Final = frozenset(
    ("service_tier", "priority", *_TRANSFERS, "use_beam_search", "cache_salt")
)
_INTEGERS: Final = frozenset((int,))  # bool is another type
_MAX_INTEGER: Final = 2**31 - 1
# What forms may have for booleans.
_TRUE_WORDS: Final = frozenset(("1", "on", "t", "true", "y", "yes"))
_FALSE_WORDS: Final = frozenset(("0", "off", "f", "false", "n", "no"))
# Of a clip of 30 s: decoders read 13 to 25 for a second. Nothing about it follows from its bytes.
_CLIP_TOKENS: Final = 400


def chat(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/v1/chat/completions`. Raises InvalidBody."""
    max_tokens = _integer(document, "max_tokens", 1)
    if "max_completion_tokens" in document:
        newer = _integer(document, "max_completion_tokens", 1)
        max_tokens = max_tokens if newer is None else newer
    choices = _choices(document) if "n" in document else 1
    return _request(document, choices, max_tokens)


def completions(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/v1/completions`. Raises InvalidBody."""
    max_tokens = _integer(document, "max_tokens", 0)  # 0 is accepted: with `echo` it is of use
    prompts, prompt_tokens = _prompts(document, ctx_max)
    choices = _choices(document) if "n" in document else 1
    return _request(document, choices * prompts, max_tokens, prompt_tokens)


def responses(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/v1/responses`. Raises InvalidBody."""
    if _boolean(document, "background"):
        raise InvalidBody(
            "background must not be true: the engine would go on with such a response after its "
            "answer has ended, without a slot; send the request without background",
            "background",
        )
    request = _request(document, 1, _integer(document, "max_output_tokens", 1))
    request.refers = document.get("previous_response_id") is not None
    return request


def messages(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/v1/messages`. Raises InvalidBody."""
    # vLLM ignores `priority` here.
    return _request(document, 1, _integer(document, "max_tokens", 1), has_priority=False)


def chat_batch(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/v1/chat/completions/batch`. Raises InvalidBody."""
    request = chat(document, ctx_max)
    request.cost *= _conversations(document, "messages")
    return request


def input_or_messages(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/v1/embeddings`, `/classify` or `/pooling`. Raises InvalidBody."""
    if document.get("data") is not None:
        raise InvalidBody(
            "data must not be given: an IO processor makes of it any number of sequences, which "
            "no number of slots covers; send input or messages",
            "data",
        )
    field = _one_of(document, ("input", "messages"))
    value = document[field]
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    if field == "messages" or kinds == {dict} or (kinds == {list} and _has_messages(value)):
        return _request(document, _conversations(document, field), 0)
    count, tokens = _prompts_in(document, field, ctx_max)
    return _request(document, count, 0, tokens)


def cohere_embed(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/v2/embed`. Raises InvalidBody."""
    field = _one_of(document, ("texts", "images", "inputs"))
    return _request(document, _texts(document, field), 0)


def rerank(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/rerank`, `/v1/rerank` or `/v2/rerank`. Raises InvalidBody."""
    return _pairs(document, 1, _texts(document, "documents"))


def scores(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/score` or `/v1/score`. Raises InvalidBody."""
    first = _one_of(document, tuple(_SECOND_OF))
    second = _one_of(document, _SECOND_OF[first])
    return _pairs(document, _texts(document, first), _texts(document, second))


def generative_scores(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/generative_scoring`: a token for each item. Raises InvalidBody."""
    return _request(document, _listed(document, "items", ctx_max)[0] or 1, 1)


def decision(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/v1/systemone` or `/v1/decisions` (vLLM 0.33): a token for each
    question. Raises InvalidBody."""
    questions = document.get("questions")
    if not isinstance(questions, list | dict) or not questions:
        raise InvalidBody("questions must be a list or an object, and not empty", "questions")
    return _request(document, len(questions), 1)


def recording(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads the texts of a form for `/v1/audio/transcriptions` or `/v1/audio/translations`. Raises
    InvalidBody.

    The engine's plugin has the clips of a recording run one after the other, so that it takes one
    slot, however long it is; limits of tokens are those of a clip.
    """
    given: Document = {"model": document.get("model")}
    for field in ("stream", "use_beam_search"):
        if document.get(field):  # an empty text is no value
            given[field] = _flag(document, field)
    tokens = _CLIP_TOKENS if ctx_max is None else min(_CLIP_TOKENS, ctx_max)
    return _request(given, 1, None, tokens)


def invocations(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/invocations`, which is one of any other API. Raises InvalidBody."""
    fields = _one_of(document, tuple(_INVOKED_APIS))
    return _INVOKED_APIS[fields](document, ctx_max)


def _request(
    document: Document,
    cost: int,
    max_tokens: int | None,
    prompt_tokens: int | None = None,
    *,
    has_priority: bool = True,
) -> GenerationRequest:
    """Adds what all APIs have in common to what one of them has read."""
    service_tier = priority = cache_salt = None
    if not _OPTIONAL_FIELDS.isdisjoint(document):
        _reject_unsupported(document)
        service_tier = _text(document, "service_tier")
        if has_priority:
            priority = _integer(document, "priority", -(2**63), 2**63 - 1)
        if "cache_salt" in document:
            cache_salt = _text(document, "cache_salt") or ""
    model, stream = document.get("model"), document.get("stream", False)
    if type(model) is not str:
        model = ""
    return GenerationRequest(
        cost,
        stream if type(stream) is bool else _boolean(document, "stream"),
        model if model.isascii() else well_formed(model),
        max_tokens,
        prompt_tokens,
        service_tier,
        priority,
        cache_salt,
    )


def _choices(document: Document) -> int:
    """Returns the sequences for each prompt."""
    return _integer(document, "n", 1) or 1


def _reject_unsupported(document: Document) -> None:
    for field in _TRANSFERS:
        if document.get(field) is not None:
            raise InvalidBody(
                f"{field} is not supported, because it moves work between engines; send the "
                "request without it",
                field,
            )
    if _boolean(document, "use_beam_search"):
        raise InvalidBody(
            "use_beam_search must not be true: a beam search runs as changing numbers of "
            "sequences, which no number of slots covers",
            "use_beam_search",
        )


def _prompts(document: Document, ctx_max: int | None) -> tuple[int, int | None]:
    """Returns how many prompts a completions body has, and how many tokens if all are token ids."""
    embeds, _ = _listed(document, "prompt_embeds", None, token_ids=False)
    prompts, tokens = _prompts_in(document, "prompt", ctx_max, least=not embeds)
    return prompts + embeds, None if embeds else tokens


def _prompts_in(
    document: Document, field: str, ctx_max: int | None, *, least: int = 1
) -> tuple[int, int | None]:
    """Returns how many prompts a field has, at `least`, and how many tokens if all are token
    ids."""
    truncated = document.get("truncate_prompt_tokens") is not None
    prompts, tokens = _listed(document, field, None if truncated else ctx_max)
    if prompts < least:
        lacks = f"the request has no {field}"
        if field == "prompt":  # vLLM's words
            lacks = "Either prompt or prompt_embeds must be provided and non-empty"
        raise InvalidBody(f"{lacks}: send a string, token ids, or a list of them", field)
    return prompts, None if truncated else tokens


def _one_of(document: Document, fields: tuple[str, ...]) -> str:
    """Returns which of these fields a body has: vLLM takes one, where several are given."""
    given = [field for field in fields if document.get(field) is not None]
    if len(given) != 1:
        names = f"{', '.join(fields[:-1])} or {fields[-1]}" if fields[1:] else fields[0]
        found = " and ".join(given) or "none of them"
        raise InvalidBody(f"the request must have {names}, and one alone, not {found}", fields[0])
    return given[0]


def _conversations(document: Document, field: str) -> int:
    """Returns how many conversations a field has: one, or a list of them."""
    value = document.get(field)
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    if kinds == {list}:
        return len(document[field])
    if kinds == {dict}:
        return 1
    raise InvalidBody(f"{field} must be a list of messages, or of such lists", field)


def _has_messages(lists: list[list[Any]]) -> bool:
    return any(isinstance(item, dict) for each in lists for item in each)


def _texts(document: Document, field: str) -> int:
    """Returns how many texts or images a field has: one, or a list of them."""
    value = document.get(field)
    if value is None or value == []:
        raise InvalidBody(f"the request has no {field}: send a text, or a list of texts", field)
    return len(value) if isinstance(value, list) else 1


def _pairs(document: Document, first: int, second: int) -> GenerationRequest:
    request = _request(document, first + second, 0)
    request.joint = min(first, second)
    return request


def _listed(
    document: Document, field: str, ctx_max: int | None, *, token_ids: bool = True
) -> tuple[int, int | None]:
    """Returns how many prompts a field contains, and how many tokens if all are token ids."""
    value = document.get(field)
    if value is None:
        return 0, None
    if isinstance(value, str):
        return 1, None
    if not isinstance(value, list):
        raise InvalidBody(f"{field} must be a string or a list, not {kind_of(value)}", field)
    if not value:
        return 0, None
    kinds = set(map(type, value))
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidBody(f"the items of {field} must have the same type, not {names}", field)
    kind = kinds.pop()
    if kind is str:
        return len(value), None
    if kind is list and token_ids:
        return len(value), sum(_tokens(item, field, ctx_max) for item in value)
    if kind is int and token_ids:
        return 1, _fitting(len(value), field, ctx_max)
    raise InvalidBody(
        f"the items of {field} must be strings or token ids, not {kind_of(value[0])}", field
    )


def _tokens(tokens: list[Any], field: str, ctx_max: int | None) -> int:
    """Counts a list of token ids. Raises InvalidBody if it has other values or is too long."""
    if not _INTEGERS.issuperset(map(type, tokens)):
        raise InvalidBody(f"a list in {field} must contain only token ids (integers)", field)
    return _fitting(len(tokens), field, ctx_max)


def _fitting(tokens: int, field: str, ctx_max: int | None) -> int:
    if ctx_max is not None and tokens > ctx_max:
        raise InvalidBody(
            f"{field} has {tokens} tokens, but the context of the model has {ctx_max}: shorten it",
            field,
        )
    return tokens


def _integer(document: Document, field: str, least: int, most: int = _MAX_INTEGER) -> int | None:
    value = document.get(field)
    if value is None:
        return None
    if type(value) is not int:  # bool is a subclass of int
        raise InvalidBody(f"{field} must be an integer, not {shown(value)}", field)
    if not least <= value <= most:
        raise InvalidBody(f"{field} must be from {least} to {most}, not {shown(value)}", field)
    return value


def _text(document: Document, field: str) -> str | None:
    value = document.get(field)
    if value is None or isinstance(value, str):
        return value
    raise InvalidBody(f"{field} must be a string, not {shown(value)}", field)


def _boolean(document: Document, field: str) -> bool:
    value = document.get(field)
    if value is None:
        return False
    if type(value) is not bool:
        raise InvalidBody(f"{field} must be true or false, not {shown(value)}", field)
    return value


def _flag(document: Document, field: str) -> bool:
    """Reads a boolean of a form, as vLLM does."""
    value = document[field].lower()
    if value not in _TRUE_WORDS | _FALSE_WORDS:
        raise InvalidBody(f"{field} must be true or false, not {shown(document[field])}", field)
    return value in _TRUE_WORDS


# The two fields of a request for scores.
_SECOND_OF: Final[dict[str, tuple[str, ...]]] = {
    "queries": ("documents", "items"),
    "data_1": ("data_2",),
    "text_1": ("text_2",),
}
# Which API an invocation is for, by a field that it must have.
_INVOKED_APIS: Final[dict[str, Callable[[Document, int | None], GenerationRequest]]] = {
    "messages": chat_batch,
    "prompt": completions,
    "input": input_or_messages,
    "query": rerank,
    **dict.fromkeys(_SECOND_OF, scores),
}
