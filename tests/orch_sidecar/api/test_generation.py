"""What a body costs, and which bodies are refused before anything reaches the engine."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.api.endpoints import ENDPOINTS, Endpoint
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.refusal import Reason, Refusal
from tests.orch_sidecar import apis


def read_bytes(
    api: Endpoint, body: bytes, *, ctx_max: int | None = 2048
) -> GenerationRequest | Refusal:
    return api.read(body, max_depth=16, ctx_max=ctx_max)


def read_json(
    api: Endpoint, ctx_max: int | None = 2048, /, **fields: Any
) -> GenerationRequest | Refusal:
    return read_bytes(api, json.dumps({"model": "m"} | fields).encode(), ctx_max=ctx_max)


def cost_of(outcome: GenerationRequest | Refusal) -> int:
    assert isinstance(outcome, GenerationRequest), outcome
    return outcome.cost


def refusal_of(outcome: GenerationRequest | Refusal) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    assert outcome.reason is Reason.INVALID_REQUEST
    assert len(outcome.message) < 500
    return outcome


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({"prompt": "a"}, 1),
        ({"prompt": ""}, 1),
        ({"prompt": ["a"]}, 1),
        ({"prompt": ["a", "b", "c"]}, 3),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": [[]]}, 1),
        ({"prompt": "a", "n": 4}, 4),
        ({"prompt": ["a", "b"], "n": 4}, 8),
        ({"prompt": [[1, 2], [3]], "n": 2}, 4),
        ({"prompt": [1, 2, 3], "n": 2}, 2),
        ({"prompt": "a", "n": None}, 1),
        ({"prompt": None, "prompt_embeds": "AAAA"}, 1),
        ({"prompt_embeds": ["AAAA", "BBBB"]}, 2),
        ({"prompt": "a", "prompt_embeds": ["AAAA", "BBBB"]}, 3),
        ({"prompt": "", "prompt_embeds": "AAAA", "n": 2}, 4),
        ({"prompt": [], "prompt_embeds": "AAAA"}, 1),
        ({"prompt": "a", "prompt_embeds": []}, 1),
        ({"prompt": "a", "use_beam_search": False}, 1),
        ({"prompt": "a", "kv_transfer_params": None}, 1),
        ({"prompt": "a", "best_of": 8}, 1),
    ],
)
def test_completion_costs_n_times_its_prompts(fields: dict[str, Any], cost: int) -> None:
    assert cost_of(read_json(apis.COMPLETIONS, **fields)) == cost


MESSAGE = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("path", "fields", "cost"),
    [
        ("/v1/embeddings", {"input": "a"}, 1),
        ("/v1/embeddings", {"input": ["a", "b"], "data": None}, 2),
        ("/v1/embeddings", {"input": [[1, 2], [3]]}, 2),
        ("/v1/embeddings", {"messages": [MESSAGE, MESSAGE]}, 1),
        ("/v1/embeddings", {"messages": [[MESSAGE], [MESSAGE]]}, 2),
        ("/pooling", {"input": [MESSAGE]}, 1),
        ("/pooling", {"input": [[MESSAGE], [MESSAGE], [MESSAGE]]}, 3),
        ("/v2/embed", {"texts": ["a", "b", "c"]}, 3),
        ("/v2/embed", {"images": "a"}, 1),
        ("/v1/rerank", {"query": "a", "documents": ["b", "c"]}, 3),
        ("/score", {"queries": "a", "documents": ["b", "c"]}, 3),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c", "d"]}, 4),
        ("/generative_scoring", {"query": "a", "items": ["b", "c"]}, 2),
        ("/v1/chat/completions/batch", {"messages": [[MESSAGE], [MESSAGE]], "n": 2}, 4),
    ],
)
def test_request_of_other_apis_costs_a_sequence_for_each_text(
    path: str, fields: dict[str, Any], cost: int
) -> None:
    generation = read_json(ENDPOINTS[path], **fields)
    assert cost_of(generation) == cost
    assert isinstance(generation, GenerationRequest)
    tokens = {"/generative_scoring": 1, "/v1/chat/completions/batch": None}
    assert generation.max_tokens == tokens.get(path, 0)


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        ("/v1/embeddings", {}, "must have input or messages, and one alone, not none of them"),
        ("/v1/embeddings", {"input": "a", "messages": [MESSAGE]}, "not input and messages"),
        ("/v1/embeddings", {"input": "a", "data": {}}, "data must not be given"),
        ("/v1/embeddings", {"input": []}, "the request has no input"),
        ("/v1/embeddings", {"messages": ["a"]}, "messages must be a list of messages, or of such"),
        ("/v2/embed", {"texts": []}, "the request has no texts"),
        ("/v1/completions", {"prompt": []}, "provided and non-empty: send a string, token ids"),
        ("/v1/rerank", {"query": "a"}, "the request has no documents"),
    ],
)
def test_request_of_other_apis_that_cannot_be_counted_is_rejected(
    path: str, fields: dict[str, Any], says: str
) -> None:
    assert says in refusal_of(read_json(ENDPOINTS[path], **fields)).message


def test_pairs_that_are_read_together_are_as_many_fewer_sequences() -> None:
    for documents, joint in ((["b", "c", "d"], 1), ("b", 1)):
        generation = read_json(ENDPOINTS["/v1/rerank"], query="a", documents=documents)
        assert isinstance(generation, GenerationRequest)
        assert (generation.joint, generation.max_tokens) == (joint, 0)


def test_chat_costs_n() -> None:
    assert cost_of(read_json(apis.CHAT, messages=[])) == 1
    for n, cost in ((1, 1), (3, 3), (None, 1)):
        assert cost_of(read_json(apis.CHAT, messages=[], n=n)) == cost
    assert cost_of(read_json(apis.CHAT, messages=[], prompt=["a", "b"])) == 1


@pytest.mark.parametrize("api", [apis.RESPONSES, apis.MESSAGES])
def test_response_or_message_costs_one_for_any_n(api: Endpoint) -> None:
    assert cost_of(read_json(api, input="a", n=3)) == 1


@pytest.mark.parametrize("api", [apis.CHAT, apis.COMPLETIONS])
@pytest.mark.parametrize(
    "n", ["8", 8.0, 8.5, True, False, 0, -1, 10**9 * 10, 10**30, -(10**30), [1], {}, float("nan")]
)
def test_ambiguous_n_is_rejected(api: Endpoint, n: Any) -> None:
    refusal = refusal_of(read_json(api, messages=[], prompt="a", n=n))
    assert refusal.param == "n"
    assert refusal.message.startswith("n must be ")


def test_huge_n_is_a_huge_cost() -> None:
    """10^9 is an integer that the engine would take: no engine has that many slots."""
    assert cost_of(read_json(apis.CHAT, messages=[], n=10**9)) == 10**9


def test_refusal_names_field_value_and_rule() -> None:
    refusal = refusal_of(read_json(apis.CHAT, n="8"))
    assert refusal.message == 'n must be an integer, not "8"'
    refusal = refusal_of(read_json(apis.CHAT, max_tokens=-1))
    assert refusal.message == "max_tokens must be from 1 to 2147483647, not -1"


def test_refusal_does_not_repeat_a_long_value() -> None:
    refusal = refusal_of(read_json(apis.CHAT, n="a secret prompt " * 1000))
    assert "secret" not in refusal.message


@pytest.mark.parametrize(
    "prompt",
    [
        None, [], 1, 1.5, True, {}, {"prompt": "a"}, [None], [True], [1.5], [{}],
        ["a", 1], [1, "a"], [1, [2]], [[1], 2], ["a", [1]], [1, True], [1, 2.0], [[1, True]],
        [[1, "2"]], [[1.0]], [["a"]], [[[1]]], [[None]], ["a", None],
    ],
)  # fmt: skip
def test_prompts_that_cannot_be_counted_are_rejected(prompt: Any) -> None:
    assert refusal_of(read_json(apis.COMPLETIONS, prompt=prompt)).param == "prompt"


@pytest.mark.parametrize("embeds", [1, True, {}, [1], [[1]], ["a", 1], [None], [["a"]]])
def test_prompt_embeds_that_cannot_be_counted_are_rejected(embeds: Any) -> None:
    refusal = refusal_of(read_json(apis.COMPLETIONS, prompt="a", prompt_embeds=embeds))
    assert refusal.param == "prompt_embeds"


def test_prompt_longer_than_the_context_is_rejected_with_both_numbers() -> None:
    for prompt in ([1] * 2049, [[1], [1] * 2049]):
        refusal = refusal_of(read_json(apis.COMPLETIONS, prompt=prompt))
        assert "2049 tokens" in refusal.message
        assert "2048" in refusal.message
    assert cost_of(read_json(apis.COMPLETIONS, prompt=[1] * 2048)) == 1
    assert cost_of(read_json(apis.COMPLETIONS, None, prompt=[1] * 9999)) == 1


def test_prompt_list_of_a_million_costs_a_million() -> None:
    assert cost_of(read_json(apis.COMPLETIONS, prompt=["a"] * 10**6)) == 10**6


@pytest.mark.parametrize(
    ("api", "field"),
    [
        (apis.CHAT, "max_tokens"),
        (apis.CHAT, "max_completion_tokens"),
        (apis.COMPLETIONS, "max_tokens"),
        (apis.RESPONSES, "max_output_tokens"),
        (apis.MESSAGES, "max_tokens"),
    ],
)
def test_output_limit_is_read_and_checked(api: Endpoint, field: str) -> None:
    generation = read_json(api, prompt="a", **{field: 7})
    assert isinstance(generation, GenerationRequest)
    assert generation.max_tokens == 7
    for wrong in (-1, 2**31, 10**30, "7", 7.0, True):
        assert refusal_of(read_json(api, prompt="a", **{field: wrong})).param == field


@pytest.mark.parametrize(("newer", "limit"), [(7, 7), (None, 9)])
def test_newer_name_of_the_output_limit_counts_where_it_has_a_value(
    newer: int | None, limit: int
) -> None:
    generation = read_json(apis.CHAT, max_tokens=9, max_completion_tokens=newer)
    assert isinstance(generation, GenerationRequest)
    assert generation.max_tokens == limit


def test_only_a_response_refers_to_what_is_stored_and_only_pairs_can_be_joint() -> None:
    for api, referring in ((apis.CHAT, False), (apis.RESPONSES, True)):
        generation = read_json(api, previous_response_id="resp_1")
        assert isinstance(generation, GenerationRequest)
        assert (generation.refers, generation.joint) == (referring, 0)


def test_zero_tokens_are_for_completions_only() -> None:
    generation = read_json(apis.COMPLETIONS, prompt="a", echo=True, max_tokens=0)
    assert isinstance(generation, GenerationRequest)
    assert generation.max_tokens == 0
    assert refusal_of(read_json(apis.CHAT, max_tokens=0)).param == "max_tokens"


@pytest.mark.parametrize("api", apis.GENERATING)
def test_stream_is_true_false_or_null(api: Endpoint) -> None:
    for given_, expected in ((True, True), (False, False), (None, False)):
        generation = read_json(api, prompt="a", stream=given_)
        assert isinstance(generation, GenerationRequest)
        assert generation.stream is expected
    wrongs: list[Any] = ["true", 1, 0, "no", []]
    for wrong in wrongs:
        assert refusal_of(read_json(api, prompt="a", stream=wrong)).param == "stream"


@pytest.mark.parametrize("api", apis.GENERATING)
def test_beam_search_and_transfers_are_rejected(api: Endpoint) -> None:
    assert refusal_of(read_json(api, prompt="a", use_beam_search=True)).param == "use_beam_search"
    assert refusal_of(read_json(api, prompt="a", use_beam_search=1)).param == "use_beam_search"
    moves: list[Any] = [{"do_remote_decode": True}, {}, [], "x", 0, False]
    for moved, field in itertools.product(moves, ("kv_transfer_params", "ec_transfer_params")):
        assert refusal_of(read_json(api, prompt="a", **{field: moved})).param == field


def test_background_response_is_rejected_with_the_reason() -> None:
    refusal = refusal_of(read_json(apis.RESPONSES, input="a", background=True))
    assert refusal.param == "background"
    assert "would go on with such a response" in refusal.message
    assert cost_of(read_json(apis.RESPONSES, input="a", background=False)) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"{", b"{]", b'{"n": }', b'{"a": 1,}', b"\xff\xfe", b'{"a": "\xff"}', b"nul",
        b'{"n": 1} x', b'{"n": ' + b"9" * 5000 + b"}", b"\x00", b'{"a": "\n"}', b"{'n': 1}",
        b"[" * 200_000, b'{"a":' * 200_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("api", apis.GENERATING)
def test_invalid_json_is_rejected(api: Endpoint, body: bytes) -> None:
    refusal_of(read_bytes(api, body))


@pytest.mark.parametrize("body", [b"[]", b"null", b"1", b'"a"', b"true", b"NaN"])
def test_json_that_is_not_an_object_is_rejected(body: bytes) -> None:
    assert "must be a JSON object" in refusal_of(read_bytes(apis.CHAT, body)).message


def test_duplicate_field_is_rejected_by_name() -> None:
    refusal = refusal_of(read_bytes(apis.CHAT, b'{"n": 1, "messages": [], "n": 8}'))
    assert refusal.message == "'n' must not occur more than once in the same object"
    assert refusal.param == "n"
    escaped = refusal_of(read_bytes(apis.CHAT, b'{"n": 1, "\\u006e": 8}'))
    assert escaped.param == "n", "the same key in another spelling"


def test_duplicate_field_below_the_top_level_is_left_to_the_engine() -> None:
    body = b'{"messages": [{"role": "user", "role": "user"}], "metadata": {"a": 1, "a": 2}}'
    assert cost_of(read_bytes(apis.CHAT, body)) == 1


def test_nesting_is_bounded() -> None:
    deepest = b'{"a": ' + b"[" * 15 + b"]" * 15 + b"}"
    assert cost_of(read_bytes(apis.CHAT, deepest)) == 1
    deeper = b'{"a": ' + b"[" * 16 + b"]" * 16 + b"}"
    assert "nested deeper than 16" in refusal_of(read_bytes(apis.CHAT, deeper)).message
    brackets_in_text = json.dumps({"a": "[" * 1000 + "{" * 1000}).encode()
    assert cost_of(read_bytes(apis.CHAT, brackets_in_text)) == 1
    wide = json.dumps({"a": [[] for _ in range(1000)]}).encode()
    assert cost_of(read_bytes(apis.CHAT, wide)) == 1


def test_model_that_is_not_a_string_is_read_as_none() -> None:
    """The engine refuses it; here it is only a label."""
    generation = read_json(apis.CHAT, model=5)
    assert isinstance(generation, GenerationRequest)
    assert generation.model == ""


WORD = st.text('an8[{"\\ \u00e9\ud800', max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORD,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORD, inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "n", "prompt", "prompt_embeds", "stream", "max_tokens", "use_beam_search", "background",
    "kv_transfer_params", "model", "service_tier", "priority", "messages", "seed", "user",
    "temperature", "response_format", "truncate_prompt_tokens", "best_of",
)  # fmt: skip


@given(st.sampled_from(apis.GENERATING), st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_object_is_read_with_a_positive_cost_or_rejected(
    api: Endpoint, fields: dict[str, Any]
) -> None:
    outcome = api.read(json.dumps(fields).encode(), max_depth=16, ctx_max=2048, coalesce=True)
    if isinstance(outcome, GenerationRequest):
        assert outcome.cost >= 1
    else:
        refusal_of(outcome)


@given(st.sampled_from(apis.GENERATING), st.binary(max_size=60))
def test_any_bytes_are_read_or_rejected(api: Endpoint, body: bytes) -> None:
    read_bytes(api, body)


def test_duplicate_key_among_many_is_found_in_linear_time() -> None:
    keys = b",".join(b'"k%d":1' % number for number in range(50_000))
    begin = time.process_time()
    generation = apis.CHAT.read(b'{"x":{' + keys + b',"k0":2}}', max_depth=64, ctx_max=None)
    assert isinstance(generation, GenerationRequest), "below the top it is the engine's business"
    refusal = apis.CHAT.read(b"{" + keys + b',"k0":2}', max_depth=64, ctx_max=None)
    assert isinstance(refusal, Refusal)
    assert refusal.param == "k0"
    assert time.process_time() - begin < 2.0, "quadratic, it takes minutes"
