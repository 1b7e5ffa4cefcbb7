"""Counts values in a histogram with exemplars: they are appended, and counted many at once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final, cast

from orch_sidecar.observability.exposition import escaped, number
from orch_sidecar.observability.recent import Ended

# The id of a sampled trace, and when its value was observed: nanoseconds of the wall clock.
Traced = tuple[bytes, int]

# Of values that are observed together, what ended then; None: none of their traces is sampled.
Traces = Sequence[Ended] | None

# Values that wait to be counted. More would save little, and there are thousands of histograms.
_MAX_VALUES: Final = 64

_BOUND: Final = "le"  # the label of a bucket's bound


class Histogram:
    """Counts by bucket, each with an exemplar: of its values of sampled traces that were counted
    last, the largest."""

    __slots__ = (
        "_buckets", "_counts", "_exemplars", "_sum", "_traced_values", "_traces", "_values",
    )  # fmt: skip

    def __init__(self, buckets: tuple[float, ...]) -> None:
        """`buckets`: their upper bounds, ascending; a last one without bound is added."""
        # Comparing numbers of one type takes a third of the time.
        self._buckets = tuple(map(float, buckets))
        self._counts = [0] * (len(buckets) + 1)
        self._exemplars: dict[int, tuple[float, Traced]] = {}
        self._sum = 0.0
        self._values: list[float] = []  # not counted yet
        # Those of sampled traces, and the trace of each.
        self._traced_values: list[float] = []
        self._traces: list[Ended] = []

    def observe(self, values: Sequence[float | None], traced: Traces) -> None:
        """Adds values; None is none. `traced`: the trace of each."""
        missing = values.count(None)
        if missing == len(values):
            return
        if missing and traced is not None:
            pairs = zip(values, traced, strict=True)
            traced = [trace for value, trace in pairs if value is not None]
        observed = [value for value in values if value is not None] if missing else values
        self._values += cast(Sequence[float], observed)
        if traced is not None:
            self._traced_values += cast(Sequence[float], observed)
            self._traces += traced
        if len(self._values) >= _MAX_VALUES:
            self._count()

    def observe_times(self, value: float, times: int) -> None:
        """Adds the same value `times` times."""
        self._counts[bisect_left(self._buckets, value)] += times
        self._sum += value * times

    def lines(self, name: str, labels: Mapping[str, str], *, exemplars: bool) -> str:
        """Returns its samples, in the text format of a family of that name."""
        self._count()
        pairs = [(label, f'{label}="{escaped(labels[label])}"') for label in sorted(labels)]
        before = "".join(f"{pair}," for label, pair in pairs if label < _BOUND)
        after = "".join(f",{pair}" for label, pair in pairs if label > _BOUND)
        begin, end = f'{name}_bucket{{{before}{_BOUND}="', f'"{after}}} '
        text, total = "", 0
        for at, (bound, count) in enumerate(zip(_texts(self._buckets), self._counts, strict=True)):
            total += count
            exemplar = self._exemplar(at) if exemplars else ""
            text += f"{begin}{bound}{end}{total}{exemplar}\n"
        inside = ",".join(pair for _, pair in pairs)
        return (
            f"{text}{name}_count{{{inside}}} {total}\n{name}_sum{{{inside}}} {number(self._sum)}\n"
        )

    def _count(self) -> None:
        """Counts the values that were observed since the last time."""
        self._sum += sum(self._values)
        divided = self._divided(self._values)
        for at, count, _ in divided:
            self._counts[at] += count
        if self._traces:
            if len(self._traced_values) < len(self._values):
                divided = self._divided(self._traced_values)
            for at, _, largest in divided:
                record, now = self._traces[self._traced_values.index(largest)]
                self._exemplars[at] = (largest, (record.trace_id, record.at_ns(now)))
            self._traced_values.clear()
            self._traces.clear()
        self._values.clear()

    def _divided(self, values: Iterable[float]) -> list[tuple[int, int, float]]:
        """Divides values among buckets. Returns each bucket that has some, with their number and
        the largest of them."""
        ordered, buckets, begin = sorted(values), self._buckets, 0
        divided = []
        while begin < len(ordered):
            at, end = bisect_left(buckets, ordered[begin]), len(ordered)
            if at < len(buckets):
                end = bisect_right(ordered, buckets[at], begin)
            divided.append((at, end - begin, ordered[end - 1]))
            begin = end
        return divided

    def _exemplar(self, at: int) -> str:
        found = self._exemplars.get(at)
        if found is None:
            return ""
        value, (trace_id, at_ns) = found
        return f' # {{trace_id="{trace_id.hex()}"}} {number(value)} {round(at_ns / 1e9, 3)}'


@cache
def _texts(buckets: tuple[float, ...]) -> tuple[str, ...]:
    """Returns the bounds of buckets; there are a handful of sets of them."""
    return (*map(number, buckets), "+Inf")
