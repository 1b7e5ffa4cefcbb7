"""A KV cache that groups of layers share, on a real engine: nothing is preempted."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import engine_state, post, session
from tests.engine.conftest import BLOCK_TOKENS, BLOCKS, CLIENTS, CTX_MAX
from tests.engine.sliding_model import LAYERS, WINDOW_TOKENS

# The engine of `sliding` is a start of its own. What is counted is compared with vLLM's own
# managers in test_kv_blocks_agree.
pytestmark = pytest.mark.long

REQUESTS, OUTPUT_TOKENS = 20, 80


async def test_grouped_layers_are_counted_so_that_nothing_is_preempted(sliding: Stack) -> None:
    async with session() as http:
        state = await engine_state(http, sliding.url)
        assert state["kv_blocks_total"] == BLOCKS - 1
        most = 1 + WINDOW_TOKENS // BLOCK_TOKENS
        assert state["kv_groups"] == [
            {
                "count": LAYERS - 1,
                "block_tokens": BLOCK_TOKENS,
                "blocks_most": most,
                "blocks_reading": most + CTX_MAX // BLOCK_TOKENS,
            },
            {"count": 1, "block_tokens": BLOCK_TOKENS},
        ]
        assert await _preempted(http, sliding, sliding.url) == 0
        assert await _preempted(http, sliding, sliding.engine_url) > 0, "without the rule"


async def _preempted(http: aiohttp.ClientSession, stack: Stack, url: str) -> int:
    """How many sequences the engine preempts while clients ask at this address."""
    chance = random.Random(3)
    prompts = [
        [chance.randrange(5, 500) for _ in range(chance.randrange(20, 80))] for _ in range(REQUESTS)
    ]

    async def ask() -> None:
        while prompts:
            request: dict[str, Any] = {
                "model": "tiny",
                "prompt": prompts.pop(),
                "max_tokens": OUTPUT_TOKENS,
                "ignore_eos": True,
            }
            seen = await post(http, url, "completions", request, {"X-Orch-Class": "bulk"})
            assert seen.status == 200, seen.data

    before = (await engine_state(http, stack.engine_url))["preemptions_total"]
    await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    after = (await engine_state(http, stack.engine_url))["preemptions_total"]
    return int(after - before)
