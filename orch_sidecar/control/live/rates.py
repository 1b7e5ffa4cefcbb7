"""Tokens per second of an engine, from the counts that it reports each second.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

# Rates are means over this time, so that a step of seconds does not make them jump.
_WINDOW_S: Final = 5.0
_MAX_SAMPLES: Final = 32


class _Counts(NamedTuple):
    """The engine's counts since its start, as of `at`."""

    at: float
    tokens: int
    prompt_tokens: int


class TokenRates:
    """The token counts of one engine over the last seconds."""

    def __init__(self) -> None:
        self._counts: deque[_Counts] = deque(maxlen=_MAX_SAMPLES)
        self._epoch: object = None

    def add(self, document: Mapping[str, Any], at: float) -> None:
        """Adds a report. Another epoch starts from nothing."""
        if document.get("epoch") != self._epoch:
            self._epoch = document.get("epoch")
            self._counts.clear()
        prompt_tokens = (document.get("prefill") or {}).get("tokens", 0)
        tokens = document.get("generated_tokens_total", 0)
        self._counts.append(_Counts(at, tokens, prompt_tokens))

    def document(self) -> dict[str, float | None]:
        """Returns generated and prompt tokens per second; None until two reports are known."""
        counts = self._counts
        if len(counts) < 2:
            return {"tokens_per_s": None, "prompt_tokens_per_s": None}
        last = counts[-1]
        since = next(each for each in counts if last.at - each.at <= _WINDOW_S)
        if since is last:
            since = counts[-2]
        seconds = last.at - since.at
        return {
            "tokens_per_s": round((last.tokens - since.tokens) / seconds, 1),
            "prompt_tokens_per_s": round((last.prompt_tokens - since.prompt_tokens) / seconds, 1),
        }
