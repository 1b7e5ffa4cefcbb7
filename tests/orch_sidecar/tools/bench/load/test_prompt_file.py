"""Files of prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.bench.load.prompts import Prompt, from_file, parse

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a slot?"}]


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
        {"messages": CHAT, "output_tokens": 5},
    )
    assert parsed(text) == [
        Prompt("What is a slot?", 3),
        Prompt((5, 6, 7), 4),
        Prompt(output_tokens=5, messages=CHAT),
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
        (
            '[\n{"prompt": "a"},\n\n{"prompt": 3}\n]',
            "asked.jsonl: entry 2: Expected `str | array`, got `int`",
        ),
        ('[\n{"prompt": "a"}\n{"prompt": "b"}]', "asked.jsonl:3: invalid JSON: Expecting ','"),
        ('[{"prompt": "a"}]\n[]', "asked.jsonl:1: Expected `object`, got `array`"),
    ],
)
def test_invalid_list_is_reported_with_its_entry_or_line(text: str, message: str) -> None:
    assert objection(text).startswith(message)


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
