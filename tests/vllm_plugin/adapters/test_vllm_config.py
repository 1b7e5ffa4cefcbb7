"""The hardware and precision that an engine reports."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.vllm_plugin.examples import FACTS
from vllm_plugin.adapters.vllm_config import (
    StepTiming,
    cpu_model,
    hardware_of,
    precision,
    step_timing_of,
)
from vllm_plugin.state.engine_facts import Hardware
from vllm_plugin.state.engine_state import EngineState


@pytest.mark.parametrize(
    ("dtype", "quantization", "name"),
    [
        ("torch.bfloat16", None, "BF16"),
        ("torch.float16", None, "FP16"),
        ("torch.float32", None, "FP32"),
        ("torch.float8_e4m3fn", None, "FLOAT8_E4M3FN"),
        ("torch.bfloat16", "fp8", "FP8"),
        ("torch.float16", "awq_marlin", "AWQ_MARLIN"),
    ],
)
def test_precision_is_that_of_the_weights(dtype: str, quantization: str | None, name: str) -> None:
    assert precision(dtype, quantization) == name


def test_cpu_is_named_as_linux_names_it(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Intel(R)  Xeon(R) 6975P\nmodel\t: 1\n")
    assert cpu_model(file) == "Intel(R) Xeon(R) 6975P"
    file.write_text("processor\t: 0\n")
    assert cpu_model(file) == "unknown"
    assert cpu_model(tmp_path / "none") == "unknown"


def test_state_contains_the_hardware() -> None:
    state = EngineState(FACTS).document(None)
    assert (state["gpu"], state["gpu_count"]) == ("NVIDIA H100 80GB HBM3", 2)
    assert state["precision"] == "BF16"


def test_gpus_are_all_that_one_copy_of_the_model_is_spread_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM's world size includes context parallelism, too."""
    platform = SimpleNamespace(is_cpu=lambda: False, get_device_name=lambda: "NVIDIA H100")
    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = platform  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    config = SimpleNamespace(
        model_config=SimpleNamespace(dtype="torch.bfloat16", quantization=None),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=4,
            pipeline_parallel_size=1,
            prefill_context_parallel_size=2,
            world_size=8,
        ),
    )
    assert hardware_of(config) == Hardware("NVIDIA H100", 8, "BF16")


@pytest.mark.parametrize(
    ("asynchronous", "executor", "timing"),
    [
        (False, "mp", StepTiming.WHOLE),
        (False, "uni", StepTiming.REST),
        (False, "external_launcher", StepTiming.REST),
        (True, "uni", StepTiming.WAIT),
        (True, "mp", StepTiming.WAIT),
    ],
)
def test_what_vllm_times_of_a_step_depends_on_who_runs_the_model(
    asynchronous: bool, executor: str, timing: StepTiming
) -> None:
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
        parallel_config=SimpleNamespace(distributed_executor_backend=executor),
    )
    assert step_timing_of(config) is timing
