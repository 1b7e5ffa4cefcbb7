"""Maps a trace's parent span to the number of the HTTP request that carried it.

vLLM makes a span for each sequence that has finished, a child of the span that `traceparent`
names. Only that connects it to the HTTP request in which the sequence came.

Pure.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final

# A span ends before its response does, and so before the request leaves. Only a response in the
# background (`/v1/responses`) outlives its request, by at most as many requests as this.
MAX_LEFT_REQUESTS: Final = 4096

# W3C Trace Context, as OpenTelemetry's propagator reads it: lower case, further fields allowed.
_TRACEPARENT: Final = re.compile(r"[ \t]*[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

Parent = tuple[int, int]  # trace id, span id


def parse_traceparent(header: str) -> Parent | None:
    """Returns the parent span that a `traceparent` names; None without a valid one."""
    match = _TRACEPARENT.match(header)
    return None if match is None else (int(match.group(1), 16), int(match.group(2), 16))


class RequestNumbers:
    """The numbers of the requests in the engine, and of the last ones that left. O(1) each.

    Where several requests in the engine carry the same parent, none of their spans can be told
    from another: their number is unknown. One after another, the last one's number applies.
    """

    def __init__(self, left_kept: int = MAX_LEFT_REQUESTS) -> None:
        self._left_kept = left_kept
        self._parents: dict[int, Parent] = {}  # of the requests in the engine, by their number
        self._numbers: dict[Parent, int | None] = {}
        self._present: dict[Parent, int] = {}  # requests in the engine
        self._left: OrderedDict[Parent, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._numbers)

    def enter(self, number: int, traceparent: str | None) -> None:
        """Adds a request with this header."""
        parent = parse_traceparent(traceparent) if traceparent else None
        if parent is None:
            return
        present = self._present.get(parent, 0)
        self._parents[number] = parent
        self._present[parent] = present + 1
        self._numbers[parent] = None if present else number
        self._left.pop(parent, None)

    def leave(self, number: int) -> None:
        """Removes a request that has left the engine. Its number stays known for a
        while."""
        parent = self._parents.pop(number, None)
        if parent is None:
            return
        present = self._present.pop(parent) - 1
        if present:
            self._present[parent] = present
            return
        self._left[parent] = None
        if len(self._left) > self._left_kept:
            oldest, _ = self._left.popitem(last=False)
            del self._numbers[oldest]

    def of(self, parent: Parent) -> int | None:
        """Returns the number of the request with this parent; None if it is unknown."""
        return self._numbers.get(parent)
