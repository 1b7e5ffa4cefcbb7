"""A real engine whose steps take as long as on a GPU, several times slower.

What a virtual machine computes in a second differs by a quarter from one half minute to the next,
and by that the first tokens of a loaded engine differ by a factor. So the worker waits, after the
model has computed a step, until the step has taken what it takes by the curve of `virtual.H200`
times a factor. Scheduler, KV cache, server and tokens are vLLM's own. Steps that the machine is too
slow for are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

FACTOR: Final = "BENCH_PACED_FACTOR"
FILE: Final = "BENCH_PACED_FILE"
ARGUMENTS: Final = ("--worker-cls", "tests.benchmarks.idle.paced_worker.PacedWorker")


@dataclass(frozen=True, slots=True)
class Pace:
    """Where the worker learns the factor of the curve, and writes how many steps it has run, how
    many of them took longer than by the curve, and the milliseconds of each of their sequences."""

    factor: float
    file: Path

    def __post_init__(self) -> None:
        self.file.touch()

    @property
    def environ(self) -> dict[str, str]:
        """What the engine's process needs, whose arguments are ARGUMENTS."""
        root = str(Path(__file__).parents[3])
        return {FACTOR: str(self.factor), FILE: str(self.file), "PYTHONPATH": root}

    def counts(self) -> tuple[int, int, int]:
        steps, late, busy_ms = map(int, self.file.read_text().split() or (0, 0, 0))
        return steps, late, busy_ms
