"""How requests are divided: all of them, in order, none twice, and nothing else changed.

And how the answers of parts become the answer to the whole.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.api.body import InvalidBody
from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.splitting.division import (
    MAX_PARTS,
    MergedEvents,
    Part,
    Unmergeable,
    divide,
    merge,
)

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


def part(offset: int, cost: int = 1, *, repeats_prompt: bool = False) -> Part:
    return Part(b"", cost, None, offset, repeats_prompt)


def merged(path: str, *answers: tuple[Part, dict[str, Any]], top_n: int = 0) -> Any:
    division = ENDPOINTS[path].division
    assert division is not None
    encoded = [(part, json.dumps(document).encode()) for part, document in answers]
    return json.loads(merge(division, encoded, top_n))


def completion(texts: str, prompt_tokens: int, **more: Any) -> dict[str, Any]:
    choices = [
        {"index": at, "text": text, "finish_reason": "stop"} for at, text in enumerate(texts)
    ]
    usage = {
        "prompt_tokens": prompt_tokens, "completion_tokens": len(texts),
        "total_tokens": prompt_tokens + len(texts), "prompt_tokens_details": None,
    }  # fmt: skip
    return {"id": f"cmpl-{texts}", "choices": choices, "usage": usage} | more


def test_choices_are_in_order_and_counts_add_up() -> None:
    found = merged(
        "/v1/completions", (part(0, 2), completion("ab", 5)), (part(2), completion("c", 3))
    )
    assert found["id"] == "cmpl-ab"
    assert [(each["index"], each["text"]) for each in found["choices"]] == [*enumerate("abc")]
    assert found["usage"] == {
        "prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11,
        "prompt_tokens_details": None,
    }  # fmt: skip


def test_prompt_that_was_read_for_several_parts_counts_once() -> None:
    found = merged(
        "/v1/chat/completions",
        (part(0, 2), completion("ab", 5)),
        (part(2, repeats_prompt=True), completion("c", 5)),
    )
    assert found["usage"]["prompt_tokens"] == 5
    assert found["usage"]["total_tokens"] == 8


def test_details_of_counts_add_up_where_parts_have_them() -> None:
    answers = [(part(at), completion("a", 5)) for at in range(3)]
    for (_, each), cached in zip(answers[1:], (2, None), strict=True):
        each["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    found = merged("/v1/completions", *answers)
    assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


def test_embeddings_are_the_engines_bytes() -> None:
    one = b'{"data":[{"index":0,"embedding":[0.10000000001,-1e-7]}],"usage":{"prompt_tokens":1}}'
    division = ENDPOINTS["/v1/embeddings"].division
    assert division is not None
    found = merge(division, [(part(0), one), (part(1), one)], 0)
    assert found == (
        b'{"data":[{"index":0,"embedding":[0.10000000001,-1e-7]},'
        b'{"index":1,"embedding":[0.10000000001,-1e-7]}],"usage":{"prompt_tokens":2}}'
    )


def test_rankings_are_sorted_and_cut_when_they_are_together() -> None:
    def ranked(*scores: float) -> dict[str, Any]:
        results = [{"index": at, "relevance_score": score} for at, score in enumerate(scores)]
        results.sort(key=lambda each: -float(each["relevance_score"]))
        return {"results": results, "usage": {"total_tokens": len(scores)}}

    answers = (part(0, 2), ranked(0.1, 0.9)), (part(2, 2), ranked(0.5, 0.95))
    found = merged("/rerank", *answers)
    assert [each["index"] for each in found["results"]] == [3, 1, 2, 0]
    assert [each["index"] for each in merged("/rerank", *answers, top_n=2)["results"]] == [3, 1]
    assert found["usage"] == {"total_tokens": 4}


def test_coheres_embeddings_are_joined_by_type() -> None:
    def embedded(*texts: str) -> dict[str, Any]:
        floats = [[float(len(text))] for text in texts]
        meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": len(texts)}}
        return {"embeddings": {"float": floats, "int8": None}, "texts": [*texts], "meta": meta}

    found = merged("/v2/embed", (part(0, 2), embedded("a", "bb")), (part(2), embedded("ccc")))
    assert found["embeddings"] == {"float": [[1.0], [2.0], [3.0]], "int8": None}
    assert found["texts"] == ["a", "bb", "ccc"]
    assert found["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 3}}


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b"{}", b'{"choices":1}', b'{"choices":[{}]}', b'{"choices":[{"index":"x"}]}'],
)
def test_what_is_no_answer_of_the_api_is_not_put_together(answer: bytes) -> None:
    division = ENDPOINTS["/v1/completions"].division
    assert division is not None
    with pytest.raises(Unmergeable):
        merge(division, [(part(0), answer)], 0)


def event(**document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def test_stream_has_the_events_of_all_parts_one_usage_and_one_end() -> None:
    events, one, other = MergedEvents(), part(0, 2), part(2, repeats_prompt=True)
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    assert json.loads(
        events.of(other, event(id="b", created=9, choices=[{"index": 0, "text": "c"}]))[6:]
    ) == {"id": "b", "created": 9, "choices": [{"index": 2, "text": "c"}]}
    out = events.of(one, event(id="a", created=8, choices=[{"index": 1, "text": "b"}]))
    assert json.loads(out[6:])["created"] == 9  # of the stream's first event
    assert events.of(one, event(choices=[], usage=usage)) == b""
    assert events.of(one, b"data: [DONE]\n\n") == b""
    assert events.of(other, event(choices=[], usage=usage)) == b""
    assert events.of(one, b": comment\n\n") == b": comment\n\n"
    total, done, rest = events.last().split(b"\n\n")
    assert json.loads(total[6:])["usage"] == {
        "prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9
    }  # fmt: skip
    assert (done, rest) == (b"data: [DONE]", b"")


def test_errors_of_a_part_pass_and_other_events_are_none_of_the_api() -> None:
    failed = event(error={"message": "x"})
    events = MergedEvents()
    assert events.of(part(3), failed) == failed
    assert events.of(part(0), event(choices=[{"index": 0, "text": "a"}])) == b"", "it is the last"
    events = MergedEvents()
    for wrong in (b"data: {\n\n", b"data: []\n\n", event(x=1), event(choices=[{"text": "a"}])):
        with pytest.raises(Unmergeable):
            events.of(part(0), wrong)
    assert events.last() == b"data: [DONE]\n\n"
