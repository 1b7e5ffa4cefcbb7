"""Remembers what an engine did in the last minutes, from the counts that it reports each second.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from orch_sidecar.engine_state import report

# Reports that are kept: a quarter of an hour, which is longer than nearly all requests take.
_MAX_SAMPLES: Final = 900
# Rates are means over this time, so that a step of seconds does not make them jump.
_RATE_WINDOW_S: Final = 5.0


class _Counts(NamedTuple):
    """The engine's counts since its start, as of `at`."""

    at: float
    steps: int
    sequences: int
    tokens: int
    prompt_tokens: int


class StepHistory:
    """The decode steps and the tokens of one engine over time."""

    def __init__(self) -> None:
        self._counts: deque[_Counts] = deque(maxlen=_MAX_SAMPLES)
        self._epoch: object = None

    @property
    def known_until(self) -> float:
        """The time of the last report; minus infinity before the first."""
        return self._counts[-1].at if self._counts else float("-inf")

    def add(self, document: Mapping[str, Any], at: float) -> None:
        """Adds a report. Another epoch starts from nothing."""
        if document.get("epoch") != self._epoch:
            self._epoch = document.get("epoch")
            self._counts.clear()
        decoded = report.decode_steps_of(document) or []
        self._counts.append(
            _Counts(
                at,
                sum(steps for _, steps, _ in decoded),
                sum(batch * count for batch, count, _ in decoded),
                document.get("generated_tokens_total", 0),
                (document.get("prefill") or {}).get("tokens", 0),
            )
        )

    def token_rates(self) -> dict[str, float | None]:
        """Returns recent generated and prompt tokens per second; None until two reports are
        known."""
        counts = self._counts
        if len(counts) < 2:
            return {"tokens_per_s": None, "prompt_tokens_per_s": None}
        last = counts[-1]
        since = next(each for each in counts if last.at - each.at <= _RATE_WINDOW_S)
        if since is last:
            since = counts[-2]
        seconds = last.at - since.at
        return {
            "tokens_per_s": round((last.tokens - since.tokens) / seconds, 1),
            "prompt_tokens_per_s": round((last.prompt_tokens - since.prompt_tokens) / seconds, 1),
        }

    def mean_batch(self, start: float, end: float) -> float | None:
        """Returns the mean batch of the decode steps between two times, interpolated between the
        reports; None where it is not known, or there were none."""
        if not self._counts or start < self._counts[0].at or end > self._counts[-1].at:
            return None
        steps_0, sequences_0 = self._at(start)
        steps_1, sequences_1 = self._at(end)
        steps = steps_1 - steps_0
        return round((sequences_1 - sequences_0) / steps, 1) if steps > 0 else None

    def _at(self, at: float) -> tuple[float, float]:
        """Returns the steps and sequences at a time within the reports."""
        before = after = self._counts[0]
        for after in self._counts:
            if after.at >= at:
                break
            before = after
        width = after.at - before.at
        part = (at - before.at) / width if width > 0 else 0.0
        return (
            before.steps + part * (after.steps - before.steps),
            before.sequences + part * (after.sequences - before.sequences),
        )
