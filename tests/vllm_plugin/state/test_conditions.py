"""The conditions of an engine, from a configuration like vLLM's final one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_plugin.enforcement.enforce import WORKER_EXTENSION
from vllm_plugin.register import attention_backend_of
from vllm_plugin.state.conditions import (
    UNKNOWN,
    Conditions,
    attention_backend,
    conditions_of,
    tokens_per_step_of,
)


def config(
    *,
    quantization: str | None = None,
    dtype: str = "torch.bfloat16",
    cache_dtype: str = "auto",
    prefix_caching: bool = True,
    speculative: tuple[str | None, int | None] | None = None,
    ranks: tuple[int, int, int] = (1, 1, 1),
    extension: str = WORKER_EXTENSION,
) -> Any:
    drafting = None
    if speculative is not None:
        method, drafts = speculative
        drafting = SimpleNamespace(method=method, num_speculative_tokens=drafts)
    return SimpleNamespace(
        model_config=SimpleNamespace(quantization=quantization, dtype=dtype),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype, enable_prefix_caching=prefix_caching),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=ranks[0],
            pipeline_parallel_size=ranks[1],
            data_parallel_size=ranks[2],
            worker_extension_cls=extension,
        ),
        speculative_config=drafting,
    )


def test_plain_engine() -> None:
    plain = Conditions("none", "none", "bfloat16", "on", UNKNOWN, 1, 1, data_parallel=1)
    assert conditions_of(config()) == plain


def test_each_condition_is_read() -> None:
    found = conditions_of(
        config(
            quantization="awq",
            cache_dtype="fp8_e5m2",
            prefix_caching=False,
            speculative=("ngram", 3),
            ranks=(4, 2, 8),
        )
    )
    assert found == Conditions("ngram:3", "awq", "fp8_e5m2", "off", UNKNOWN, 4, 2, 8)


@pytest.mark.parametrize(
    ("cache_dtype", "dtype", "found"),
    [
        ("auto", "torch.float32", "float32"),
        ("auto", "float16", "float16"),
        ("fp8", "torch.bfloat16", "fp8_e4m3"),
        ("fp8_e4m3", "torch.bfloat16", "fp8_e4m3"),
        ("float16", "torch.bfloat16", "float16"),
    ],
)
def test_equal_types_of_the_kv_cache_have_one_name(
    cache_dtype: str, dtype: str, found: str
) -> None:
    assert conditions_of(config(cache_dtype=cache_dtype, dtype=dtype)).kv_cache_dtype == found


@pytest.mark.parametrize(
    ("speculative", "name", "tokens"),
    [
        (None, "none", 1),
        (("eagle3", 5), "eagle3:5", 6),
        ((None, 2), "unknown:2", 3),
        (("suffix", None), "suffix:0", 1),
    ],
)
def test_speculative_decoding_is_named_with_its_drafts(
    speculative: tuple[str | None, int | None] | None, name: str, tokens: int
) -> None:
    drafting = config(speculative=speculative)
    assert conditions_of(drafting).speculative == name
    assert tokens_per_step_of(drafting) == tokens


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ([["FLASH_ATTN"], ["FLASH_ATTN"]], "FLASH_ATTN"),
        ([["MAMBA2_ATTN", "FLASH_ATTN"], ["FLASH_ATTN"]], "FLASH_ATTN+MAMBA2_ATTN"),
        ([[]], "none"),
    ],
)
def test_attention_backends_of_all_ranks_are_named(ranks: list[list[str]], found: str) -> None:
    assert attention_backend(ranks) == found


class Core:
    """An engine core whose workers answer a call, or fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.called: list[str] = []
        self._error = error

    async def collective_rpc_async(self, method: str) -> list[list[str]]:
        self.called.append(method)
        if self._error is not None:
            raise self._error
        return [["FLASHINFER"], ["FLASHINFER"]]


async def test_workers_are_asked_for_the_attention_backend() -> None:
    core = Core()
    client = SimpleNamespace(vllm_config=config(), engine_core=core)
    assert await attention_backend_of(client) == "FLASHINFER"
    assert core.called == ["orch_attention_backends"]


async def test_attention_backend_is_unknown_with_another_worker_extension(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = Core()
    client = SimpleNamespace(vllm_config=config(extension="theirs.Extension"), engine_core=core)
    assert await attention_backend_of(client) == UNKNOWN
    assert core.called == []
    assert "another worker extension" in caplog.text


async def test_attention_backend_is_unknown_if_a_worker_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = SimpleNamespace(vllm_config=config(), engine_core=Core(Exception("the worker")))
    assert await attention_backend_of(client) == UNKNOWN
    assert "the worker" in caplog.text
