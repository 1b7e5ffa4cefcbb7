"""Which requests have one digest: those that get the same answer, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orch_sidecar.api import coalescing_key
from orch_sidecar.api.coalescing_key import DIGEST_BYTES
from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.generation import GenerationRequest
from tests.orch_sidecar import apis

CHAT = {
    "model": "m",
    "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}],
    "temperature": 0,
}
COMPLETION = {"model": "m", "prompt": "hi", "temperature": 0, "max_tokens": 5}


def chat(**fields: Any) -> bytes | None:
    return coalescing_key.chat(CHAT | fields)


def completion(**fields: Any) -> bytes | None:
    return coalescing_key.completions(COMPLETION | fields)


def test_digest_is_the_same_for_the_same_request_in_another_order() -> None:
    one, other = completion(), coalescing_key.completions(dict(reversed(COMPLETION.items())))
    assert one is not None
    assert len(one) == DIGEST_BYTES
    assert one == other
    swapped = [{"content": "be", "role": "system"}, {"content": "hi", "role": "user"}]
    assert chat(messages=swapped) == chat()


def test_apis_share_nothing() -> None:
    both = {"model": "m", "temperature": 0, "max_tokens": 5}
    assert coalescing_key.completions(both) is not None
    assert coalescing_key.completions(both) != coalescing_key.chat(both | {"messages": []})


@pytest.mark.parametrize("api", [apis.RESPONSES, apis.MESSAGES])
def test_responses_and_messages_are_not_coalesced(api: Endpoint) -> None:
    assert read_coalescing(api, messages=CHAT["messages"], input="a") is None


@pytest.mark.parametrize(
    "how", [{"temperature": 0}, {"temperature": 0.0}, {"seed": 7}, {"seed": 0}]
)
def test_deterministic_requests_have_a_digest(how: dict[str, Any]) -> None:
    fields = {"temperature": None} | how
    assert completion(**fields) is not None
    assert chat(**fields) is not None


@pytest.mark.parametrize(
    "how",
    [
        {}, {"temperature": 1}, {"temperature": 1e-9}, {"temperature": False}, {"temperature": "0"},
        {"temperature": float("nan")}, {"seed": -1}, {"seed": "7"}, {"seed": 7.0}, {"seed": True},
        {"seed": None}, {"temperature": 0.7, "seed": -1},
    ],
)  # fmt: skip
def test_sampled_requests_have_none(how: dict[str, Any]) -> None:
    assert completion(**{"temperature": None} | how) is None


def test_zero_is_zero_in_both_spellings() -> None:
    assert completion(temperature=0.0) == completion(temperature=-0.0) == completion()
    assert completion(top_k=5.0) == completion(top_k=5) != completion(top_k=5.5)


def test_numbers_within_values_are_compared_as_they_are() -> None:
    """A template writes 1 and 1.0 differently."""
    one, other = ({"x": 1}, {"x": 1.0})
    assert chat(chat_template_kwargs=one) != chat(chat_template_kwargs=other)


@pytest.mark.parametrize(
    "ignored",
    [
        {"user": "a"}, {"metadata": {"a": [1]}}, {"service_tier": "flex"}, {"priority": 0},
        {"safety_identifier": "a"}, {"prompt_cache_key": "a"}, {"request_id": "a"},
    ],
)  # fmt: skip
def test_fields_that_do_not_change_the_answer_are_ignored(ignored: dict[str, Any]) -> None:
    assert chat(**ignored) == chat() is not None
    assert completion(**ignored) == completion() is not None


@pytest.mark.parametrize(
    "faulty",
    [
        {"user": 5}, {"request_id": {}}, {"request_id": None}, {"priority": None}, {"priority": 3},
        {"ignore_eos": None}, {"min_tokens": None}, {"bad_words": None},
    ],
)  # fmt: skip
def test_spelling_that_the_engine_may_reject_is_not_shared_with_a_valid_one(
    faulty: dict[str, Any],
) -> None:
    assert chat(**faulty) is None
    assert completion(**faulty) is None


def test_null_means_the_same_as_absence() -> None:
    for field in ("stop", "seed", "logprobs", "stream", "tools", "n", "logit_bias", "unknown"):
        assert chat(**{field: None}) == chat() is not None
    assert completion(n=None) is None, "vLLM's completions have no null there"
    assert chat(echo=None) is None
    assert completion(echo=None) == completion()


@pytest.mark.parametrize(
    "stateful",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]}, {"tools": []},
        {"tool_choice": "auto"}, {"tool_choice": "none"}, {"tool_choice": None},
        {"functions": []}, {"best_of": 1}, {"vllm_xargs": {"a": 1}}, {"kv_transfer_params": {}},
        {"ec_transfer_params": {}}, {"session_id": "s"}, {"mm_processor_kwargs": {}},
        {"media_io_kwargs": {}}, {"watermarking": True}, {"prompt_embeds": "AAAA"},
        {"store": True}, {"anything": 0}, {"suffix": "a"},
    ],
)  # fmt: skip
def test_request_with_state_or_an_unknown_field_is_not_coalesced(stateful: dict[str, Any]) -> None:
    assert chat(**stateful) is None
    assert completion(**stateful) is None


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b"}}]},
        {"role": "user", "content": [{"type": "text", "text": "a", "uuid": "b"}]},
        {"role": "user", "content": [{"type": "text", "text": 1}]},
        {"role": "user", "content": ["a"]},
        {"role": "assistant", "tool_calls": []},
        {"role": "user", "content": {"a": "b"}},
        {"role": "user", "content": 5},
        "a",
    ],
)
def test_conversation_with_more_than_texts_is_not_coalesced(message: Any) -> None:
    assert chat(messages=[message]) is None
    assert chat(messages=message) is None


def test_conversation_of_text_parts_is_coalesced() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts, "name": None}]) is not None
    assert chat(messages=[{"role": "user", "content": parts[::-1], "name": None}]) != chat(
        messages=[{"role": "user", "content": parts, "name": None}]
    )


@pytest.mark.parametrize(
    "field", ["response_format", "structured_outputs", "chat_template_kwargs", "documents"]
)
def test_order_of_keys_counts_where_it_orders_the_output(field: str) -> None:
    one, other = {"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}
    assert chat(**{field: one}) != chat(**{field: other})
    assert chat(**{field: one}) != chat(**{field: json.dumps(one, separators=(",", ":"))})
    assert chat(logit_bias={"1": 2, "3": 4}) == chat(logit_bias={"3": 4, "1": 2})


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True}, {"stream_options": {"include_usage": True}}, {"model": "n"},
        {"max_tokens": 6}, {"seed": 1}, {"cache_salt": "a"}, {"stop": "a"}, {"stop": ["a"]},
        {"logprobs": 1}, {"top_p": 0.5}, {"ignore_eos": True}, {"ignore_eos": 1}, {"prompt": "hj"},
        {"prompt": ["hi"]}, {"prompt": [104, 105]}, {"prompt": "h\u0456"}, {"echo": True},
    ],
)  # fmt: skip
def test_every_other_field_is_compared(fields: dict[str, Any]) -> None:
    digests = [completion(), completion(**fields)]
    assert None not in digests
    assert len(set(digests)) == 2


def test_surrogate_pair_differs_from_its_character() -> None:
    """Raw surrogates are no text to vLLM: it refuses the one, and takes the other."""
    assert completion(prompt="\ud800\udc00") != completion(prompt="\U00010000") is not None


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(VALUE, VALUE)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    assume(json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True))
    assume(one is not None)
    assume(other is not None)
    assume(not (isinstance(one, int | float) and isinstance(other, int | float) and one == other))
    assert completion(stop=one) != completion(stop=other)


@given(st.dictionaries(st.text(max_size=3), VALUE, max_size=4), st.randoms())
def test_order_of_fields_never_counts(fields: dict[str, Any], random: Any) -> None:
    items = list((COMPLETION | {"stop": fields}).items())
    random.shuffle(items)
    assert coalescing_key.completions(dict(items)) == completion(stop=fields)


def read_coalescing(api: Endpoint, **fields: Any) -> bytes | None:
    body = json.dumps({"model": "m", "temperature": 0} | fields).encode()
    generation = api.read(body, max_depth=16, ctx_max=None, coalesce=True)
    assert isinstance(generation, GenerationRequest)
    return generation.coalescing_key


def test_key_is_computed_only_on_request() -> None:
    body = json.dumps(CHAT).encode()
    generation = apis.CHAT.read(body, max_depth=16, ctx_max=None)
    assert isinstance(generation, GenerationRequest)
    assert generation.coalescing_key is None
    assert read_coalescing(apis.CHAT, messages=CHAT["messages"]) == chat()


def test_request_for_several_sequences_is_not_coalesced() -> None:
    assert read_coalescing(apis.COMPLETIONS, prompt="a") is not None
    assert read_coalescing(apis.COMPLETIONS, prompt=["a"]) is not None
    assert read_coalescing(apis.COMPLETIONS, prompt=["a", "b"]) is None
    assert read_coalescing(apis.COMPLETIONS, prompt="a", n=2) is None
    assert read_coalescing(apis.COMPLETIONS, prompt="a", n=1) is not None
