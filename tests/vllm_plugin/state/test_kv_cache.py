"""The blocks of the KV cache that a sequence takes, by the engine core's groups of layers.

The engine tests show that vLLM allocates as many.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_plugin.adapters.vllm_config import kv_cache_of, scheduling_of
from vllm_plugin.contracts.kv_cache import KvCache, KvGroup
from vllm_plugin.state.kv_cache import Scheduling, bytes_per_token, groups_of

ENGINE = Scheduling(ctx_max=32_768, ctx_max_blocks=None, batches=1, batch_tokens=2048)
ASYNC = replace(ENGINE, batches=2)
DRAFTS = replace(ENGINE, draft_tokens=3, lookahead_tokens=3, mamba_extra=3)


def row(kind: str, block: int = 16, window: int | None = None) -> dict[str, Any]:
    return {"group_idx": 0, "kind": kind, "block_size": block, "sliding_window": window}


@pytest.mark.parametrize(
    ("kind", "engine", "group"),
    [
        (row("full_attention"), ENGINE, KvGroup(16)),
        (row("mla_attention", 64), ASYNC, KvGroup(64)),
        (row("full_attention"), DRAFTS, KvGroup(16, None, None, 1)),
        (row("sliding_window", 16, 1024), ENGINE, KvGroup(16, 65, 193)),
        (row("sliding_window", 16, 1024), ASYNC, KvGroup(16, 65, 321)),
        (row("sliding_window", 16, 1025), ENGINE, KvGroup(16, 65, 193)),
        (row("sliding_window", 16, 1025), ASYNC, KvGroup(16, 66, 321)),
        (row("sliding_window", 16, 1024), DRAFTS, KvGroup(16, 66, 193, 1)),
        (row("mamba", 32_768), ENGINE, KvGroup(32_768, 1)),
        (row("mamba", 32_768), DRAFTS, KvGroup(32_768, 1, None, 3)),
        (row("mamba"), replace(ENGINE, mamba_mode="align"), KvGroup(16, 2, 3)),
        (row("mamba"), replace(ENGINE, mamba_mode="all"), KvGroup(16, 2, 130)),
        (
            row("chunked_local_attention"),
            replace(ENGINE, attention_chunk=8192),
            KvGroup(16, 512, 640),
        ),
    ],
)
def test_group_of_each_kind(kind: dict[str, Any], engine: Scheduling, group: KvGroup) -> None:
    assert groups_of([kind], engine) == (group,)


def test_groups_of_unknown_kinds_take_the_blocks_that_vllm_computes_beyond_the_others() -> None:
    rows = [row("full_attention"), row("new"), row("newer", 4)]
    groups = groups_of(rows, replace(ENGINE, ctx_max_blocks=2048 + 512))
    assert groups == (KvGroup(16), KvGroup(64))
    cache = KvCache(1000, groups)
    assert [cache.blocks_of(tokens) for tokens in (1, 6400, 32_768)] == [2, 500, 2560]


def test_groups_of_unknown_kinds_take_a_block_each_if_vllm_computes_none() -> None:
    assert groups_of([row("full_attention"), row("new")], ENGINE) == (KvGroup(16), KvGroup(32_768))


def test_document_merges_equal_groups() -> None:
    sliding = KvGroup(16, 65, 193)
    cache = KvCache(10_000, (sliding, KvGroup(16), sliding, sliding))
    assert cache.document(16_000) == {
        "kv_tokens_total": 10_000 * 16_000 // (1000 + 3 * 65),
        "kv_blocks_total": 10_000,
        "kv_groups": [
            {"count": 3, "block_tokens": 16, "blocks_most": 65, "blocks_reading": 193},
            {"count": 1, "block_tokens": 16},
        ],
    }


def test_kv_cache_of_one_group_holds_all_its_tokens() -> None:
    assert KvCache(255, (KvGroup(128),)).document(2048)["kv_tokens_total"] == 255 * 128


def test_kv_cache_of_a_model_without_attention_is_empty() -> None:
    assert KvCache(0, ()).document(2048) == {
        "kv_tokens_total": 0,
        "kv_blocks_total": 0,
        "kv_groups": [],
    }


class EngineClient:
    """The parts of vLLM's client of an engine core that are used."""

    def __init__(self, answer: list[dict[str, Any]] | Exception, watermark: float = 0.0) -> None:
        self._answer = answer
        self.engine_core = self
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(
                num_gpu_blocks=256,
                block_size=128,
                kv_cache_max_concurrency=12.8,
                mamba_cache_mode="none",
            ),
            model_config=SimpleNamespace(max_model_len=2048, hf_text_config=None),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=512, watermark=watermark),
            num_speculative_tokens=0,
            num_lookahead_tokens=0,
            num_prefill_lookahead_tokens=0,
            max_concurrent_batches=2,
        )

    async def call_utility_async(self, method: str) -> list[dict[str, Any]]:
        assert method == "get_kv_cache_group_metadata"
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


async def test_groups_are_queried_from_the_engine_core() -> None:
    client = EngineClient([row("full_attention", 128), row("sliding_window", 128, 256)])
    assert scheduling_of(client.vllm_config) == Scheduling(2048, 20, 2, 512)
    assert await kv_cache_of(client) == KvCache(255, (KvGroup(128), KvGroup(128, 3, 11)))


async def test_blocks_that_the_engine_keeps_free_are_reported() -> None:
    cache = await kv_cache_of(EngineClient([row("full_attention", 128)], watermark=0.1))
    assert cache == KvCache(255, (KvGroup(128),), 25)
    assert cache.document(2048)["kv_blocks_kept"] == 25


@pytest.mark.parametrize("answer", [RuntimeError("it failed"), [{"kind": "full_attention"}]])
async def test_failing_engine_core_counts_as_one_group(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert await kv_cache_of(EngineClient(answer)) == KvCache(255, (KvGroup(128),))
    assert "the groups of the KV cache are unknown" in caplog.text


@pytest.mark.parametrize(
    ("fields", "dtype", "size"),
    [
        ({}, "bfloat16", 2 * 4 * 8 * 64 * 2),
        ({"num_key_value_heads": 2}, "bfloat16", 2 * 4 * 2 * 64 * 2),
        ({"head_dim": 128}, "fp8_e4m3", 2 * 4 * 8 * 128),
        ({"kv_lora_rank": 512}, "bfloat16", None),
        ({"num_hidden_layers": None}, "bfloat16", None),
        ({}, "unheard_of", None),
    ],
)
def test_bytes_of_a_token_follow_from_the_model(
    fields: dict[str, Any], dtype: str, size: int | None
) -> None:
    model = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512, **fields}
    assert bytes_per_token(SimpleNamespace(**model), dtype) == size
