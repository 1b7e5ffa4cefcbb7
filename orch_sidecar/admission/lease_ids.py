"""Generates the ids of tickets and leases: `<instance>.<random>.<cost>`."""

from __future__ import annotations

import os
from typing import Final

_BLOCK_BYTES: Final = 4096


class LeaseIds:
    """Ids that nobody can guess. `instance` distinguishes them from those of other sidecars, or of
    an earlier run."""

    def __init__(self) -> None:
        self.instance = os.urandom(8).hex()
        self._random: list[str] = []  # each is used once

    def new(self, cost: int) -> str:
        """Returns a new id for `cost` sequences."""
        if not self._random:
            block = os.urandom(_BLOCK_BYTES).hex()  # one system call for many ids
            self._random = [block[at : at + 32] for at in range(0, len(block), 32)]
        return f"{self.instance}.{self._random.pop()}.{cost}"
