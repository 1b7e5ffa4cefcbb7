"""Adds the exchange of tokens between ranks to vLLM's CPU build, as a plugin of vLLM.

In front of its experts a rank gathers the tokens of all ranks, and behind them it gets the sums for
its own. vLLM implements both (`all_gatherv`, `reduce_scatterv`) for GPUs only: on CPUs a step of
several ranks raises NotImplementedError. Here gloo does it. Everything else is vLLM's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_METADATA = "Metadata-Version: 2.1\nName: cpu-ranks\nVersion: 1\n"
_ENTRY_POINT = f"[vllm.general_plugins]\ncpu_ranks = {__name__}:register\n"


def install(directory: Path) -> None:
    """Writes the metadata by which vLLM finds the plugin, for a directory of PYTHONPATH."""
    metadata = directory / "cpu_ranks-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(_METADATA, encoding="utf-8")
    (metadata / "entry_points.txt").write_text(_ENTRY_POINT, encoding="utf-8")


def register() -> None:
    """Runs in each of vLLM's processes."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    CpuCommunicator.all_gatherv = _all_gatherv
    CpuCommunicator.reduce_scatterv = _reduce_scatterv


def _all_gatherv(self: Any, given: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """Concatenates the rows of all ranks, in their order. `sizes`: rows by rank; None: as here."""
    assert dim == 0
    if isinstance(given, list):
        return [_all_gatherv(self, each, dim, sizes) for each in given]
    import torch

    rows = sizes or [given.shape[0]] * self.world_size
    # gloo gathers parts of one shape.
    own = given.new_zeros((max(rows), *given.shape[1:]))
    own[: given.shape[0]] = given
    parts = [torch.empty_like(own) for _ in rows]
    torch.distributed.all_gather(parts, own, group=self.device_group)
    return torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)])


def _reduce_scatterv(self: Any, given: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
    """Sums the tensors of all ranks, and returns the rows of this one."""
    assert dim == 0
    import torch

    rows = sizes or [given.shape[0] // self.world_size] * self.world_size
    total = given.clone()
    torch.distributed.all_reduce(total, group=self.device_group)
    first = sum(rows[: self.rank_in_group])
    return total[first : first + rows[self.rank_in_group]]
