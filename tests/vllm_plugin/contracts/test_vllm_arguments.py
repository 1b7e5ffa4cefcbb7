"""What of vLLM's command line can be read, and held against a profile, without vLLM."""

from __future__ import annotations

import pytest

from vllm_plugin.contracts.profile import load
from vllm_plugin.contracts.vllm_arguments import contradictions, value_of


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--port 1", "1"),
        ("--port=1", "1"),
        ("m --port 1 --port 2", "2"),
        ("--port", None),
        ("--ports 1", None),
        ("", None),
    ],
)
def test_value_is_the_last_in_either_spelling(words: str, value: str | None) -> None:
    assert value_of(words.split(), "--port") == value


@pytest.mark.parametrize(
    ("profile", "words", "found"),
    [
        ("home", "--max-num-seqs 1", []),
        ("home", "--max_num_seqs=8", ["--max-num-seqs is 8, must be 1"]),
        ("cloud", "--max-num-seqs 1", ["--max-num-seqs is 1, must be at least 2"]),
        ("cloud", "--max-num-seqs 8 --max-num-batched-tokens 8k", []),
        (
            "cloud",
            "--max-num-seqs 0 --max-num-batched-tokens 8",
            [
                "--max-num-seqs is 0, must be at least 2",
                "--max-num-batched-tokens is 8, must be at least 256",
            ],
        ),
    ],
)
def test_integers_that_contradict_the_profile_are_found(
    profile: str, words: str, found: list[str]
) -> None:
    assert contradictions(words.split(), load(profile)) == found
