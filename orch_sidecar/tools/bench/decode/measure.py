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
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any, Final

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.decode.device import Device
from orch_sidecar.tools.bench.decode.schedule import RunStep, TimedStep

# torch is imported by `device` when needed, so its types are not available here.
Tensor = Any


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights are (outputs, inputs), `kv` is (key or value, sequence, head, token, head size)."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    kv: Tensor


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
    """Times a step that a call launches, and the gap before it. `event`: makes an event.

    Two pairs of events alternate, so that the previous end still exists when the gap is read, and
    none is created within a step. The host waits only for the end of a step.
    """

    def __init__(self, event: Callable[[], Any]) -> None:
        self._pairs = [(event(), event()) for _ in range(2)]
        self._last: Any = None

    def __call__(self, launch: Callable[[], None]) -> tuple[float, float | None]:
        """Runs a step to its end; returns its milliseconds and those of the gap, or None."""
        self._pairs.reverse()
        start, end = self._pairs[0]
        start.record()
        launch()
        end.record()
        end.synchronize()
        gap_ms = None if self._last is None else self._last.elapsed_time(start)
        self._last = end
        return start.elapsed_time(end), gap_ms


class Kernel:
    """A model and the KV caches of `bmax` sequences, each full with `context` tokens.

    A cache is a ring: a step overwrites the oldest token of each sequence. So every sequence
    always attends to the same number of tokens, and a step's work depends on the batch alone.
    `states`: the output of the last step and input of the next, (sequence, hidden). Raises
    Unavailable if all of that does not fit in the free memory.
    """

    def __init__(self, device: Device, bmax: int, seed: int) -> None:
        info, free_bytes = device.info, device.free_bytes
        needed = info.weight_bytes + bmax * info.kv_bytes_per_sequence
        if free_bytes is not None and needed > free_bytes:
            raise Unavailable(
                f"the weights and a KV cache of {bmax} sequences need {needed / 1e9:.1f} GB, but "
                f"{free_bytes / 1e9:.1f} GB are free: reduce the batch, or choose a toy by --work"
            )
        self._device, self._bmax = device, bmax
        self._torch, self._shape = device.torch, info.shape
        self._oldest = 0
        place = {"device": device.place, "dtype": device.dtype}
        random = device.torch.Generator(device.place).manual_seed(seed)

        def normal(*size: int, deviation: float = 1.0) -> Tensor:
            return device.torch.empty(size, **place).normal_(0, deviation, generator=random)

        def weight(outputs: int, inputs: int) -> Tensor:
            return normal(outputs, inputs, deviation=inputs**-0.5)

        shape, hidden = self._shape, self._shape.hidden
        self._layers = [
            _Layer(
                qkv=weight(hidden + 2 * shape.kv_width, hidden),
                out=weight(hidden, hidden),
                gate_up=weight(2 * shape.mlp, hidden),
                down=weight(hidden, shape.mlp),
                kv=normal(2, bmax, shape.kv_heads, shape.context, shape.head),
            )
            for _ in range(shape.layers)
        ]
        self.states = normal(bmax, hidden)

    def step(self, batch: int) -> None:
        """Launches one token for each of the first `batch` sequences, without waiting for it."""
        functional, hidden = self._torch.nn.functional, (self._shape.hidden,)
        with self._torch.inference_mode():
            states = self.states[:batch]
            for layer in self._layers:
                attended = self._attend(layer, functional.rms_norm(states, hidden))
                states = states + functional.linear(attended, layer.out)
                both = functional.linear(functional.rms_norm(states, hidden), layer.gate_up)
                gate, up = both.chunk(2, dim=-1)
                states = states + functional.linear(functional.silu(gate) * up, layer.down)
            self.states[:batch] = functional.rms_norm(states, hidden)
        self._oldest = (self._oldest + 1) % self._shape.context

    def _attend(self, layer: _Layer, states: Tensor) -> Tensor:
        """Returns the attention of each sequence's newest token to its whole cache.

        Query heads that share keys and values take the place of a prompt's tokens: as each sees
        every token there is no mask, and the cache is read once for the group.
        """
        shape, functional = self._shape, self._torch.nn.functional
        batch = states.shape[0]
        query, key, value = functional.linear(states, layer.qkv).split(
            (shape.hidden, shape.kv_width, shape.kv_width), dim=-1
        )
        layer.kv[0, :batch, :, self._oldest] = key.view(batch, shape.kv_heads, shape.head)
        layer.kv[1, :batch, :, self._oldest] = value.view(batch, shape.kv_heads, shape.head)
        group = shape.heads // shape.kv_heads
        attended = functional.scaled_dot_product_attention(
            query.reshape(batch, shape.kv_heads, group, shape.head),
            layer.kv[0, :batch],
            layer.kv[1, :batch],
        )
        return attended.reshape(batch, shape.hidden)

    def requests_within(self, seconds: float, tokens: int, most: int) -> int:
        """Returns how many requests, at most `most`, steps of `bmax` serve in the given time."""
        run_step = self.warmed_up(range(1, self._bmax + 1))
        full_ms = min(run_step(self._bmax).ms for _ in range(_WARM_UP_STEPS))
        return max(1, min(most, int(1000 * seconds * self._bmax / (tokens * full_ms))))

    def warmed_up(self, batches: Sequence[int]) -> RunStep:
        """Runs some steps, and returns what runs more of them, with the gaps between them."""
        run_step = self._timed()
        for batch in (*[max(batches)] * _WARM_UP_STEPS, *batches):
            run_step(batch)
        return self._timed()

    def _timed(self) -> RunStep:
        on_device = partial(self._torch.cuda.Event, enable_timing=True)
        timer = Timer(HostEvent if self._device.info.kind == "cpu" else on_device)
        return lambda batch: TimedStep(batch, *timer(lambda: self.step(batch)))
