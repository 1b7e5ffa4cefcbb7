"""The conditions of an engine, from a configuration like vLLM's final one."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from tests.vllm_plugin.examples import SETTINGS
from vllm_plugin.adapters.vllm_config import conditions_of_workers
from vllm_plugin.enforcement.enforce import WORKER_EXTENSION
from vllm_plugin.state.engine_facts import (
    RANDOM_WEIGHTS,
    UNKNOWN,
    Conditions,
    attention_backend,
    conditions_of,
    loaded_model,
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
    load_format: str = "auto",
    lora_config: object = None,
    hf_config: dict[str, Any] | None = None,
    scheduler: tuple[int, int, bool, int] = (8192, 0, True, 1),
    modes: tuple[str | None, str | None] = ("VLLM_COMPILE", "FULL_AND_PIECEWISE"),
    transfer: object = None,
) -> Any:
    effective = {"model_type": "llama", "transformers_version": "5"} | (hf_config or {})
    drafting = None
    if speculative is not None:
        method, drafts = speculative
        drafting = SimpleNamespace(method=method, num_speculative_tokens=drafts)
    return SimpleNamespace(
        model_config=SimpleNamespace(
            quantization=quantization,
            dtype=dtype,
            hf_config=SimpleNamespace(to_dict=lambda: effective),
        ),
        load_config=SimpleNamespace(load_format=load_format),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=scheduler[0],
            long_prefill_token_threshold=scheduler[1],
            async_scheduling=scheduler[2],
            prefill_schedule_interval=scheduler[3],
        ),
        compilation_config=SimpleNamespace(mode=_mode(modes[0]), cudagraph_mode=_mode(modes[1])),
        kv_transfer_config=transfer,
        lora_config=lora_config,
        cache_config=SimpleNamespace(cache_dtype=cache_dtype, enable_prefix_caching=prefix_caching),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=ranks[0],
            pipeline_parallel_size=ranks[1],
            data_parallel_size=ranks[2],
            worker_extension_cls=extension,
        ),
        speculative_config=drafting,
    )


def _mode(name: str | None) -> SimpleNamespace | None:
    """Returns what stands for a member of vLLM's enums."""
    return None if name is None else SimpleNamespace(name=name)


def test_engine_without_special_settings_has_plain_conditions() -> None:
    plain = Conditions("none", "none", "bfloat16", "on", UNKNOWN, 1, 1, **SETTINGS)
    assert conditions_of(config()) == plain


def test_each_condition_is_read() -> None:
    found = conditions_of(
        config(
            quantization="awq",
            cache_dtype="fp8_e5m2",
            prefix_caching=False,
            speculative=("ngram", 3),
            ranks=(4, 2, 8),
            scheduler=(2048, 512, False, 4),
            modes=("NONE", "NONE"),
            lora_config=SimpleNamespace(max_loras=3),
            transfer=SimpleNamespace(
                kv_connector="OffloadingConnector",
                kv_connector_extra_config={"cpu_bytes_to_use": 8 * 2**30},
            ),
        )
    )
    assert found == Conditions(
        *("ngram:3", "awq", "fp8_e5m2", "off", UNKNOWN, 4, 2, 8),
        *(2048, 512, "off", 4, "eager", "OffloadingConnector:8", 3),
    )


@pytest.mark.parametrize(
    ("modes", "found"),
    [
        (("NONE", None), "eager"),
        ((None, None), "eager"),
        (("NONE", "FULL"), "full"),
        (("DYNAMO_TRACE_ONCE", "NONE"), "dynamo_trace_once"),
    ],
)
def test_execution_is_named_by_compilation_and_graphs(
    modes: tuple[str | None, str | None], found: str
) -> None:
    assert conditions_of(config(modes=modes)).execution == found


@pytest.mark.parametrize(
    ("connector", "more", "found"),
    [
        (None, {"cpu_bytes_to_use": 1}, "none"),
        ("LMCacheMPConnector", {}, "LMCacheMPConnector"),
        ("OffloadingConnector", {"cpu_bytes_to_use": 2.0**29}, "OffloadingConnector:0.5"),
    ],
)
def test_offloading_is_named_with_its_memory(
    connector: str | None, more: dict[str, float], found: str
) -> None:
    transfer = SimpleNamespace(kv_connector=connector, kv_connector_extra_config=more)
    assert conditions_of(config(transfer=transfer)).kv_offload == found


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
    """An engine core whose workers answer calls, or fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.called: list[str] = []
        self._error = error

    async def collective_rpc_async(self, method: str) -> list[Any]:
        self.called.append(method)
        if self._error is not None:
            raise self._error
        if method == "orch_parameters":
            return [[1000, 4000], [1000, 4000]]
        return [["FLASHINFER"], ["FLASHINFER"]]


async def test_workers_are_asked_for_what_they_run() -> None:
    core = Core()
    client = SimpleNamespace(vllm_config=config(), engine_core=core)
    found = await conditions_of_workers(client, conditions_of(config()))
    assert found.attention_backend == "FLASHINFER"
    assert found.loaded == loaded_model(config(), [[1000, 4000], [1000, 4000]])
    assert core.called == ["orch_attention_backends", "orch_parameters"]


async def test_they_are_unknown_with_another_worker_extension(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core, before = Core(), conditions_of(config())
    client = SimpleNamespace(vllm_config=config(extension="theirs.Extension"), engine_core=core)
    assert await conditions_of_workers(client, before) == before
    assert (before.attention_backend, before.loaded) == (UNKNOWN, UNKNOWN)
    assert core.called == []
    assert "another worker extension" in caplog.text


async def test_they_are_unknown_if_a_worker_fails(caplog: pytest.LogCaptureFixture) -> None:
    before = conditions_of(config())
    client = SimpleNamespace(vllm_config=config(), engine_core=Core(Exception("the worker")))
    assert await conditions_of_workers(client, before) == before
    assert "the worker" in caplog.text


# What was loaded


def test_model_as_loaded_is_told_from_every_other() -> None:
    """Of one folder: whole, with fewer layers, of another type, and with other parameters."""
    whole = loaded_model(config(), [[1000, 4000]])
    assert re.fullmatch("[0-9a-f]{16}", whole)
    assert whole == loaded_model(config(), [(1000, 4000)])
    others = {
        loaded_model(config(hf_config={"num_hidden_layers": 1}), [[1000, 4000]]),
        loaded_model(config(), [[250, 1000]]),
        loaded_model(config(), [[1000, 4000]] * 2),
        loaded_model(config(lora_config=object()), [[1000, 4000]]),
        loaded_model(config(load_format="safetensors"), [[1000, 4000]]),
    }
    assert len(others | {whole}) == 6


def test_weights_that_mean_nothing_are_said_to() -> None:
    dummy = loaded_model(config(load_format="dummy"), [[1000, 4000]])
    assert re.fullmatch("dummy:[0-9a-f]{16}", dummy)
    random = loaded_model(config(hf_config={RANDOM_WEIGHTS: True}), [[1000, 4000]])
    assert re.fullmatch("random:[0-9a-f]{16}", random)
