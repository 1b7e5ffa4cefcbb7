"""The parts of the engine's state that are read from vLLM's final configuration."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vllm_plugin.engine_facts import features_of, rate_limits_of
from vllm_plugin.register import pool_of


@pytest.mark.parametrize("speculative_config", [None, object()])
def test_features_are_those_of_the_final_configuration(speculative_config: object) -> None:
    scheduler = SimpleNamespace(
        policy="priority", max_num_batched_tokens=2048, long_prefill_token_threshold=512
    )
    config = SimpleNamespace(scheduler_config=scheduler, speculative_config=speculative_config)
    assert features_of(config) == {
        "speculative_decoding": speculative_config is not None,
        "scheduling_policy": "priority",
        "max_num_batched_tokens": 2048,
        "long_prefill_token_threshold": 512,
        "evidence": True,
    }


@pytest.mark.parametrize(
    ("requests", "tokens", "limits"),
    [
        (None, None, {}),
        (64, None, {"max_num_queued_reqs": 64}),
        (0, 9000, {"max_num_queued_reqs": 0, "max_num_queued_tokens": 9000}),
    ],
)
def test_rate_limits_are_those_that_vllm_enforces(
    requests: int | None, tokens: int | None, limits: dict[str, int]
) -> None:
    scheduler = SimpleNamespace(max_num_queued_reqs=requests, max_num_queued_tokens=tokens)
    assert rate_limits_of(SimpleNamespace(scheduler_config=scheduler)) == limits


@pytest.mark.parametrize(
    ("environ", "pool"), [({}, "cloud"), ({"ORCH_POOL": ""}, "cloud"), ({"ORCH_POOL": "a"}, "a")]
)
def test_pool_always_has_a_name(environ: dict[str, str], pool: str) -> None:
    assert pool_of(environ, "cloud") == pool
