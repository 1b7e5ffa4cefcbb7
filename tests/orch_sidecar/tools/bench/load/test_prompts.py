"""Prompts of random tokens or of a file, and the bodies of requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

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
    from_file,
    parse,
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


def test_only_prompts_shorter_than_a_block_may_be_repeated() -> None:
    assert len(set(ids_of(synthetic([5, 6], 3, 1, 1), 99))) == 8
    assert len(set(ids_of(synthetic([5, 6], BLOCK_TOKENS, 1, 1), 2000))) == 2000


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


def jsonl(*entries: Any) -> str:
    return "".join(f"{json.dumps(entry)}\n" for entry in entries)


def parsed(text: str, output_tokens: int | None = 8) -> list[Prompt]:
    return list(parse("asked.jsonl", text.encode(), output_tokens))


def objection(text: str, output_tokens: int | None = 8) -> str:
    with pytest.raises(ValueError, match=": ") as raised:
        parsed(text, output_tokens)
    return str(raised.value)


def talk(*turns: tuple[str, str]) -> dict[str, Any]:
    stated = [{"from": sender, "value": text} for sender, text in turns]
    return {"id": "x_0", "conversations": stated}


def test_lines_are_texts_token_ids_and_chats() -> None:
    text = jsonl(
        {"prompt": "What is a slot?", "output_tokens": 3},
        {"prompt": [5, 6, 7], "output_tokens": 4},
        {"messages": MESSAGES, "output_tokens": 5},
    )
    assert parsed(text) == [
        Prompt("What is a slot?", 3),
        Prompt((5, 6, 7), 4),
        Prompt(output_tokens=5, messages=MESSAGES),
    ]


def test_entry_without_output_tokens_gets_those_of_the_command_line() -> None:
    assert parsed(jsonl({"prompt": "a"}, {"prompt": "b", "output_tokens": 2}), 9) == [
        Prompt("a", 9),
        Prompt("b", 2),
    ]
    assert objection(jsonl({"prompt": "a", "output_tokens": 1}, {"prompt": "b"}), None) == (
        "asked.jsonl:2: has no output_tokens: add them to the entry, or give --output-tokens"
    )
    # The answers of a conversation do not set the length of ours.
    text = json.dumps([talk(("human", "First?"), ("gpt", "An answer of six words."))])
    assert "asked.jsonl: entry 1: has no output_tokens" in objection(text, None)


def test_prompt_of_a_conversation_is_its_first_human_turn_if_it_has_one() -> None:
    entries = [
        *(talk(), talk(("gpt", "Hello!")), talk(("human", "\n"))),
        talk(("human", "First?"), ("gpt", "An answer."), ("human", "Second?")),
        talk(("system", "Be brief."), ("gpt", "Hello!"), ("user", "Third?"), ("gpt", "Yes.")),
        talk(("human", "  "), ("gpt", "What?"), ("human", "Fourth?")),
    ]
    expected = [Prompt(text, 8) for text in ("First?", "Third?", "Fourth?")]
    assert parsed(json.dumps(entries)) == expected
    assert parsed(json.dumps(entries, indent=2)) == expected
    assert parsed(jsonl(*entries)) == expected


@given(
    st.lists(st.text(min_size=1) | st.lists(st.integers(0, 2**40), min_size=1).map(tuple)),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_whatever_is_written_is_read(
    contents: list[Any], indent: int | None, ascii_only: bool
) -> None:
    entries = [{"prompt": content} for content in contents]
    expected = [Prompt(content, 8) for content in contents]
    assert parsed(json.dumps(entries, indent=indent, ensure_ascii=ascii_only)) == expected
    lines = "\n".join(json.dumps(entry, ensure_ascii=ascii_only) for entry in entries)
    assert parsed(lines) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3", "Expected `object`, got `int`"),
        ('{"text": "a"}', "an entry must have exactly one of prompt, messages, conversations"),
        ('{"prompt": "a", "messages": [{}]}', "an entry must have exactly one of"),
        ('{"prompt": ""}', "Expected `str` of length >= 1 - at `$.prompt`"),
        ('{"prompt": []}', "Expected `array` of length >= 1 - at `$.prompt`"),
        ('{"prompt": [1, -2]}', "Expected `int` >= 0 - at `$.prompt[1]`"),
        ('{"prompt": [1, true]}', "Expected `int`, got `bool` - at `$.prompt[1]`"),
        ('{"prompt": null}', "Expected `str | array`, got `null` - at `$.prompt`"),
        ('{"messages": []}', "Expected `array` of length >= 1 - at `$.messages`"),
        ('{"messages": ["a"]}', "Expected `object`, got `str` - at `$.messages[0]`"),
        ('{"conversations": {}}', "Expected `array`, got `object` - at `$.conversations`"),
        ('{"conversations": [{"from": "human"}]}', "Object missing required field `value`"),
        ('{"prompt": "a", "output_tokens": 0}', "Expected `int` >= 1 - at `$.output_tokens`"),
        ('{"prompt": "a", "output_tokens": null}', "Expected `int`, got `null`"),
        ('{"prompt": "a"', "invalid JSON: it ends too early"),
    ],
)
def test_invalid_entry_is_reported_with_its_line_and_rule(line: str, message: str) -> None:
    found = objection('\n{"prompt": "a"}\n' + line)
    assert found.startswith(f"asked.jsonl:3: {message}")
    assert len(found) < 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"prompt": "a"},\n\n{"prompt": 3}\n]', ": entry 2: Expected `str | array`, got `int`"),
        ('[\n{"prompt": "a"}\n{"prompt": "b"}]', ":3: invalid JSON: Expecting ','"),
        ('[{"prompt": "a"}]\n[]', ":1: Expected `object`, got `array`"),
    ],
)
def test_invalid_list_is_reported_with_its_entry_or_line(text: str, message: str) -> None:
    assert objection(text).startswith(f"asked.jsonl{message}")


def test_file_is_shuffled_by_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    text = jsonl(*({"prompt": "x" * length} for length in range(1, 31)))
    path.write_text(text, encoding="utf-8")
    first = from_file(path, 8, 1)
    assert first == from_file(path, 8, 1)
    assert sorted(first, key=lambda each: str(each.prompt)) == parsed(text)
    assert list(first) != parsed(text)
    assert from_file(path, 8, 2) != first


@pytest.mark.parametrize("content", ["", "\n\n", "[]", "[ ]", json.dumps([talk(("gpt", "Hi"))])])
def test_file_without_prompts_is_rejected(tmp_path: Path, content: str) -> None:
    path = tmp_path / "asked.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"asked\.json: the file must contain at least one prompt"):
        from_file(path, 8, 1)
