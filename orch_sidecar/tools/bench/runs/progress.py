"""How much of a run is over: the share of its requests, and of its time."""

from __future__ import annotations

from typing import TextIO

from orch_sidecar.tools.terminal import Progress


class RunProgress(Progress):
    """The progress of a run, which ends when `requests` have ended and `seconds` are over."""

    def __init__(
        self, title: str, requests: int, seconds: float, stream: TextIO | None = None
    ) -> None:
        """`stream`: default stderr."""
        super().__init__(title, stream)
        self._requests = requests
        self._seconds = seconds
        self._ended = 0

    def ended(self, now_s: float) -> None:
        """Counts a request that ended `now_s` seconds after the start."""
        self._ended += 1
        self.detail = f"{self._ended} requests"
        self.share = self.share_at(now_s)

    def share_at(self, now_s: float) -> float:
        """Returns the completed share of the run, from 0 to 1."""
        share = self._ended / self._requests
        if self._seconds > 0:
            share = min(share, now_s / self._seconds)
        return min(1.0, share)
