"""What the plugin says that a sequence takes of the KV cache, against vLLM's own managers."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Iterator
from math import ceil
from typing import Any

import pytest

from vllm_plugin.adapters.vllm_config import kv_cache_of

pytestmark = pytest.mark.engine

# Layers of full attention, and in which of them each group of the others keeps its blocks.
MODELS = {
    "full attention": 1, "Gemma 3": 6, "gpt-oss": 2, "Llama 4": 4, "hybrid": 4,
    "hybrid, aligned states": 4, "hybrid, all states": 4,
}  # fmt: skip
LENGTHS = (1, 500, 8000, 32_000)


@pytest.fixture(scope="module")
def cores() -> Iterator[Any]:
    environment = dict(os.environ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own, at import
        from tests.engine import core_cache

    assert set(core_cache.MODELS) == set(MODELS)
    yield core_cache
    # vLLM sets LD_PRELOAD and more, which the processes of later tests must not inherit.
    os.environ.clear()
    os.environ.update(environment)


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_blocks_are_counted_as_vllm_gives_them_out(cores: Any, model: str, batches: int) -> None:
    core = cores.Core(model, batches)
    cache = asyncio.run(kv_cache_of(core))
    assert len(cache.groups) == MODELS[model]
    # At 24 576 tokens Llama 4 has the whole of a chunk, and takes no more of it later.
    for tokens in (*LENGTHS[:-1], 24_575 + batches) if model == "Llama 4" else LENGTHS:
        prompt = max(1, tokens - 4 * cores.BLOCK)
        reading, decoding = core.most_taken(prompt, tokens)
        assert core.taken == 0
        assert decoding == cache.blocks_of(tokens), tokens
        most = min(tokens, prompt + batches - 1)
        assert reading <= cache.blocks_of(most, reading=True), tokens


def test_a_sequence_takes_many_times_its_tokens_where_layers_are_grouped(cores: Any) -> None:
    """Five of six layers of Gemma 3 look 1024 tokens back."""
    cache = asyncio.run(kv_cache_of(cores.Core("Gemma 3")))
    times = {tokens: cache.blocks_of(tokens) / ceil(tokens / cores.BLOCK) for tokens in (500, 8000)}
    assert times == pytest.approx({500: 6.0, 8000: 1.65})


def test_prompt_starts_beside_others_while_the_blocks_that_are_kept_stay_free(cores: Any) -> None:
    core = cores.Core("full attention", watermark=0.7)
    cache = asyncio.run(kv_cache_of(core))
    room = (cache.blocks_total - cache.blocks_kept - 1000) * cores.BLOCK
    assert core.starts_beside(1000 * cores.BLOCK, room)
    assert not core.starts_beside(1000 * cores.BLOCK, room + 1)


@pytest.mark.parametrize("model", MODELS)
def test_tokens_in_all_are_those_of_the_longest_sequences(cores: Any, model: str) -> None:
    """As vLLM has it, but for one block or so, and for what prompts take while they are read."""
    core = cores.Core(model)
    cache = asyncio.run(kv_cache_of(core))
    tokens = cache.document(cores.CTX_MAX)["kv_tokens_total"]
    theirs = core.vllm_config.cache_config.kv_cache_size_tokens
    assert theirs * 0.995 < tokens < theirs * 1.3
