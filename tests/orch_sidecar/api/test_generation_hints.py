"""What is read from a body besides its cost: prompt tokens, tier, priority."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.generation import GenerationRequest
from tests.orch_sidecar import apis
from tests.orch_sidecar.api.test_generation import read_json, refusal_of


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"prompt": "a"}, None),
        ({"prompt": ["a", "b"]}, None),
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": [1, 2, 3], "n": 4}, 3),
        ({"prompt": [[1, 2], [3]]}, 3),
        ({"prompt": [[]]}, 0),
        ({"prompt": [1, 2, 3], "prompt_embeds": "AAAA"}, None),
        ({"prompt": [1, 2, 3], "prompt_embeds": []}, 3),
        ({"prompt": [1, 2, 3], "truncate_prompt_tokens": 2}, None),
        ({"prompt": [1, 2, 3], "truncate_prompt_tokens": None}, 3),
    ],
)
def test_prompt_tokens_are_known_if_all_prompts_are_token_ids(
    fields: dict[str, Any], tokens: int | None
) -> None:
    generation = read_json(apis.COMPLETIONS, **fields)
    assert isinstance(generation, GenerationRequest)
    assert generation.prompt_tokens == tokens


def test_only_completions_have_prompts_of_token_ids() -> None:
    generation = read_json(apis.CHAT, messages=[], prompt=[1, 2, 3])
    assert isinstance(generation, GenerationRequest)
    assert generation.prompt_tokens is None


@pytest.mark.parametrize("api", apis.GENERATING)
def test_service_tier_is_a_string(api: Endpoint) -> None:
    for tier in ("flex", "auto", "", None):
        generation = read_json(api, prompt="a", service_tier=tier)
        assert isinstance(generation, GenerationRequest)
        assert generation.service_tier == tier
    wrongs: list[Any] = [5, True, [], {}]
    for wrong in wrongs:
        refusal = refusal_of(read_json(api, prompt="a", service_tier=wrong))
        assert refusal.param == "service_tier"
        assert refusal.message.startswith("service_tier must be a string, not ")


@pytest.mark.parametrize("api", [apis.CHAT, apis.COMPLETIONS, apis.RESPONSES])
def test_priority_is_an_integer_of_64_bits(api: Endpoint) -> None:
    for priority in (0, 5, -5, 2**63 - 1, -(2**63), None):
        generation = read_json(api, prompt="a", priority=priority)
        assert isinstance(generation, GenerationRequest)
        assert generation.priority == priority
    wrongs: list[Any] = ["5", 5.0, True, [], {}, 2**63, -(2**63) - 1]
    for wrong in wrongs:
        refusal = refusal_of(read_json(api, prompt="a", priority=wrong))
        assert refusal.param == "priority"
        assert refusal.message.startswith("priority must be ")


def test_priority_of_a_message_is_ignored() -> None:
    generation = read_json(apis.MESSAGES, priority="5")
    assert isinstance(generation, GenerationRequest)
    assert generation.priority is None
