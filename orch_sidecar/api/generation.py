"""A request body in, what admission must know out: how many sequences it puts in the engine.

Pure. The reading must agree with vLLM's for every body, or a request would cost more than it
was admitted for. vLLM parses with the same JSON library and then coerces (`"8"`, `8.0` and
`true` become integers); what could be read in two ways is refused here instead.

Sequences (vLLM 0.32): `n` per prompt for completions and chat, prompts of a list each; one for
a response or a message. A list of token ids is one prompt; prompt embeddings count as prompts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from orch_sidecar.api import coalescing_key, json_body
from orch_sidecar.api.json_body import InvalidJson, kind_of
from orch_sidecar.api.refusal import Refusal


class Api(StrEnum):
    """The endpoint's API, which decides how a body is read and an error is written."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    OTHER = "other"


_CHAT, _COMPLETIONS = Api.CHAT, Api.COMPLETIONS  # a member is looked up slowly in its enum


@dataclass(slots=True)
class GenerationRequest:
    """What a request asks of the engine. `cost` is in sequences.

    `prompt_tokens`: of all prompts together, where all are token ids and none is cut short.
    `service_tier`, `priority`: as given. `coalescing_key`: equal for requests that one decode can
    answer; None for one that needs a decode of its own, or if it was not asked for.
    """

    cost: int
    stream: bool
    model: str
    max_tokens: int | None
    prompt_tokens: int | None = None
    service_tier: str | None = None
    priority: int | None = None
    coalescing_key: bytes | None = None


# The fields that limit the output, by API. vLLM takes 0 for completions with `echo`.
_TOKEN_LIMITS: Final = {
    Api.CHAT: ("max_tokens", "max_completion_tokens"),
    Api.COMPLETIONS: ("max_tokens",),
    Api.RESPONSES: ("max_output_tokens",),
    Api.MESSAGES: ("max_tokens",),
}
# Looked at only where one of them is there at all.
_SELDOM: Final = frozenset(
    ("n", "service_tier", "priority", "kv_transfer_params", "use_beam_search", "background")
)
_INTEGERS: Final = frozenset((int,))  # a bool is of another type
_LARGEST_INTEGER: Final = 2**31 - 1


def read(
    api: Api,
    body: bytes,
    max_depth: int,
    ctx_max: int | None,
    coalesce: bool = False,
    *,
    outlined: bool = False,
) -> GenerationRequest | Refusal:
    """Reads a body. A Refusal names the field, its value and the rule.

    `coalesce`: whether to look if one decode could answer this and other requests. `outlined`:
    it is the outline of a body, in which not everything is that makes two requests the same.
    """
    assert not (coalesce and outlined)
    try:
        document = json_body.parse(body, max_depth, outlined=outlined)
        return _demand(api, document, ctx_max, coalesce)
    except InvalidJson as unreadable:
        return unreadable.refusal


def _demand(
    api: Api, document: dict[str, Any], ctx_max: int | None, coalesce: bool
) -> GenerationRequest:
    cost, prompt_tokens, service_tier, priority = 1, None, None, None
    if not _SELDOM.isdisjoint(document):
        _refuse_unsupported(api, document)
        if api is _CHAT or api is _COMPLETIONS:
            cost = _integer(document, "n", 1) or 1
        service_tier = _text(document, "service_tier")
        if api is not Api.MESSAGES:  # there vLLM ignores it
            priority = _integer(document, "priority", -(2**63), 2**63 - 1)
    max_tokens = _max_tokens(api, document)
    if api is _COMPLETIONS:
        prompts, prompt_tokens = _prompts(document, ctx_max)
        cost *= prompts
    model = document.get("model")
    return GenerationRequest(
        cost,
        _boolean(document, "stream"),
        model if isinstance(model, str) else "",
        max_tokens,
        prompt_tokens,
        service_tier,
        priority,
        coalescing_key.digest(api, document) if coalesce and cost == 1 else None,
    )


