"""Histograms: buckets, sums and exemplars."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.samples import Sample

from orch_sidecar.observability.exposition import END, HISTOGRAM, head
from orch_sidecar.observability.histogram import Histogram
from orch_sidecar.observability.recent import Ended
from tests.orch_sidecar.openmetrics import openmetrics
from tests.orch_sidecar.records import record_of

BUCKETS = (0.1, 1, 2.5)
HEX = "0af7651916cd43dd8448eb211c80319c"
TRACE = bytes.fromhex(HEX)


def traced(trace_id: bytes, at_ns: int) -> Ended:
    """A request with that trace; it ends at this time of the wall clock."""
    return record_of(trace_id=trace_id, arrived=5, arrived_ns=25), at_ns - 20


def samples(distribution: Histogram) -> list[Sample]:
    text = head("name", "text", HISTOGRAM, openmetrics=True)
    text += distribution.lines("name", {"pool": "a"}, exemplars=True)
    [family] = openmetrics(text.encode() + END)
    return family.samples


def buckets(distribution: Histogram) -> dict[str, float]:
    return {s.labels["le"]: s.value for s in samples(distribution) if s.name == "name_bucket"}


def value(distribution: Histogram, name: str) -> float:
    [found] = [sample.value for sample in samples(distribution) if sample.name == name]
    return found


def test_values_are_counted_up_to_and_including_the_bound() -> None:
    distribution = Histogram(BUCKETS)
    distribution.observe((0.05, 0.1, 0.100001), None)
    distribution.observe((1.0, None, 2.5, 99.0), None)
    assert buckets(distribution) == {"0.1": 2, "1.0": 4, "2.5": 5, "+Inf": 6}
    assert value(distribution, "name_count") == 6
    assert value(distribution, "name_sum") == sum((0.05, 0.1, 0.100001, 1.0, 2.5, 99.0))


def test_empty_histogram_is_zero() -> None:
    distribution = Histogram(BUCKETS)
    assert buckets(distribution) == dict.fromkeys(("0.1", "1.0", "2.5", "+Inf"), 0)
    assert value(distribution, "name_count") == value(distribution, "name_sum") == 0


def test_samples_have_the_given_labels() -> None:
    assert all(sample.labels["pool"] == "a" for sample in samples(Histogram(BUCKETS)))


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50))))
def test_buckets_grow_and_the_last_is_the_count(values: list[tuple[float, int]]) -> None:
    each, at_once = Histogram(BUCKETS), Histogram(BUCKETS)
    for number, times in values:
        at_once.observe_times(number, times)
        each.observe([number] * times, None)
    counts = list(buckets(each).values())
    assert counts == sorted(counts)
    assert counts[-1] == value(each, "name_count") == sum(times for _, times in values)
    for bound, count in zip((*BUCKETS, float("inf")), counts, strict=True):
        assert count == sum(times for number, times in values if number <= bound)
    assert buckets(at_once) == buckets(each)


def test_exemplar_is_the_largest_of_the_last_values_with_a_trace() -> None:
    distribution = Histogram(BUCKETS)
    distribution.observe((0.95, 0.5), (traced(b"4", 10**9), traced(b"5", 2 * 10**9)))
    buckets(distribution)  # which counts them
    distribution.observe(
        (0.7, 0.5, None),
        (traced(TRACE, 20_000_400_000), traced(b"1", 10**10), traced(b"3", 25 * 10**9)),
    )
    distribution.observe((0.7, 0.9), None)
    distribution.observe((7.0,), (traced(b"2", 30 * 10**9),))
    found = {
        sample.labels["le"]: (
            sample.exemplar.labels["trace_id"],
            sample.exemplar.value,
            float(str(sample.exemplar.timestamp)),
        )
        for sample in samples(distribution)
        if sample.exemplar is not None
    }
    assert found == {"1.0": (HEX, 0.7, 20.0), "+Inf": ("32", 7.0, 30.0)}


# Fewer than are counted at once.
OBSERVED = st.lists(
    st.tuples(st.none() | st.sampled_from((0.05, 0.1, 0.3, 1.0, 2.0, 9.0)), st.booleans()),
    max_size=40,
)


@given(OBSERVED)
def test_each_bucket_has_its_largest_traced_value(
    observed: list[tuple[float | None, bool]],
) -> None:
    distribution, largest = Histogram(BUCKETS), dict[str, float]()
    traces = traced(TRACE, 1), traced(b"other", 1)
    for value, is_traced in observed:
        distribution.observe((value, None), traces if is_traced else None)
        if is_traced and value is not None:
            bound = next((str(float(each)) for each in BUCKETS if value <= each), "+Inf")
            largest[bound] = max(value, largest.get(bound, 0.0))
    exemplars = [(s.labels["le"], s.exemplar) for s in samples(distribution) if s.exemplar]
    assert {bound: exemplar.value for bound, exemplar in exemplars} == largest
    assert all(exemplar.labels["trace_id"] == HEX for _, exemplar in exemplars)


def test_values_of_labels_are_escaped_and_the_bound_is_among_the_labels_in_order() -> None:
    text = Histogram((1,)).lines("name", {"pool": 'a"b\\\n', "class": "x"}, exemplars=False)
    assert text.splitlines()[0] == r'name_bucket{class="x",le="1.0",pool="a\"b\\\n"} 0'
    assert text.splitlines()[-1] == r'name_sum{class="x",pool="a\"b\\\n"} 0.0'
