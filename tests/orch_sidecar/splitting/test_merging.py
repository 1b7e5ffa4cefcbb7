"""How the answers of parts become the answer to the whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.splitting.division import Part
from orch_sidecar.splitting.merging import MergedEvents, Unmergeable, merge


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
