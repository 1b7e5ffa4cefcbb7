"""Paging finds every trace, whatever the times of the spans and the storage backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orch_sidecar.tools.facts.traces.readers.jaeger import Search, all_spans
from orch_sidecar.tools.facts.traces.readers.spans import Malformed
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


def in_memory(traces: list[list[Span]], limit: int) -> Search:
    """Searches as Jaeger's memory storage does: nanoseconds, both ends included."""

    def search(start_us: int, end_us: int) -> list[Span]:
        def matches(each: Span) -> bool:
            return each.service == "s" and start_us * 1000 <= each.start_ns <= end_us * 1000

        return _given([trace for trace in traces if any(map(matches, trace))], limit)

    return search


def in_cassandra(traces: list[list[Span]], limit: int) -> Search:
    """As Jaeger's Cassandra storage: microseconds, neither end belongs to the interval, and three
    spans are searched for each trace that may be given."""

    def search(start_us: int, end_us: int) -> list[Span]:
        rows = [
            (each.start_ns // 1000, each.trace_id)
            for trace in traces
            for each in trace
            if each.service == "s" and start_us < each.start_ns // 1000 < end_us
        ]
        ids = {trace_id for _, trace_id in sorted(rows, reverse=True)[: 3 * limit]}
        return _given([trace for trace in traces if trace[0].trace_id in ids], limit)

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


@pytest.mark.parametrize("store", [in_memory, in_cassandra])
@given(starts=STARTS, limit=st.integers(1, 12))
@example(starts=[[1_200_500]], limit=1)
# Around the middle of the interval, with newer traces that the first search returns instead.
@example(starts=[[1_200_000], [1_200_999], [1_350_000], [1_380_000], [1_399_000]], limit=3)
@example(starts=[[1_201_000], [1_201_999], [1_350_000], [1_380_000], [1_399_000]], limit=3)
def test_every_trace_is_found_or_the_limit_is_reported(
    store: Callable[[list[list[Span]], int], Search], starts: list[list[int]], limit: int
) -> None:
    traces = traces_of(starts)
    try:
        found = all_spans(store(traces, limit), FIRST_US, LAST_US, limit, "s")
    except Malformed:
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
    return len(set(near)) >= limit or len(near) >= 3 * limit


def test_more_traces_at_one_moment_than_a_search_returns_are_an_error() -> None:
    traces = traces_of([[1_100_000] for _ in range(5)])
    with pytest.raises(Malformed, match=r"5 traces.*--limit"):
        all_spans(in_memory(traces, 5), FIRST_US, LAST_US, 5, "s")
    assert len(all_spans(in_memory(traces, 6), FIRST_US, LAST_US, 6, "s")) == 10


def test_an_interval_without_full_searches_is_searched_once() -> None:
    asked = []

    def search(start_us: int, end_us: int) -> list[Span]:
        asked.append((start_us, end_us))
        return [span(1, 1, 1_100_000)]

    assert len(all_spans(search, FIRST_US, LAST_US, 2, "s")) == 1
    assert asked == [(FIRST_US - 1, LAST_US + 1)]


def test_few_traces_of_many_spans_are_not_mistaken_for_all() -> None:
    """The limit is five traces, and three reach the number of spans that are read."""
    traces = traces_of([[1_000_000 + 1_000 * (10 * i + j) for j in range(6)] for i in range(20)])
    found = all_spans(in_cassandra(traces, 5), FIRST_US, LAST_US, 5, "s")
    assert len({each.trace_id for each in found}) == 20
