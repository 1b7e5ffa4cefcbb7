"""Computes how many sequences the KV cache of an engine holds.

Pure. The engine reports the size of its cache and how many blocks a sequence of a given length
takes, so nothing is guessed about its layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orch_sidecar.engine_state.report import report_of
from vllm_plugin.contracts.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """The sequences that fit at once.

    `tokens`: context length that is counted, prompt and answer. `sequences`: of that length.
    `longest`: of the longest context that the engine accepts, `ctx_max` tokens. `kv_tokens`: the
    cache's size in tokens of such sequences. `bytes_per_token`: None where it is not reported.
    """

    tokens: int
    sequences: int
    ctx_max: int
    longest: int
    kv_tokens: int
    bytes_per_token: int | None

    @property
    def kv_bytes(self) -> int | None:
        """The size of the cache in bytes."""
        return None if self.bytes_per_token is None else self.kv_tokens * self.bytes_per_token

    @property
    def text(self) -> str:
        """One line: what fits, and why."""
        size = f"{self.kv_tokens} tokens"
        if self.kv_bytes is not None:
            size += f" ({self.kv_bytes / 2**30:.2f} GiB, {self.bytes_per_token} bytes per token)"
        return (
            f"KV cache of {size}: {self.sequences} sequences of {self.tokens} tokens, "
            f"{self.longest} of the longest context ({self.ctx_max})"
        )


def memory_bound(entry: Mapping[str, Any], tokens: int) -> MemoryBound | None:
    """Returns the bound for sequences of `tokens`, from an engine's entry in `/v1/capabilities`.

    None: the engine does not report its cache.
    """
    report = report_of(entry)
    cache, ctx_max = report.kv, report.ctx_max
    if cache is None or ctx_max is None:
        return None
    per_token = entry.get("features", {}).get("kv_bytes_per_token")
    return MemoryBound(
        tokens=min(tokens, ctx_max),
        sequences=_sequences(cache, min(tokens, ctx_max)),
        ctx_max=ctx_max,
        longest=_sequences(cache, ctx_max),
        kv_tokens=entry.get("kv_tokens_total", 0),
        bytes_per_token=per_token if type(per_token) is int else None,
    )


def _sequences(cache: KvCache, tokens: int) -> int:
    return cache.blocks_total // max(1, cache.blocks_of(tokens))
