"""Describes the KV cache of an engine, for the engine and its sidecars alike: blocks by group of
layers.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class KvGroup:
    """`count` equal groups of layers, in each of which a sequence of L tokens takes

        min(ceil(L / block_tokens), blocks_most) + blocks_extra

    blocks. During prefill `blocks_reading` replaces `blocks_most`, if all tokens of a step belong
    to one prompt. None: no such bound.
    """

    block_tokens: int
    blocks_most: int | None = None
    blocks_reading: int | None = None
    blocks_extra: int = 0
    count: int = 1

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """Reads an entry of `kv_groups` in the engine's state."""
        return cls(**{name: entry[name] for name in cls.__slots__ if name in entry})


@dataclass(frozen=True, slots=True)
class KvCache:
    """A pool of blocks that all groups of layers share; without groups their use is unknown.

    `blocks_kept`: that must be free beside the prompt of a sequence that starts while others run
    (vLLM's --watermark).
    """

    blocks_total: int = 0
    groups: tuple[KvGroup, ...] = ()
    blocks_kept: int = 0

    @property
    def block_tokens(self) -> int:
        """The tokens of a block where each sequence has one block for so many, and no others; 0:
        it is more complicated than that."""
        if len(self.groups) != 1:
            return 0
        size = self.groups[0].block_tokens
        return size if self.groups[0] == KvGroup(size) else 0

    def blocks_of(self, tokens: float, *, reading: bool = False) -> int:
        """Returns the blocks of a sequence of this many tokens, after the prefill of its prompt.

        `reading`: the most that it takes during the prefill.
        """
        total = 0
        for group in self.groups:
            most = group.blocks_most
            if reading and group.blocks_reading is not None:
                most = group.blocks_reading
            blocks = ceil(tokens / group.block_tokens)
            if most is not None and blocks > most:
                blocks = most
            total += group.count * (blocks + group.blocks_extra)
        return total

    def swing(self, tokens: float) -> int:
        """Returns the blocks that a sequence of this many tokens frees and takes again, as the
        start of its sliding window moves from one block to the next."""
        return sum(
            group.count
            for group in self.groups
            if group.blocks_most is not None
            and 1 < group.blocks_most <= ceil(tokens / group.block_tokens)
        )

    @property
    def reading_most(self) -> int:
        """The most blocks that all prompts of a step take during prefill, beyond those that they
        keep: they share the tokens of the step."""
        return sum(
            group.count * (group.blocks_reading - group.blocks_most)
            for group in self.groups
            if group.blocks_reading is not None and group.blocks_most is not None
        )

    def document(self, ctx_max: int) -> dict[str, Any]:
        """Returns its part of the engine's state; `kv_tokens_total`: for sequences of `ctx_max`."""
        longest = self.blocks_of(ctx_max)
        counted = (
            asdict(replace(each, count=n * each.count)) for each, n in Counter(self.groups).items()
        )
        return {
            "kv_tokens_total": self.blocks_total * ctx_max // longest if longest else 0,
            "kv_blocks_total": self.blocks_total,
            "kv_groups": [{k: v for k, v in each.items() if v} for each in counted],
        } | ({"kv_blocks_kept": self.blocks_kept} if self.blocks_kept else {})
