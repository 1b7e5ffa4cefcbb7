"""The device that runs the steps, and the model that suits it: its size, work and memory traffic.

Only `load_torch` imports torch. ROCm builds of it provide `torch.cuda`, so CUDA and HIP share one
path.
"""

from __future__ import annotations

import importlib
import os
import platform
from dataclasses import dataclass, replace
from typing import Any, Final

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.machine import cpu, last_level_cache

# The multiply-adds of an iteration of the kernel in "Throughput, Latency & Batching Policy".
FMA_PER_ITERATION: Final = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a model. `context`: tokens of each sequence in the KV cache.

    A layer is that of a Llama: `heads` query heads share `kv_heads` heads of keys and values, and a
    gated MLP has 3.5 times the hidden size (Llama 3 8B: 14336 / 4096). The heads divide the hidden
    size into multiples of 8, which kernels for attention take, and are a multiple of those of keys
    and values.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    context: int

    @classmethod
    def of_work(cls, iterations: int) -> Shape:
        """Returns the widest model of one layer whose step takes no more multiply-adds than so many
        iterations of the paper's kernel; the smallest one if none is as small."""
        shape = wider = cls(layers=1, hidden=32, heads=4, kv_heads=1, context=16)
        while wider.multiply_adds <= FMA_PER_ITERATION * iterations:
            shape, wider = wider, replace(wider, hidden=wider.hidden + 32)
        return shape

    @property
    def head(self) -> int:
        """The size of a head."""
        return self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        """The size of a token's keys (and of its values) in a layer."""
        return self.kv_heads * self.head

    @property
    def mlp(self) -> int:
        return self.hidden * 7 // 2

    @property
    def weights(self) -> int:
        """The parameters of all layers; a step reads each once, whatever the batch."""
        attention = self.hidden * (2 * self.hidden + 2 * self.kv_width)
        return self.layers * (attention + 3 * self.hidden * self.mlp)

    @property
    def kv_values(self) -> int:
        """The numbers in the KV cache of one sequence; a step reads each once."""
        return self.layers * 2 * self.context * self.kv_width

    @property
    def multiply_adds(self) -> int:
        """The multiply-adds per sequence and step, of weights and of attention."""
        return self.weights + self.layers * 2 * self.context * self.hidden


# Weights of 55 MB in bfloat16, more than the last-level cache that most processors have for a few
# cores, so that every step reads them from memory. Steps take 2 to 4 ms on two cores.
ON_CPU: Final = Shape(layers=2, hidden=1024, heads=16, kv_heads=4, context=256)

# Four layers of an 8B model, 1.7 GB in bfloat16: 0.5 ms of an H100's memory bandwidth, and about
# 35 times its L2 cache. With the KV cache of 16 sequences they fit in 3 GB.
ON_GPU: Final = Shape(layers=4, hidden=4096, heads=32, kv_heads=8, context=2048)


@dataclass(frozen=True, slots=True)
class Device:
    """The device and the model. `threads`, `cache_bytes`: None where unknown or not applicable.
    `busy_threads`: of other programs, on the `cpus` that steps run on, as a mean of the last minute
    before them; None of a GPU."""

    kind: str
    name: str
    torch: str
    dtype: str
    cache_bytes: int | None
    weight_bytes: int
    kv_bytes_per_sequence: int
    shape: Shape
    threads: int | None = None
    cpus: int | None = None
    busy_threads: float | None = None


def open_device(work: int | None = None) -> Device:
    """Opens a GPU if torch finds one, else the CPU.

    The number format is bfloat16 if the device multiplies it natively, else float32 on a CPU and
    float16 on a GPU. `work`: of `Shape.of_work`; None for the plain model of the device. Raises
    Unavailable without torch.
    """
    load = os.getloadavg()[0]  # before this program adds to it
    torch = load_torch()
    if torch.cuda.is_available():
        torch.cuda.set_device(0)  # events and streams are those of the current device
        properties = torch.cuda.get_device_properties(0)
        shape, kind = ON_GPU, "cuda" if torch.version.hip is None else "hip"
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        dtype = torch.bfloat16 if fast else torch.float16
        # HIP may report a cache of 0 for unknown.
        known = {"name": properties.name, "cache_bytes": properties.L2_cache_size or None}
    else:
        shape, kind = ON_CPU, "cpu"
        # Without such a feature bfloat16 is emulated, and float32 is faster.
        features = {"avx512_bf16", "amx_bf16", "bf16"} & {
            *(cpu("(?:flags|Features)") or "").split()
        }
        dtype = torch.bfloat16 if features else torch.float32
        known = {
            "name": cpu("model name") or platform.processor() or platform.machine(),
            "cache_bytes": last_level_cache(),
            "threads": torch.get_num_threads(),
            "cpus": os.cpu_count(),
            "busy_threads": load,
        }
    shape = shape if work is None else Shape.of_work(work)
    return Device(
        kind=kind,
        torch=str(torch.__version__),
        dtype=str(dtype).removeprefix("torch."),
        weight_bytes=shape.weights * dtype.itemsize,
        kv_bytes_per_sequence=shape.kv_values * dtype.itemsize,
        shape=shape,
        **known,
    )


def load_torch() -> Any:
    """Returns the module torch. Raises Unavailable without it.

    Its threads (libgomp's, on Linux) spin before they sleep, by default for milliseconds, some
    thirty times a step: on shared cores a spinning thread keeps the one it waits for from running,
    and steps take ten times as long. With fewer iterations steps on idle cores are as fast. Read
    when torch is imported.
    """
    default_spinning = os.environ.keys().isdisjoint({"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"})
    if default_spinning:
        os.environ["GOMP_SPINCOUNT"] = "10000"
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
