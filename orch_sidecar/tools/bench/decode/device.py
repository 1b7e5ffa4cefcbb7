"""The device that decode steps run on, the model that suits it, and the steps, each measured.

A step is written in PyTorch, the same source for CUDA, HIP (ROCm builds of torch provide
`torch.cuda`) and CPU. Weights are random: the time of a step depends on sizes, not on values.
Memory traffic and serial dependence are real: a step reads each weight once, each sequence reads
its own KV cache and appends to it, and the input of a step is the output of the previous one.

On a GPU a step, and the gap since the previous one, are measured between events on the device's
timeline, as in a profiler; on a CPU by the host's clock.
"""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any, Final

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.decode.schedule import RunStep, TimedStep
from orch_sidecar.tools.bench.machine import cpu, last_level_cache, memory_bytes

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
        kind = "cuda" if torch.version.hip is None else "hip"
        shape, slower = ON_GPU, torch.float16
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        # HIP may report a cache of 0 for unknown.
        known = {"name": properties.name, "cache_bytes": properties.L2_cache_size or None}
    else:
        kind, shape, slower = "cpu", ON_CPU, torch.float32
        flags = (cpu("(?:flags|Features)") or "").split()
        fast = not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)
        known = {
            "name": cpu("model name") or platform.processor() or platform.machine(),
            "cache_bytes": last_level_cache(),
            "threads": torch.get_num_threads(),
            "cpus": os.cpu_count(),
            "busy_threads": load,
        }
    dtype = torch.bfloat16 if fast else slower
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
    except ImportError as error:
        raise Unavailable(
            "this benchmark needs PyTorch: `pip install torch`, or install orch-sidecar with the "
            f"extra cpu or gpu ({error})"
        ) from error
    finally:
        if default_spinning:
            del os.environ["GOMP_SPINCOUNT"]


class HostEvent:
    """A moment by the host's clock, as an event on a device's timeline."""

    def record(self) -> None:
        self._at_ns = perf_counter_ns()

    def synchronize(self) -> None:
        """Waits for nothing: what the host has launched is over."""

    def elapsed_time(self, later: HostEvent) -> float:
        return (later._at_ns - self._at_ns) / 1e6


class Timer:
    """Runs steps to their ends, and times each and the gap before it.

    Two pairs of events alternate, so that the previous end still exists when the gap is read, and
    none is created within a step. The host waits only for the end of a step.
    """

    def __init__(self, event: Callable[[], Any], launch: Callable[[int], None]) -> None:
        """`event`: makes an event. `launch`: launches a step of so many sequences."""
        self._pairs = cycle([(event(), event()) for _ in range(2)])
        self._launch = launch
        self._last: Any = None

    def __call__(self, batch: int) -> TimedStep:
        start, end = next(self._pairs)
        start.record()
        self._launch(batch)
        end.record()
        end.synchronize()
        gap_ms = None if self._last is None else self._last.elapsed_time(start)
        self._last = end
        return TimedStep(batch, start.elapsed_time(end), gap_ms)


class Kernel:
    """A model and the KV caches of `bmax` sequences, each full with `context` tokens.

    A cache is a ring: a step overwrites the oldest token of each sequence. So every sequence
    always attends to the same number of tokens, and a step's work depends on the batch alone.
    `states`: the output of the last step and input of the next, (sequence, hidden). Raises
    Unavailable if all of that does not fit in the free memory.
    """

    def __init__(self, device: Device, bmax: int, seed: int) -> None:
        torch = self._torch = load_torch()
        shape = self._shape = device.shape
        on_cpu = device.kind == "cpu"
        needed = device.weight_bytes + bmax * device.kv_bytes_per_sequence
        free = memory_bytes("MemAvailable") if on_cpu else torch.cuda.mem_get_info(0)[0]
        if free is not None and needed > free:
            raise Unavailable(
                f"the weights and a KV cache of {bmax} sequences need {needed / 1e9:.1f} GB, but "
                f"{free / 1e9:.1f} GB are free: reduce the batch, or choose a toy by --work"
            )
        self._event = HostEvent if on_cpu else partial(torch.cuda.Event, enable_timing=True)
        place = "cpu" if on_cpu else "cuda:0"
        random = torch.Generator(place).manual_seed(seed)

        def normal(*size: int) -> Any:  # so that a product is as large as what is multiplied
            empty = torch.empty(size, device=place, dtype=getattr(torch, device.dtype))
            return empty.normal_(0, size[-1] ** -0.5, generator=random)

        # Weights are (outputs, inputs), `kv` is (key or value, sequence, head, token, head size).
        self._layers = [
            SimpleNamespace(
                qkv=normal(shape.hidden + 2 * shape.kv_width, shape.hidden),
                out=normal(shape.hidden, shape.hidden),
                gate_up=normal(2 * shape.mlp, shape.hidden),
                down=normal(shape.hidden, shape.mlp),
                kv=normal(2, bmax, shape.kv_heads, shape.context, shape.head),
            )
            for _ in range(shape.layers)
        ]
        self._oldest = 0
        self.states = normal(bmax, shape.hidden) * shape.hidden**0.5

    def step(self, batch: int) -> None:
        """Launches one token for each of the first `batch` sequences, without waiting for it.

        Query heads that share keys and values take the place of a prompt's tokens: as each sees
        every token there is no mask, and the cache is read once for the group.
        """
        shape, functional = self._shape, self._torch.nn.functional
        hidden = (shape.hidden,)
        with self._torch.inference_mode():
            states = self.states[:batch]
            for layer in self._layers:
                mixed = functional.linear(functional.rms_norm(states, hidden), layer.qkv)
                query, *newest = mixed.split((shape.hidden, shape.kv_width, shape.kv_width), dim=-1)
                caches = layer.kv[0, :batch], layer.kv[1, :batch]
                for cache, new in zip(caches, newest, strict=True):
                    cache[:, :, self._oldest] = new.view(batch, shape.kv_heads, shape.head)
                query = query.reshape(batch, shape.kv_heads, -1, shape.head)
                attended = functional.scaled_dot_product_attention(query, *caches)
                attended = attended.reshape(batch, shape.hidden)
                states = states + functional.linear(attended, layer.out)
                both = functional.linear(functional.rms_norm(states, hidden), layer.gate_up)
                gate, up = both.chunk(2, dim=-1)
                states = states + functional.linear(functional.silu(gate) * up, layer.down)
            self.states[:batch] = functional.rms_norm(states, hidden)
        self._oldest = (self._oldest + 1) % shape.context

    def warmed_up(self, batches: Sequence[int]) -> RunStep:
        """Runs some steps, and returns what runs more of them, with the gaps between them.

        The largest batch warms up caches, clocks and the allocator; the first step of each size
        selects its kernels.
        """
        warm_up = Timer(self._event, self.step)
        for batch in (*[max(batches)] * 5, *batches):
            warm_up(batch)
        return Timer(self._event, self.step)
