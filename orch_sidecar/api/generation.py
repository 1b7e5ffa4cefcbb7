"""Reads parsed bodies into GenerationRequests: how many sequences the engine runs, how long each.

Pure. It must agree with vLLM on every body, or a request would cost more than it was admitted for.
vLLM parses with the same JSON library and then coerces (`"8"`, `8.0` and `true` become integers); a
value that could be read in two ways is rejected here instead.

Sequences (vLLM 0.32): `n` per prompt for completions and chat, prompts of a list each; one for
a response or a message. A list of token ids is one prompt; prompt embeddings count as prompts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from orch_sidecar.api.json_body import Document, InvalidBody, kind_of, well_formed


@dataclass(slots=True)
class GenerationRequest:
    """What a request asks of the engine. `cost` is in sequences.

    `prompt_tokens`: of all prompts together, where all are token ids and none is truncated.
    `service_tier`, `priority`: as given. `cache_salt`: as given, empty for null, None without one.
    `coalescing_key`: equal for requests that one generation can answer; None if this one cannot be
    coalesced, or if no key was requested.
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


# Looked at only where one of them is there at all.
_OPTIONAL_FIELDS: Final = frozenset(
    ("service_tier", "priority", "kv_transfer_params", "use_beam_search", "cache_salt")
)
_INTEGERS: Final = frozenset((int,))  # bool is another type
_LARGEST_INTEGER: Final = 2**31 - 1


def chat(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/v1/chat/completions`. Raises InvalidBody."""
    max_tokens = _integer(document, "max_tokens", 1)
    if "max_completion_tokens" in document:
        newer = _integer(document, "max_completion_tokens", 1)
        max_tokens = max_tokens if newer is None else newer
    return _request(document, _choices(document), max_tokens)


def completions(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/v1/completions`. Raises InvalidBody."""
    max_tokens = _integer(document, "max_tokens", 0)  # 0 is accepted: with `echo` it is of use
    prompts, prompt_tokens = _prompts(document, ctx_max)
    return _request(document, _choices(document) * prompts, max_tokens, prompt_tokens)


def responses(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/v1/responses`. Raises InvalidBody."""
    if _boolean(document, "background"):
        raise InvalidBody(
            "background must not be true: the engine would go on with such a response after its "
            "answer has ended, without a slot; send the request without background",
            "background",
        )
    return _request(document, 1, _integer(document, "max_output_tokens", 1))


def messages(document: Document, ctx_max: int | None) -> GenerationRequest:
    """Reads a request for `/v1/messages`. Raises InvalidBody."""
    # vLLM ignores `priority` here.
    return _request(document, 1, _integer(document, "max_tokens", 1), has_priority=False)


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
    model = document.get("model")
    return GenerationRequest(
        cost,
        "stream" in document and _boolean(document, "stream"),
        well_formed(model) if isinstance(model, str) else "",
        max_tokens,
        prompt_tokens,
        service_tier,
        priority,
        cache_salt,
    )


def _choices(document: Document) -> int:
    """Sequences for each prompt."""
    return (_integer(document, "n", 1) or 1) if "n" in document else 1


def _reject_unsupported(document: Document) -> None:
    if document.get("kv_transfer_params") is not None:
        raise InvalidBody(
            "kv_transfer_params is not supported, because it moves sequences between engines; "
            "send the request without it",
            "kv_transfer_params",
        )
    if _boolean(document, "use_beam_search"):
        raise InvalidBody(
            "use_beam_search must not be true: a beam search runs as changing numbers of "
            "sequences, which no number of slots covers",
            "use_beam_search",
        )


def _prompts(document: Document, ctx_max: int | None) -> tuple[int, int | None]:
    """Returns how many prompts a completions body has, and how many tokens if all are token ids."""
    prompts, tokens = _listed(document, "prompt", ctx_max)
    embeds, _ = _listed(document, "prompt_embeds", None, token_ids=False)
    if not prompts + embeds:
        raise InvalidBody(
            "the request has no prompt: send a string, token ids, or a list of them", "prompt"
        )
    if embeds or (tokens is not None and document.get("truncate_prompt_tokens") is not None):
        tokens = None
    return prompts + embeds, tokens


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


def _integer(
    document: Document, field: str, least: int, most: int = _LARGEST_INTEGER
) -> int | None:
    value = document.get(field)
    if value is None:
        return None
    if type(value) is not int:  # bool is a subclass of int
        raise InvalidBody(f"{field} must be an integer, not {_shown(value)}", field)
    if not least <= value <= most:
        raise InvalidBody(f"{field} must be from {least} to {most}, not {_shown(value)}", field)
    return value


def _text(document: Document, field: str) -> str | None:
    value = document.get(field)
    if value is None or isinstance(value, str):
        return value
    raise InvalidBody(f"{field} must be a string, not {_shown(value)}", field)


def _boolean(document: Document, field: str) -> bool:
    value = document.get(field)
    if value is None:
        return False
    if type(value) is not bool:
        raise InvalidBody(f"{field} must be true or false, not {_shown(value)}", field)
    return value


def _shown(value: Any) -> str:
    """Returns a value for an error text, shortened: it may be a prompt in the wrong field."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return "an integer of that size"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{kind_of(value)} of {len(text)} characters"
