"""A progress bar with its estimated end, where somebody is looking."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self


class Progress:
    """How much of a run is over, on standard error; nothing where that is no terminal."""

    def __init__(self, title: str, requests: int, seconds: float) -> None:
        """The run ends when at least so many requests were answered and so much time is over."""
        self._requests = requests
        self._seconds = seconds
        self._ended = 0
        self._bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            form = "{desc} {percentage:3.0f}% |{bar}| {elapsed} (ETA {remaining}){postfix}"
            self._bar = tqdm(total=1.0, desc=title, bar_format=form, leave=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def ended(self, now_s: float) -> None:
        """One more request has ended, `now_s` seconds after the start."""
        self._ended += 1
        if self._bar is None:
            return
        share = self._ended / self._requests
        if self._seconds > 0:
            share = min(share, now_s / self._seconds)
        self._bar.set_postfix_str(f"{self._ended} requests", refresh=False)
        self._bar.update(min(1.0, share) - self._bar.n)
