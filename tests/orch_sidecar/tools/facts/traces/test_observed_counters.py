"""What the engine counted, against what was traced: the bounds of both sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from orch_sidecar.tools.facts.traces.spans import Span, Value
from tests.orch_sidecar.tools.facts.objections import objections_to
from tests.orch_sidecar.tools.facts.spans import ALONE, counted, one


def two(
    extra: int, *, steps: int | None = None, more: Mapping[str, Value] = MappingProxyType({})
) -> list[list[Span]]:
    """Returns two requests one after the other, each of 5 tokens in 4 decode steps alone.

    Between them the engine counted so many more sequences, in as many steps more (or `steps`).
    """
    more_steps = extra if steps is None else steps
    requests = []
    for number, (in_steps, sequences) in enumerate(((4, 4), (8 + more_steps, 8 + extra)), start=1):
        counters: dict[str, Value] = {
            "orch.decode_steps_total": in_steps,
            "orch.decode_sequences_total": sequences,
            **more,
        }
        requests.append(one(number, number, number + 1, **{**ALONE, "decode": counters}))
    return requests


def test_sequence_takes_part_in_no_more_steps_than_it_has_tokens() -> None:
    assert objections_to(*two(2)) == {}
    assert objections_to(*two(3)) == {
        "untraced_sequences": "the engine decoded at least 11 tokens in the window, of which at "
        "most 10 are of this measurement: the engine served other clients, or its states are of "
        "another run"
    }


def test_sequence_that_a_stop_string_ended_goes_on_for_a_few_steps() -> None:
    """The API server finds the string: the engine's own count of tokens has no end there."""
    stopped: dict[str, Value] = {"gen_ai.request.max_tokens": 100}
    assert objections_to(*two(6, more=stopped)) == {}
    assert list(objections_to(*two(7, more=stopped))) == ["untraced_sequences"]
    at_the_limit: dict[str, Value] = {"gen_ai.request.max_tokens": 5}
    assert objections_to(*two(2, more=at_the_limit)) == {}
    assert list(objections_to(*two(3, more=at_the_limit))) == ["untraced_sequences"]


def test_drafts_beyond_a_stop_string_are_no_tokens_of_the_answer() -> None:
    """vLLM's statistics have them, its answer has not."""

    def of(answered: int, most: int, drafts: int) -> dict[str, str]:
        decode: dict[str, Value] = {
            "gen_ai.request.max_tokens": most,
            "orch.speculative": f"ngram:{drafts}" if drafts else "none",
            "orch.tokens_per_step": 1 + drafts,
        }
        server: dict[str, Value] = {"gen_ai.usage.output_tokens": answered}
        return objections_to(one(1, 1, 2, **{**ALONE, "decode": decode, "server": server}))

    assert of(5, 100, 3) == {}
    assert of(2, 100, 3) == {}
    for wrong in (of(1, 100, 3), of(6, 100, 3), of(4, 5, 3), of(4, 100, 0)):
        assert list(wrong) == ["contradiction"]


def test_with_speculative_decoding_the_steps_alone_count() -> None:
    drafts: dict[str, Value] = {"orch.speculative": "ngram:3", "orch.tokens_per_step": 4}
    assert objections_to(*two(4, more=drafts)) == {}
    assert list(objections_to(*two(5, more=drafts))) == ["untraced_sequences"]


def test_aborted_request_accounts_for_its_number_and_for_the_steps_of_the_window() -> None:
    """vLLM exports no span for it."""
    aborted = one(3, 2.2, 2.4, **{**ALONE, "outcome": "cancelled"})
    assert objections_to(*two(10, steps=0), aborted) == {}
    assert list(objections_to(*two(11, steps=0), aborted)) == ["untraced_sequences"]
    assert objections_to(*two(0, more={"orch.requests_total": 3}), aborted) == {}
    assert objections_to(*two(0, more={"orch.requests_total": 4}), aborted) == {
        "untraced_requests": "the engine accepted 4 requests in the window, but this measurement "
        "sent 3: the engine served other clients, too"
    }


def test_more_tokens_than_the_steps_since_its_arrival_are_a_contradiction() -> None:
    def reasons(tokens: int) -> dict[str, str]:
        steps: dict[str, Value] = {"orch.engine_steps": 8}
        return objections_to(one(1, 0, 1, **{**ALONE, "tokens": (10, tokens), "decode": steps}))

    assert reasons(10) == {}  # the last step, and one of asynchronous scheduling, are not counted
    assert reasons(11)["contradiction"].endswith(
        "more tokens than the engine's steps can have generated"
    )


def test_sequences_of_one_request_have_one_number() -> None:
    spans = counted(one(1, 0, 1, sequences=2))
    last = replace(spans[-1], attributes={**spans[-1].attributes, "orch.request_number": 2,
                                          "orch.requests_total": 2})  # fmt: skip
    reasons = objections_to([*spans[:-1], last])
    assert reasons["contradiction"].startswith("1 request: the engine numbers each request once")


@pytest.mark.parametrize("number", [0, -1])
def test_numbers_begin_with_one(number: int) -> None:
    wrong: dict[str, Value] = {"orch.request_number": number, "orch.requests_total": number}
    reasons = objections_to(one(1, 0, 1, **{**ALONE, "decode": wrong}))
    assert reasons["contradiction"].endswith("counts of the engine that contradict each other")
