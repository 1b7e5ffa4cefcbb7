"""Opens the device that runs the steps: its name, number format, cache and free memory.

The only module here that imports torch, when a device is opened. ROCm builds of torch provide
`torch.cuda`, so CUDA and HIP share one path.
"""

from __future__ import annotations

import importlib
import os
import platform
from dataclasses import dataclass
from typing import Any, Final

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.machine import (
    cpu_flags,
    cpu_model,
    last_level_cache,
    memory_bytes,
)

# CPU features that multiply bfloat16. Without them it is emulated, and float32 is faster.
_BF16_FLAGS: Final = {"avx512_bf16", "amx_bf16", "bf16"}

# Iterations for which torch's threads (libgomp's, on Linux) spin before they sleep. By default
# they spin for milliseconds, some thirty times a step: on shared cores a spinning thread keeps
# the one it waits for from running, and steps take ten times as long. With this value steps on
# idle cores are as fast. Read when torch is imported.
_SPINNING: Final = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
_SPIN_COUNT: Final = "10000"


class DeviceUnavailable(Unavailable):
    """The device cannot be used for the measurement; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Device:
    """An opened device. `place`, `dtype`: torch objects. `kind`: cpu, cuda or hip.

    `threads`: of a CPU, else None. `cache_bytes`, `free_bytes`: of the last-level cache and of the
    memory, None where unknown.
    """

    torch: Any
    place: Any
    dtype: Any
    kind: str
    name: str
    threads: int | None
    cache_bytes: int | None
    free_bytes: int | None

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def open_device(name: str, dtype: str | None, threads: int | None) -> Device:
    """Opens the device `auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`.

    The default dtype is bfloat16 if the device multiplies it natively, else float32 on a CPU and
    float16 on a GPU; the default number of threads is torch's. Raises DeviceUnavailable without
    torch, without that device, and for threads of a GPU.
    """
    torch = _torch()
    available = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if available else "cpu"
    if name != "cpu" and not available:
        raise DeviceUnavailable(f"--device {name}: torch {torch.__version__} finds no GPU here")
    place = torch.device(name)
    if place.type == "cpu":
        return _cpu(torch, place, dtype, threads)
    place = torch.device("cuda", place.index or 0)  # `set_device` needs an index
    if place.index >= torch.cuda.device_count():
        raise DeviceUnavailable(f"--device {name}: there are {torch.cuda.device_count()} GPUs")
    if threads is not None:
        raise DeviceUnavailable(f"--threads {threads}: only a CPU has threads, not {name}")
    return _gpu(torch, place, dtype)


def _torch() -> Any:
    default_spinning = not _SPINNING & os.environ.keys()
    if default_spinning:
        os.environ["GOMP_SPINCOUNT"] = _SPIN_COUNT
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DeviceUnavailable(
            "this benchmark needs PyTorch, which is not installed: `pip install torch`, or "
            "install orch-sidecar with the extra cpu or gpu"
        ) from None
    finally:
        if default_spinning:
            del os.environ["GOMP_SPINCOUNT"]


def _cpu(torch: Any, place: Any, dtype: str | None, threads: int | None) -> Device:
    if threads is not None:
        torch.set_num_threads(threads)
    fast = not _BF16_FLAGS.isdisjoint(cpu_flags())
    return Device(
        torch=torch,
        place=place,
        dtype=getattr(torch, dtype or ("bfloat16" if fast else "float32")),
        kind="cpu",
        name=cpu_model() or platform.processor() or platform.machine(),
        threads=torch.get_num_threads(),
        cache_bytes=last_level_cache(),
        free_bytes=memory_bytes("MemAvailable"),
    )


def _gpu(torch: Any, place: Any, dtype: str | None) -> Device:
    torch.cuda.set_device(place)  # events and streams are those of the current device
    fast = torch.cuda.is_bf16_supported(including_emulation=False)
    properties = torch.cuda.get_device_properties(place)
    return Device(
        torch=torch,
        place=place,
        dtype=getattr(torch, dtype or ("bfloat16" if fast else "float16")),
        kind="cuda" if torch.version.hip is None else "hip",
        name=torch.cuda.get_device_name(place),
        threads=None,
        cache_bytes=properties.L2_cache_size or None,  # HIP may report 0 for unknown
        free_bytes=torch.cuda.mem_get_info(place)[0],
    )