def _max_tokens(api: Api, document: dict[str, Any]) -> int | None:
    max_tokens = None
    for field in _TOKEN_LIMITS[api]:
        if field in document:
            limit = _integer(document, field, 0 if api is _COMPLETIONS else 1)
            max_tokens = limit if limit is not None else max_tokens
    return max_tokens


def _refuse_unsupported(api: Api, document: dict[str, Any]) -> None:
    if document.get("kv_transfer_params") is not None:
        raise InvalidJson(
            "kv_transfer_params is not accepted: it moves sequences between engines",
            "kv_transfer_params",
        )
    if _boolean(document, "use_beam_search"):
        raise InvalidJson(
            "use_beam_search is not accepted: a beam search runs as changing numbers of "
            "sequences, which no slot count covers",
            "use_beam_search",
        )
    if api is Api.RESPONSES and _boolean(document, "background"):
        raise InvalidJson(
            "background is not accepted: such a response goes on in the engine after its "
            "answer has ended, past any slot",
            "background",
        )


def _prompts(document: dict[str, Any], ctx_max: int | None) -> tuple[int, int | None]:
    """How many prompts a completions body has, and how many tokens, if all are token ids."""
    prompts, tokens = _listed(document, "prompt", ctx_max)
    embeds, _ = _listed(document, "prompt_embeds", None)
    if not prompts + embeds:
        raise InvalidJson("a prompt is needed: a string, token ids, or a list of them", "prompt")
    if embeds or (tokens is not None and document.get("truncate_prompt_tokens") is not None):
        tokens = None
    return prompts + embeds, tokens


def _listed(document: dict[str, Any], field: str, ctx_max: int | None) -> tuple[int, int | None]:
    value = document.get(field)
    if value is None:
        return 0, None
    if isinstance(value, str):
        return 1, None
    if not isinstance(value, list):
        raise InvalidJson(f"{field} must be a string or a list, not {kind_of(value)}", field)
    if not value:
        return 0, None
    kinds = set(map(type, value))
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidJson(f"the items of {field} must be of one type, not {names}", field)
    kind = kinds.pop()
    if kind is str:
        return len(value), None
    if kind is list and field == "prompt":
        return len(value), sum(_tokens(item, field, ctx_max) for item in value)
    if kind is int and field == "prompt":
        return 1, _fitting(len(value), field, ctx_max)
    raise InvalidJson(f"the items of {field} must not be {kind_of(value[0])}", field)


def _tokens(tokens: list[Any], field: str, ctx_max: int | None) -> int:
    """How many they are, if they are token ids and fit."""
    if not _INTEGERS.issuperset(map(type, tokens)):
        raise InvalidJson(f"a list in {field} must hold token ids (integers) only", field)
    return _fitting(len(tokens), field, ctx_max)


def _fitting(tokens: int, field: str, ctx_max: int | None) -> int:
    if ctx_max is not None and tokens > ctx_max:
        raise InvalidJson(f"{field} has {tokens} tokens, the model's context is {ctx_max}", field)
    return tokens


def _integer(
    document: dict[str, Any], field: str, least: int, most: int = _LARGEST_INTEGER
) -> int | None:
    value = document.get(field)
    if value is None:
        return None
    if type(value) is not int:  # a bool is an int, too
        raise InvalidJson(f"{field} must be an integer, not {_shown(value)}", field)
    if not least <= value <= most:
        raise InvalidJson(f"{field} must be from {least} to {most}, not {_shown(value)}", field)
    return value


def _text(document: dict[str, Any], field: str) -> str | None:
    value = document.get(field)
    if value is None or isinstance(value, str):
        return value
    raise InvalidJson(f"{field} must be a string, not {_shown(value)}", field)


def _boolean(document: dict[str, Any], field: str) -> bool:
    value = document.get(field)
    if value is None:
        return False
    if type(value) is not bool:
        raise InvalidJson(f"{field} must be true or false, not {_shown(value)}", field)
    return value


def _shown(value: Any) -> str:
    """A value for an error message, shortened: a prompt may stand where a number should."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return "an integer of that size"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{kind_of(value)} of {len(text)} characters"
