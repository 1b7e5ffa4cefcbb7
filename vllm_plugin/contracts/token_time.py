"""Measures the time per token of real traffic, against the fit of decode-only steps.

The fit is what a step takes while the engine only decodes. Real traffic takes longer: steps also
compute prompts, contexts are long, the machine is shared. How much longer is a factor on the fit,
and it is what bounds a batch by an SLO of the time per token.

A user sees the mean of many steps and not a single one, so steps are measured in runs of
RUN_STEPS. The factor is exceeded by 5 % of the tokens of the last WINDOW_S. Pure: times are
arguments, in seconds of one clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappushpop
from typing import Any, Final, NamedTuple

# A slower engine must be noticed within 10 s, and be forgotten as fast when it has recovered.
WINDOW_S: Final = 10.0
# The tokens of a short sentence; and no longer than a reader's patience, where steps are slow.
RUN_STEPS: Final = 16
RUN_S: Final = 0.5
PERCENTILE: Final = 0.95
# Steps with a batch at least as large make it one that the engine has been seen with.
STEPS_TO_SEE: Final = 5


class _Run(NamedTuple):
    """Consecutive steps in which sequences decoded."""

    ended_s: float
    steps: int
    sequences: int  # summed over the steps: the tokens
    seconds: float
    prompt_s: float  # of these, on prompts


@dataclass(frozen=True, slots=True)
class Traffic:
    """`factor`: p95 of the time per token over the fit at the same batch, 1 at least.
    `prompt_share`: of that time, the share that went to prompts."""

    factor: float = 1.0
    prompt_share: float = 0.0

    def document(self) -> dict[str, Any]:
        """Returns the members of `step_time` in `/v1/capabilities`."""
        return {"traffic": round(self.factor, 3), "prompt_share": round(self.prompt_share, 3)}


class TokenTimes:
    """The runs of the last WINDOW_S, and the largest batch that the engine was seen with."""

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque()
        self._steps = self._sequences = 0
        self._seconds = self._prompt_s = 0.0
        self._largest = [0] * STEPS_TO_SEE  # a heap of the largest batches of all steps

    @property
    def batch_seen(self) -> int:
        """The largest batch of which there were STEPS_TO_SEE steps, or larger ones."""
        return self._largest[0]

    def record(
        self, at_s: float, elapsed_s: float, batch: int, decoding: int, prompt_s: float
    ) -> None:
        """Adds a step of `batch` sequences, of which `decoding` received a token; it spent
        `prompt_s` on prompts. O(1)."""
        if batch > self._largest[0]:
            heappushpop(self._largest, batch)
        if not decoding:
            return
        self._steps += 1
        self._sequences += decoding
        self._seconds += elapsed_s
        self._prompt_s += min(prompt_s, elapsed_s)
        if self._steps >= RUN_STEPS or self._seconds >= RUN_S:
            run = _Run(at_s, self._steps, self._sequences, self._seconds, self._prompt_s)
            self._runs.append(run)
            self._steps = self._sequences = 0
            self._seconds = self._prompt_s = 0.0
            self._forget(at_s)

    def traffic(self, seconds_of: Callable[[float], float], now_s: float) -> Traffic:
        """Compares the recent runs with the fit, `seconds_of` a batch."""
        self._forget(now_s)
        ratios = []
        for run in self._runs:
            expected_s = seconds_of(run.sequences / run.steps)
            if expected_s > 0:
                ratios.append((run.seconds / run.steps / expected_s, run.sequences))
        if not ratios:
            return Traffic()
        ratios.sort()
        beyond = (1 - PERCENTILE) * sum(tokens for _, tokens in ratios)
        while (beyond := beyond - ratios[-1][1]) >= 0:
            ratios.pop()
        seconds = sum(run.seconds for run in self._runs)
        prompt_s = sum(run.prompt_s for run in self._runs)
        return Traffic(max(1.0, ratios[-1][0]), prompt_s / seconds)

    def _forget(self, now_s: float) -> None:
        while self._runs and now_s - self._runs[0].ended_s > WINDOW_S:
            self._runs.popleft()
