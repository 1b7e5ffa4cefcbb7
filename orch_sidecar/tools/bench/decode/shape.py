"""Computes the work and the memory traffic of a decode step from the shape of the model.

A layer is that of a Llama: attention in which `heads` query heads share `kv_heads` heads of keys
and values, and a gated MLP of 3.5 times the hidden size (Llama 3 8B: 14336 / 4096).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, takewhile
from typing import Final


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a model. `context`: tokens of each sequence in the KV cache.

    The heads divide the hidden size into multiples of 8, which kernels for attention take, and are
    a multiple of those of keys and values.
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
        hidden = count(_TOY, _TOY)
        shapes = (cls(1, each, _TOY // 8, 1, _TOY_CONTEXT) for each in hidden)
        most = FMA_PER_ITERATION * iterations
        fitting = list(takewhile(lambda shape: shape.multiply_adds <= most, shapes))
        return fitting[-1] if fitting else cls(1, _TOY, _TOY // 8, 1, _TOY_CONTEXT)

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


# The multiply-adds of an iteration of the kernel in "Throughput, Latency & Batching Policy".
FMA_PER_ITERATION: Final = 8
# Its hidden sizes are multiples of this one, with four heads.
_TOY: Final = 32
_TOY_CONTEXT: Final = 16

# Weights of 55 MB in bfloat16, more than the last-level cache that most processors have for a few
# cores, so that every step reads them from memory. Steps take 2 to 4 ms on two cores.
ON_CPU: Final = Shape(layers=2, hidden=1024, heads=16, kv_heads=4, context=256)

# Four layers of an 8B model, 1.7 GB in bfloat16: 0.5 ms of an H100's memory bandwidth, and about
# 35 times its L2 cache. With the KV cache of 16 sequences they fit in 3 GB.
ON_GPU: Final = Shape(layers=4, hidden=4096, heads=32, kv_heads=8, context=2048)
