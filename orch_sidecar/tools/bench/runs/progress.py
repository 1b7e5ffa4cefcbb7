"""A progress bar with the estimated time left."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self, TextIO


class Progress:
    """The progress bar of a run; silent if the stream is not a terminal."""

    def __init__(
        self, title: str, requests: int, seconds: float, stream: TextIO | None = None
    ) -> None:
        """`requests`, `seconds`: a run ends when both are reached. `stream`: default stderr."""
        self._requests = requests
        self._seconds = seconds
        self._ended = 0
        self._bar = None
        out = sys.stderr if stream is None else stream
        if not out.isatty():
            return
        try:
            from tqdm import tqdm
        except ImportError:
            print(f"{title} (for a progress bar: pip install tqdm)", file=out)
            return
        form = "{desc} {percentage:3.0f}% |{bar}| {elapsed} (ETA {remaining}){postfix}"
        self._bar = tqdm(total=1.0, desc=title, bar_format=form, miniters=0, leave=False, file=out)

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
        """Counts a request that ended `now_s` seconds after the start."""
        self._ended += 1
        if self._bar is None:
            return
        self._bar.set_postfix_str(f"{self._ended} requests", refresh=False)
        self._bar.update(self.share(now_s) - self._bar.n)

    def share(self, now_s: float) -> float:
        """Returns the completed share of the run, from 0 to 1."""
        share = self._ended / self._requests
        if self._seconds > 0:
            share = min(share, now_s / self._seconds)
        return min(1.0, share)
