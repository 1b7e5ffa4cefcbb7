"""What a decode step has to compute and to read, from the shape of the model.

Pure. A layer is that of a Llama: attention in which `heads` query heads share `kv_heads` heads
of keys and values, and a gated MLP of 3.5 times the hidden size (Llama 3 8B: 14336 / 4096).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Query heads to a head of keys and values where nothing is said, as in Llama 3 8B.
GROUP: Final = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """A model for decoding. `context`: tokens that each sequence has in the KV cache.

    Raises ValueError for sizes below 1, and heads that do not divide what they share.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    context: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: must be at least 1")
        # The MLP needs an even size, and kernels for attention take heads of a multiple of 8.
        if self.hidden % (8 * self.heads):
            raise ValueError(
                f"hidden {self.hidden}: must be a multiple of 8 * heads, {8 * self.heads}"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads}: must be a multiple of kv-heads {self.kv_heads}")

    @property
    def head(self) -> int:
        """Size of a head."""
        return self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        """Size of a token's keys, and of its values, in a layer."""
        return self.kv_heads * self.head

    @property
    def mlp(self) -> int:
        return self.hidden * 7 // 2

    @property
    def weights(self) -> int:
        """Parameters of all layers; each is read once in a step, whatever the batch."""
        attention = self.hidden * (2 * self.hidden + 2 * self.kv_width)
        return self.layers * (attention + 3 * self.hidden * self.mlp)

    @property
    def kv_values(self) -> int:
        """Numbers in the KV cache of one sequence; each is read once in a step."""
        return self.layers * 2 * self.context * self.kv_width

    @property
    def multiply_adds(self) -> int:
        """Per sequence and step: one for each weight, and two for each query head and token."""
        return self.weights + self.layers * 2 * self.context * self.hidden


# Weights of 55 MB in bfloat16, which is more than the last-level cache that most processors have
# for a few cores: they come from memory in every step. Steps take 2 to 4 ms on two cores.
ON_CPU: Final = Shape(layers=2, hidden=1024, heads=16, kv_heads=4, context=256)

# Four layers of an 8B model, 1.7 GB in bfloat16: 0.5 ms of an H100's memory bandwidth, and some
# 35 times its L2 cache. With the KV cache of 16 sequences they fit in 3 GB.
ON_GPU: Final = Shape(layers=4, hidden=4096, heads=32, kv_heads=8, context=2048)
