"""Reads what an engine runs on and in which precision, in the terms of throughput tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from vllm_plugin.state.engine_facts import Hardware

_CPUINFO: Final = Path("/proc/cpuinfo")

# As spec sheets and benchmarks write them.
_PRECISIONS: Final = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32"}


def hardware_of(vllm_config: Any) -> Hardware:
    """Returns the hardware of the engine with this configuration. Initialises no device."""
    from vllm.platforms import current_platform

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    cpu = current_platform.is_cpu()
    return Hardware(
        gpu=f"CPU ({cpu_model()})" if cpu else str(current_platform.get_device_name()),
        gpu_count=0 if cpu else int(parallel.world_size),  # without other ranks'
        precision=precision(str(model.dtype), model.quantization),
    )


def precision(dtype: str, quantization: str | None) -> str:
    """Returns the name of a precision: BF16 for `torch.bfloat16`, FP8 if quantized to `fp8`."""
    if quantization is not None:
        return quantization.upper()
    name = dtype.removeprefix("torch.")
    return _PRECISIONS.get(name, name.upper())


def cpu_model(cpuinfo: Path = _CPUINFO) -> str:
    """Returns the processor's name as Linux reports it, `unknown` if it does not."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.split())
    return "unknown"
