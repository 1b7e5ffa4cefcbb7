"""A decode step in PyTorch, the same source for CUDA, HIP and CPU.

Weights are random: the time of a step depends on sizes, not on values. Memory traffic and serial
dependence are real: a step reads each weight once, each sequence reads its own KV cache and
appends to it, and the input of a step is the output of the previous one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orch_sidecar.tools.bench.decode.device import Device
from orch_sidecar.tools.bench.decode.shape import Shape

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


class Kernel:
    """A model and the KV caches of `bmax` sequences, each full with `context` tokens.

    A cache is a ring: a step overwrites the oldest token of each sequence. So every sequence
    always attends to the same number of tokens, and a step's work depends on the batch alone.
    """

    def __init__(self, device: Device, shape: Shape, bmax: int, seed: int) -> None:
        self._torch, self._shape = device.torch, shape
        self._oldest = 0
        place = {"device": device.place, "dtype": device.dtype}
        random = device.torch.Generator(device.place).manual_seed(seed)

        def normal(*size: int, deviation: float = 1.0) -> Tensor:
            return device.torch.empty(size, **place).normal_(0, deviation, generator=random)

        def weight(outputs: int, inputs: int) -> Tensor:
            return normal(outputs, inputs, deviation=inputs**-0.5)

        hidden = shape.hidden
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
        self._states = normal(bmax, hidden)

    @property
    def states(self) -> Tensor:
        """The output of the last step and input of the next: (sequence, hidden)."""
        return self._states

    def step(self, batch: int) -> None:
        """Launches one token for each of the first `batch` sequences, without waiting for it."""
        functional, hidden = self._torch.nn.functional, (self._shape.hidden,)
        with self._torch.inference_mode():
            states = self._states[:batch]
            for layer in self._layers:
                attended = self._attend(layer, functional.rms_norm(states, hidden))
                states = states + functional.linear(attended, layer.out)
                both = functional.linear(functional.rms_norm(states, hidden), layer.gate_up)
                gate, up = both.chunk(2, dim=-1)
                states = states + functional.linear(functional.silu(gate) * up, layer.down)
            self._states[:batch] = functional.rms_norm(states, hidden)
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
