"""Learns how much longer requests take than the measured step time predicts.

Pure. Contexts are long and machines shared. Mean times are compared, not ratios: a short request
waits for a step to begin, which is much of its time, and by its ratio long ones would be predicted
to take longer than they do.
"""

from __future__ import annotations

from typing import Final

LEARNING_RATE: Final = 0.1
# How far requests may deviate from what is predicted of them, and all of them together.
MAX_FACTOR, MIN_FACTOR = 10.0, 0.1


class Slowness:
    """`factor`: what requests of late took, over what was predicted of them."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._took_s = self._predicted_s = 0.0  # means

    def learn(self, took_s: float, predicted_s: float) -> None:
        """A request took `took_s` of which `predicted_s` (above 0) were predicted, without the
        factor."""
        expected_s = predicted_s * self.factor
        took_s = min(max(took_s, MIN_FACTOR * expected_s), MAX_FACTOR * expected_s)
        if not self._predicted_s:  # one request alone changes little
            self._took_s = self._predicted_s = predicted_s
        self._took_s += LEARNING_RATE * (took_s - self._took_s)
        self._predicted_s += LEARNING_RATE * (predicted_s - self._predicted_s)
        self.factor = min(max(self._took_s / self._predicted_s, MIN_FACTOR), MAX_FACTOR)
