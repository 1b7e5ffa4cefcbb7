"""Keeps the records of the requests that ended last, for the page and the terminal view.

Pure. A ring of fixed size: a record costs its place in it, and is forgotten by those that follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from orch_sidecar.observability.record import RequestRecord

# Enough for quantiles, and for a table; less than a megabyte.
MAX_REQUESTS: Final = 512

# A record, and when it ended: nanoseconds of the monotonic clock.
Ended = tuple[RequestRecord, int]


class RecentRequests:
    """The requests that ended last, numbered from 1 in the order of their ends."""

    def __init__(self, most: int = MAX_REQUESTS) -> None:
        self._ended: deque[Ended] = deque(maxlen=most)
        self.total = 0

    def add(self, ended: Sequence[Ended]) -> None:
        """Adds the records that ended since the last call."""
        self._ended.extend(ended)
        self.total += len(ended)

    def all(self) -> list[Ended]:
        """Returns those that are kept, the newest at the end: its number is `total`."""
        return list(self._ended)
