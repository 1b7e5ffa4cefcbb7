"""Prompts of random tokens, and the bodies of requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.tools.bench.load.prompts import (
    BLOCK_TOKENS,
    Prompt,
    body,
    cycle,
    synthetic,
)

MESSAGES = [{"role": "user", "content": "What is a slot?"}]
PROMPTS = (
    Prompt((1, 2, 3), 16),
    Prompt("What is a slot?", 16),
    Prompt(output_tokens=16, messages=MESSAGES),
)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("ignore_eos", [True, False])
def test_sidecar_reads_from_the_body_what_the_prompt_contains(
    prompt: Prompt, ignore_eos: bool
) -> None:
    sent = body(prompt, "llama", ignore_eos=ignore_eos)
    read = ENDPOINTS[prompt.path].read(sent, max_depth=10, ctx_max=None)
    assert isinstance(read, GenerationRequest)
    assert (read.cost, read.stream, read.model, read.max_tokens) == (1, True, "llama", 16)
    assert read.prompt_tokens == prompt.input_tokens
    document = json.loads(sent)
    is_chat = prompt.prompt is UNSET
    content = json.dumps(prompt.messages if is_chat else prompt.prompt)
    assert json.dumps(document["messages" if is_chat else "prompt"]) == content
    # Only an exact length uses what OpenAI does not know.
    assert document.get("ignore_eos", False) is ignore_eos
    assert document.get("min_tokens") == (16 if ignore_eos else None)
    assert "cache_salt" not in document
    salted = json.loads(body(prompt, "llama", ignore_eos=ignore_eos, salt="run"))
    assert salted == document | {"cache_salt": "run"}


def test_ids_and_texts_are_completions_and_messages_a_chat() -> None:
    completions = "/v1/completions"
    assert [each.path for each in PROMPTS] == [completions, completions, "/v1/chat/completions"]


def test_body_is_compact_and_repeats_itself() -> None:
    assert body(Prompt((7, 8), 4), "llama", ignore_eos=True) == (
        b'{"model":"llama","prompt":[7,8],"max_tokens":4,"temperature":0.0,"seed":0,'
        b'"stream":true,"stream_options":{"include_usage":true},'
        b'"ignore_eos":true,"min_tokens":4}'
    )


def ids_of(prompts: Iterator[Prompt], count: int) -> list[tuple[int, ...]]:
    return [each.prompt for each in islice(prompts, count) if isinstance(each.prompt, tuple)]


@given(
    ids=st.lists(st.integers(0, 200_000), min_size=16, max_size=60, unique=True),
    input_tokens=st.integers(16, 100),
    output_tokens=st.integers(1, 500),
    seed=st.integers(),
)
def test_synthetic_prompts_have_their_exact_length_and_different_first_blocks(
    ids: list[int], input_tokens: int, output_tokens: int, seed: int
) -> None:
    made = synthetic(ids, input_tokens, output_tokens, seed)
    first = next(made)
    assert (first.input_tokens, first.output_tokens) == (input_tokens, output_tokens)
    prompts = ids_of(made, 30)
    for prompt in prompts:
        assert len(prompt) == input_tokens
        assert set(prompt) <= set(ids)
    assert len({prompt[:BLOCK_TOKENS] for prompt in prompts}) == 30


@given(seed=st.integers(), other=st.integers())
def test_same_seed_gives_the_same_prompts_and_another_one_others(seed: int, other: int) -> None:
    ids = range(100, 150)
    first, again, others = (ids_of(synthetic(ids, 20, 4, each), 10) for each in (seed, seed, other))
    assert first == again
    blocks, of_others = ({ids[:BLOCK_TOKENS] for ids in each} for each in (first, others))
    assert other == seed or not blocks & of_others


def test_long_prompts_do_not_begin_as_short_ones_of_the_same_seed_do() -> None:
    short, long = (
        {ids[:BLOCK_TOKENS] for ids in ids_of(synthetic(range(300), length, 4, 1), 9)}
        for length in (300, 1000)
    )
    assert not short & long


def test_prompts_shorter_than_a_block_may_be_repeated() -> None:
    assert len(set(ids_of(synthetic([5, 6], 3, 1, 1), 99))) == 8


def test_cycle_yields_all_in_order_and_then_shuffles_each_round() -> None:
    prompts = [Prompt(f"question {number}", 1) for number in range(20)]
    asked = list(islice(cycle(prompts, 1), 60))
    rounds = [asked[start : start + 20] for start in (0, 20, 40)]
    assert rounds[0] == prompts
    assert all(sorted(map(str, each)) == sorted(map(str, prompts)) for each in rounds)
    assert rounds[1] != prompts
    assert rounds[2] not in (prompts, rounds[1])
    assert list(islice(cycle(prompts, 1), 60)) == asked
    assert list(islice(cycle(prompts, 2), 60)) != asked
