"""Paging finds every trace, whatever the times of the spans and the storage backend."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orch_sidecar.tools.facts.tables.table import UnreadableFile
from orch_sidecar.tools.facts.traces.readers import Search, all_spans
from orch_sidecar.tools.facts.traces.span import Span

FIRST_US, LAST_US = 1_000, 1_400


def span(trace: int, place: int, start_ns: int, service: str = "s") -> Span:
    return Span(
        f"{trace:032x}",
        f"{place:016x}",
        None,
        "n",
        True,
        start_ns,
        start_ns,
        {},
        {"service.name": service},
    )


def traces_of(starts: list[list[int]]) -> list[list[Span]]:
    """Returns a trace per list: spans at these times (ns), and a late one of another service."""
    return [
        [*(span(trace, place, ns) for place, ns in enumerate(each)), span(trace, 99, 9**9, "other")]
        for trace, each in enumerate(starts)
    ]


def _given(found: list[list[Span]], limit: int) -> list[Span]:
    """Returns all spans of the newest traces."""
    newest = sorted(found, key=lambda trace: trace[0].start_ns, reverse=True)[:limit]
    return [span for trace in newest for span in trace]


def stored(traces: list[list[Span]], limit: int, *, ends: bool) -> Search:
    """Searches as a storage of Jaeger's does, by microseconds. `ends`: they are searched, too."""

    def search(start_us: int, end_us: int) -> list[Span]:
        first, last = (start_us, end_us) if ends else (start_us + 1, end_us - 1)

        def matches(each: Span) -> bool:
            return each.service == "s" and first <= each.start_ns // 1000 <= last

        return _given([trace for trace in traces if any(map(matches, trace))], limit)

    return search


STARTS = st.lists(
    st.lists(
        st.integers((FIRST_US - 5) * 1000, (LAST_US + 5) * 1000)
        # Many at one moment, and around the middles of halves.
        | st.sampled_from([1_000_000, 1_200_000, 1_200_999, 1_201_000, 1_400_000, 1_400_999]),
        min_size=1,
        max_size=6,
    ),
    max_size=40,
)


@pytest.mark.parametrize("ends", [True, False])
@given(starts=STARTS, limit=st.integers(1, 12))
@example(starts=[[1_200_500]], limit=1)
# Around the middle of the interval, with newer traces that the first search returns instead.
@example(starts=[[1_200_000], [1_200_999], [1_350_000], [1_380_000], [1_399_000]], limit=3)
@example(starts=[[1_201_000], [1_201_999], [1_350_000], [1_380_000], [1_399_000]], limit=3)
def test_every_trace_is_found_or_the_limit_is_reported(
    ends: bool, starts: list[list[int]], limit: int
) -> None:
    traces = traces_of(starts)
    try:
        found = all_spans(stored(traces, limit, ends=ends), FIRST_US, LAST_US, limit)
    except UnreadableFile:
        assert any(_dense(traces, moment, limit) for moment in range(FIRST_US, LAST_US + 1))
        return
    keys = [(each.trace_id, each.span_id) for each in found]
    assert len(keys) == len(set(keys))
    within = {
        (each.trace_id, each.span_id)
        for trace in traces
        if any(
            FIRST_US <= part.start_ns // 1000 <= LAST_US for part in trace if part.service == "s"
        )
        for each in trace
    }
    assert within <= set(keys)


def _dense(traces: list[list[Span]], moment_us: int, limit: int) -> bool:
    """Returns whether a search around a microsecond can reach the limit."""
    near = [
        each.trace_id
        for trace in traces
        for each in trace
        if each.service == "s" and moment_us - 1 <= each.start_ns // 1000 <= moment_us + 1
    ]
    return len(set(near)) >= limit


def test_an_interval_without_full_searches_is_searched_once() -> None:
    asked = []

    def search(start_us: int, end_us: int) -> list[Span]:
        asked.append((start_us, end_us))
        return [span(1, 1, 1_100_000)]

    assert len(all_spans(search, FIRST_US, LAST_US, 2)) == 1
    assert asked == [(FIRST_US - 1, LAST_US + 1)]
