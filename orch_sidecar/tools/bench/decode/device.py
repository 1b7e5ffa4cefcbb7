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
from orch_sidecar.tools.bench.decode.result import DeviceInfo
from orch_sidecar.tools.bench.decode.shape import ON_CPU, ON_GPU, Shape
from orch_sidecar.tools.bench.machine import cpu_flags, cpu_model, last_level_cache, memory_bytes

# CPU features that multiply bfloat16. Without them it is emulated, and float32 is faster.
_BF16_FLAGS: Final = {"avx512_bf16", "amx_bf16", "bf16"}

# Iterations for which torch's threads (libgomp's, on Linux) spin before they sleep. By default
# they spin for milliseconds, some thirty times a step: on shared cores a spinning thread keeps
# the one it waits for from running, and steps take ten times as long. With this value steps on
# idle cores are as fast. Read when torch is imported.
_SPINNING: Final = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
_SPIN_COUNT: Final = "10000"


@dataclass(frozen=True, slots=True)
class Device:
    """An opened device. `place`, `dtype`: torch objects. `free_bytes`: of its memory, None where
    unknown."""

    torch: Any
    place: Any
    dtype: Any
    info: DeviceInfo
    free_bytes: int | None


def open_device(work: int | None = None) -> Device:
    """Opens a GPU if torch finds one, else the CPU.

    The number format is bfloat16 if the device multiplies it natively, else float32 on a CPU and
    float16 on a GPU. `work`: of `Shape.of_work`; None for the plain model of the device. Raises
    Unavailable without torch.
    """
    load = os.getloadavg()[0]  # before this program adds to it
    torch = _torch()
    if torch.cuda.is_available():
        place, dtype, free_bytes, known = _gpu(torch)
    else:
        place, dtype, free_bytes, known = _cpu(torch, load)
    shape = (ON_CPU if known["kind"] == "cpu" else ON_GPU) if work is None else Shape.of_work(work)
    info = DeviceInfo(
        torch=str(torch.__version__),
        dtype=str(dtype).removeprefix("torch."),
        weight_bytes=shape.weights * dtype.itemsize,
        kv_bytes_per_sequence=shape.kv_values * dtype.itemsize,
        shape=shape,
        **known,
    )
    return Device(torch, place, dtype, info, free_bytes)


def _torch() -> Any:
    default_spinning = not _SPINNING & os.environ.keys()
    if default_spinning:
        os.environ["GOMP_SPINCOUNT"] = _SPIN_COUNT
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Unavailable(
            "this benchmark needs PyTorch, which is not installed: `pip install torch`, or "
            "install orch-sidecar with the extra cpu or gpu"
        ) from None
    finally:
        if default_spinning:
            del os.environ["GOMP_SPINCOUNT"]


# The place, the number format, the bytes of free memory, and what is known of the device.
_Found = tuple[Any, Any, int | None, dict[str, Any]]


def _cpu(torch: Any, load: float) -> _Found:
    fast = not _BF16_FLAGS.isdisjoint(cpu_flags())
    known = {
        "kind": "cpu",
        "name": cpu_model() or platform.processor() or platform.machine(),
        "cache_bytes": last_level_cache(),
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "busy_threads": load,
    }
    dtype = torch.bfloat16 if fast else torch.float32
    return torch.device("cpu"), dtype, memory_bytes("MemAvailable"), known


def _gpu(torch: Any) -> _Found:
    place = torch.device("cuda", 0)  # `set_device` needs an index
    torch.cuda.set_device(place)  # events and streams are those of the current device
    fast = torch.cuda.is_bf16_supported(including_emulation=False)
    properties = torch.cuda.get_device_properties(place)
    known = {
        "kind": "cuda" if torch.version.hip is None else "hip",
        "name": torch.cuda.get_device_name(place),
        "cache_bytes": properties.L2_cache_size or None,  # HIP may report 0 for unknown
    }
    dtype = torch.bfloat16 if fast else torch.float16
    return place, dtype, torch.cuda.mem_get_info(place)[0], known
