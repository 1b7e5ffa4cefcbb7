"""How requests are divided: all of them, in order, none twice, and nothing else changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.json_body import InvalidBody
from orch_sidecar.splitting.division import MAX_PARTS, Part, divide

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def parts_of(path: str, size: int, /, joint: bool = False, **body: Any) -> list[Part] | None:
    return parts_of_bytes(path, size, json.dumps({"model": "m"} | body).encode(), joint=joint)


def parts_of_bytes(path: str, size: int, body: bytes, *, joint: bool = False) -> list[Part] | None:
    endpoint = ENDPOINTS[path]
    whole = endpoint.read(body, max_depth=16, ctx_max=2048)
    assert isinstance(whole, GenerationRequest)
    if joint:
        whole.cost -= whole.joint
    assert endpoint.division is not None
    parts = divide(body, endpoint.division, whole, size)
    return None if parts is None else [*parts]


def bodies(parts: list[Part] | None) -> list[dict[str, Any]]:
    assert parts is not None
    return [json.loads(part.body) for part in parts]


@given(
    st.lists(st.text(max_size=3), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 12)
)
def test_parts_have_all_prompts_in_order_and_at_most_so_many_sequences(
    prompts: list[str], n: int, size: int
) -> None:
    parts = parts_of(COMPLETIONS, size, prompt=prompts, n=n, temperature=1.0)
    if parts is None:
        assert len(prompts) * n <= size or len(prompts) * n == 1
        return
    found: list[tuple[int, str]] = []
    for part, body in zip(parts, bodies(parts), strict=True):
        assert part.cost <= size
        choices = body["n"]
        assert part.cost == choices * len(body["prompt"])
        found += [
            (part.offset + at, body["prompt"][at // choices])
            for at in range(choices * len(body["prompt"]))
        ]
    assert found == [(at, prompts[at // n]) for at in range(n * len(prompts))]
    assert [part.repeats_prompt for part in parts] == [
        n > size and part.offset % n != 0 for part in parts
    ]


def test_what_is_not_divided_stays_as_the_client_wrote_it() -> None:
    body = b'{"prompt":["a","\\u00e4",  "c"], "model":"m","x":1.0e3, "user" : "\\u0000"}'
    parts = parts_of_bytes(COMPLETIONS, 2, body)
    assert parts is not None
    assert [part.body for part in parts] == [
        b'{"prompt":["a","\\u00e4"],"model":"m","x":1.0e3,"user":"\\u0000"}',
        b'{"prompt":["c"],"model":"m","x":1.0e3,"user":"\\u0000"}',
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_every_encoding_of_json_is_divided(encoding: str) -> None:
    body = json.dumps({"model": "m", "prompt": ["ä", "b"]}, ensure_ascii=False).encode(encoding)
    assert [each["prompt"] for each in bodies(parts_of_bytes(COMPLETIONS, 1, body))] == [
        ["ä"],
        ["b"],
    ]


def test_choices_of_a_seed_are_those_that_vllm_would_make() -> None:
    parts = parts_of(CHAT, 2, messages=MESSAGES, n=5, seed=7)
    assert [(each["n"], each["seed"]) for each in bodies(parts)] == [(2, 7), (2, 9), (1, 11)]
    assert parts is not None
    assert [part.offset for part in parts] == [0, 2, 4]
    for seed in (None, -1):
        given_again = bodies(parts_of(CHAT, 2, messages=MESSAGES, n=3, seed=seed))
        assert [each["seed"] for each in given_again] == [seed, seed]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": 0}, "n must be 1 when using greedy sampling, got 4"),
        ({"temperature": 0.000001}, "n must be 1 when using greedy sampling, got 4"),
        ({"seed": -2}, "seed must not be negative where n is run in parts"),
    ],
)
def test_choices_without_equals_in_parts_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidBody, match=words):
        parts_of(CHAT, 2, messages=MESSAGES, n=4, **fields)


def test_lists_of_prompts_are_divided_whatever_the_seed_and_the_temperature() -> None:
    assert parts_of(COMPLETIONS, 2, prompt=["a"] * 4, seed=-9, temperature=0) is not None


def test_token_ids_are_counted_by_part() -> None:
    parts = parts_of(COMPLETIONS, 2, prompt=[[1, 2, 3], [4], [5, 6]])
    assert parts is not None
    assert [part.prompt_tokens for part in parts] == [4, 2]
    choices = parts_of(COMPLETIONS, 2, prompt=[[1, 2, 3], [4]], n=3)
    assert choices is not None
    assert [part.prompt_tokens for part in choices] == [3, 3, 1, 1]
    one = parts_of(COMPLETIONS, 2, prompt=[1, 2, 3], n=3)
    assert [each["prompt"] for each in bodies(one)] == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": ["a", "b", "c"], "prompt_embeds": "AAAA"}),
        (COMPLETIONS, {"prompt": ["a", "b"], "prompt_embeds": ["AAAA", "BBBB"]}),
        (COMPLETIONS, {"prompt_embeds": ["AAAA", "BBBB"]}),
        (COMPLETIONS, {"prompt": "a"}),
        ("/v1/embeddings", {"input": [1, 2, 3]}),
        ("/generative_scoring", {"query": "q", "items": "a", "label_token_ids": [1, 2]}),
    ],
)
def test_what_has_no_parts_is_not_divided(path: str, body: dict[str, Any]) -> None:
    assert parts_of(path, 1, **body) is None


@pytest.mark.parametrize(
    ("path", "body", "field", "sizes", "costs"),
    [
        ("/v1/embeddings", {"input": list("abcde")}, "input", [2, 2, 1], [2, 2, 1]),
        ("/classify", {"input": [[1], [2], [3]]}, "input", [2, 1], [2, 1]),
        ("/v2/embed", {"texts": list("abc")}, "texts", [2, 1], [2, 1]),
        ("/v1/chat/completions/batch", {"messages": [MESSAGES] * 3}, "messages", [2, 1], [2, 1]),
        ("/generative_scoring", {"query": "q", "items": list("abc")}, "items", [2, 1], [2, 1]),
        # The query is a sequence of each part.
        ("/rerank", {"query": "q", "documents": list("abc")}, "documents", [1] * 3, [2] * 3),
        ("/score", {"queries": "q", "documents": list("ab")}, "documents", [1, 1], [2, 2]),
        ("/score", {"data_1": list("ab"), "data_2": list("cd")}, "data_2", [1, 1], [2, 2]),
    ],
)
def test_lists_of_every_api_are_divided(
    path: str, body: dict[str, Any], field: str, sizes: list[int], costs: list[int]
) -> None:
    parts = parts_of(path, 2, **body)
    assert [len(each[field]) for each in bodies(parts)] == sizes
    assert parts is not None
    assert [part.cost for part in parts] == costs


@pytest.mark.parametrize(("n", "prompts", "field"), [(1, 2 * MAX_PARTS, "prompt"), (3, 1024, "n")])
def test_request_has_at_most_so_many_parts(n: int, prompts: int, field: str) -> None:
    parts = parts_of(COMPLETIONS, 2, prompt=["a"] * prompts, n=n)
    assert len(parts or ()) == MAX_PARTS == 2048
    with pytest.raises(InvalidBody, match="2048 are the most") as raised:
        parts_of(COMPLETIONS, 2, prompt=["a"] * (prompts + 1), n=n)
    assert raised.value.refusal.param == field


def test_pairs_that_are_read_together_are_one_sequence_each() -> None:
    parts = parts_of("/rerank", 2, joint=True, query="q", documents=list("abc"), top_n=2)
    assert [each["documents"] for each in bodies(parts)] == [["a", "b"], ["c"]]
    assert [each["top_n"] for each in bodies(parts)] == [0, 0]  # cut when they are together
    pairs = parts_of("/score", 2, joint=True, text_1=list("abc"), text_2=list("xyz"))
    assert [(each["text_1"], each["text_2"]) for each in bodies(pairs)] == [
        (["a", "b"], ["x", "y"]),
        (["c"], ["z"]),
    ]
