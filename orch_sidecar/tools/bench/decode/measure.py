"""Runs decode steps on a device, and measures each.

A step is written in PyTorch, the same source for CUDA, HIP and CPU. Weights are random: the time of
a step depends on sizes, not on values. Memory traffic and serial dependence are real: a step reads
each weight once, each sequence reads its own KV cache and appends to it, and the input of a step is
the output of the previous one.

On a GPU a step, and the gap since the previous one, are measured between events on the device's
timeline, as in a profiler; on a CPU by the host's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any, Final

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.decode.device import Device, load_torch
from orch_sidecar.tools.bench.decode.schedule import RunStep, TimedStep
from orch_sidecar.tools.bench.machine import memory_bytes

Tensor = Any  # torch is imported when a device is opened, so its types are not available here

# Steps of the largest batch that warm up caches, clocks and the allocator; one of each size
# follows, as the first of a size selects its kernels.
_WARM_UP_STEPS: Final = 5


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

        def normal(*size: int, deviation: float = 1.0) -> Tensor:
            empty = torch.empty(size, device=place, dtype=getattr(torch, device.dtype))
            return empty.normal_(0, deviation, generator=random)

        def weight(outputs: int, inputs: int) -> Tensor:
            return normal(outputs, inputs, deviation=inputs**-0.5)

        # Weights are (outputs, inputs), `kv` is (key or value, sequence, head, token, head size).
        self._layers = [
            SimpleNamespace(
                qkv=weight(shape.hidden + 2 * shape.kv_width, shape.hidden),
                out=weight(shape.hidden, shape.hidden),
                gate_up=weight(2 * shape.mlp, shape.hidden),
                down=weight(shape.hidden, shape.mlp),
                kv=normal(2, bmax, shape.kv_heads, shape.context, shape.head),
            )
            for _ in range(shape.layers)
        ]
        self._oldest = 0
        self.states = normal(bmax, shape.hidden)

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
        """Runs some steps, and returns what runs more of them, with the gaps between them."""
        warm_up = Timer(self._event, self.step)
        for batch in (*[max(batches)] * _WARM_UP_STEPS, *batches):
            warm_up(batch)
        return Timer(self._event, self.step)
