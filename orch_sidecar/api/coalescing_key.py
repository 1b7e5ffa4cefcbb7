"""Computes which requests one generation can answer: a digest that is equal if the answers are.

Pure. Knows the chat and completions requests of vLLM 0.32. A field that is not listed below might
carry state, so a request with it is not coalesced. The same holds where vLLM would reject one
spelling and accept the other: an invalid request never fails a valid one. Conversations must
consist of texts: media are fetched, or referred to by an id.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, Final

from orch_sidecar.api.body import Document

DIGEST_BYTES: Final = 32

# Fields that determine the answer. They are compared exactly.
_COMMON_FIELDS: Final = frozenset(
    {
        "model", "n", "stream", "stream_options", "max_tokens", "seed", "temperature", "top_p",
        "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
        "length_penalty", "use_beam_search", "stop", "stop_token_ids",
        "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens",
        "spaces_between_special_tokens", "truncate_prompt_tokens", "truncation_side", "logit_bias",
        "logprobs", "prompt_logprobs", "logprob_token_ids", "allowed_token_ids", "bad_words",
        "add_special_tokens", "response_format", "structured_outputs", "echo",
        "return_tokens_as_token_ids", "return_token_ids", "repetition_detection",
        "thinking_token_budget", "stream_interval",
        # Not part of the answer, but a client that sets a salt must not share with other salts.
        "cache_salt",
    }
)  # fmt: skip
_DECISIVE_FIELDS: Final = {
    "completions": _COMMON_FIELDS | {"prompt"},
    "chat": _COMMON_FIELDS
    | {
        "messages", "max_completion_tokens", "top_logprobs", "reasoning_effort",
        "include_reasoning", "parallel_tool_calls", "add_generation_prompt",
        "continue_final_message", "documents", "chat_template", "chat_template_kwargs",
        "return_prompt_text",
    },
}  # fmt: skip

# Fields that do not, whatever their value, provided that vLLM accepts it.
_TEXT_FIELDS: Final = frozenset(
    {
        "user",  # "this will be ignored by vLLM"
        "request_id",  # vLLM prefers the X-Request-Id that the sidecar always sends
        "service_tier",  # unknown to vLLM here; the sidecar reads the class from it
        "safety_identifier",  # unknown to vLLM
        "prompt_cache_key",  # unknown to vLLM here, and ignored by its other APIs
    }
)
_IGNORED_FIELDS: Final = _TEXT_FIELDS | {
    "metadata",  # unknown to vLLM
    "priority",  # 0 is the default; an engine without priorities rejects any other
}

# For other fields null means the same as absence. For these vLLM rejects it; for `tool_choice` it
# is not the default.
_NULLABLE_FIELDS: Final = frozenset(
    {
        "messages", "prompt", "use_beam_search", "length_penalty", "include_stop_str_in_output",
        "ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens",
        "bad_words", "add_special_tokens", "add_generation_prompt", "continue_final_message",
        "include_reasoning", "priority", "request_id", "routed_experts_prompt_start", "mm_payload",
        "tool_choice",
    }
)  # fmt: skip
_NULLABLE_FIELDS_BY_API: Final = {"completions": frozenset({"n"}), "chat": frozenset({"echo"})}

# The order of their keys is that of a constrained answer, or of what a template writes.
_ORDERED_FIELDS: Final = frozenset(
    {"response_format", "structured_outputs", "documents", "chat_template_kwargs"}
)

# vLLM rejects a float here, even an integral one.
_INTEGER_FIELDS: Final = frozenset({"thinking_token_budget"})

_ORDERED_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_SORTED_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def chat(document: Document) -> bytes | None:
    """Returns the key of a valid chat request for one sequence. None: it is not coalesced."""
    if not _is_deterministic(document) or not _has_texts_only(document.get("messages")):
        return None
    return _digest("chat", document)


def completions(document: Document) -> bytes | None:
    """Returns the same for a completions request."""
    return _digest("completions", document) if _is_deterministic(document) else None


def _digest(api: str, document: Document) -> bytes | None:
    decisive = _DECISIVE_FIELDS[api]
    key: dict[str, Any] = {}
    for field, value in document.items():
        if value is None:
            if field in _NULLABLE_FIELDS or field in _NULLABLE_FIELDS_BY_API[api]:
                return None
        elif field in decisive:
            if field in _ORDERED_FIELDS:
                value = _ORDERED_ENCODER.encode(value)  # noqa: PLW2901 (replaces the value)
            elif type(value) is float and value.is_integer() and field not in _INTEGER_FIELDS:
                value = int(value)  # noqa: PLW2901 (vLLM reads both alike)
            key[field] = value
        elif field not in _IGNORED_FIELDS or not _is_harmless(field, value):
            return None
    text = f"{api}\n{_SORTED_ENCODER.encode(key)}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=DIGEST_BYTES).digest()


def _is_deterministic(document: Document) -> bool:
    """Returns whether the engine samples greedily, or with a seed of the request."""
    temperature = document.get("temperature")
    if type(temperature) in (int, float) and temperature == 0:
        return True
    seed = document.get("seed")
    return type(seed) is int and seed != -1  # -1 means a random seed to vLLM


def _is_harmless(field: str, value: Any) -> bool:
    if field in _TEXT_FIELDS:
        return type(value) is str
    return field != "priority" or value == 0


def _has_texts_only(messages: Any) -> bool:
    """Returns whether a conversation consists of texts, without media and tool calls."""
    if type(messages) is not list:
        return False
    for message in messages:
        if not isinstance(message, dict):
            return False
        for field, value in message.items():
            if field == "content" and type(value) is list:
                if not all(isinstance(part, dict) and _is_text(part) for part in value):
                    return False
            elif type(value) is not str and value is not None:
                return False
    return True


def _is_text(part: dict[str, Any]) -> bool:
    return part.keys() == {"type", "text"} and part["type"] == "text" and type(part["text"]) is str
