"""Lists a place in vLLM that only evidence uses; `hooks` lists all others, and checks them."""

from __future__ import annotations

from typing import Final

from vllm_plugin.hook import Hook

EVIDENCE_HOOKS: Final = (
    Hook(
        "v1/metrics/stats.py",
        "FinishedRequestStats",
        (
            "request_id",
            "finish_reason",
            "e2e_latency",
            "queued_time",
            "prefill_time",
            "decode_time",
            "num_prompt_tokens",
            "num_generation_tokens",
            "num_cached_tokens",
        ),
        "evidence",
    ),
)
