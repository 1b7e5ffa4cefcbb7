"""The schedule: small cases by hand, what always holds, and what the window costs."""

from __future__ import annotations

from itertools import accumulate, islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.bench.decode.schedule import Outcome, RunStep, TimedStep, run_schedule
from orch_sidecar.tools.bench.load.scenario import gamma
from orch_sidecar.tools.bench.results.sweep import Curve
from orch_sidecar.tools.facts.labels.figures import percentile


def poisson_ms(rate_per_s: float, count: int, seed: int) -> list[float]:
    return [1000 * at_s for at_s in islice(gamma(rate_per_s, 1.0, seed), count)]


def computed(curve: Curve) -> RunStep:
    return lambda batch: TimedStep(batch, curve.at(batch))


TEN_MS = computed(Curve(10.0, 0.0, 1.0))


def ttft_ms(outcome: Outcome) -> list[float]:
    return [1000 * each.ttft_s for each in outcome.requests if each.ttft_s is not None]


def admitted_ms(outcome: Outcome) -> list[float]:
    """When each request joined its first step."""
    found: dict[int, float] = {}
    for step in outcome.steps:
        for request in step.requests:
            found.setdefault(request, step.start_ms)
    return [found[request] for request in sorted(found)]


def served_of(outcome: Outcome) -> dict[float, str]:
    """The requests of each step by its start."""
    return {step.start_ms: "".join(map(str, step.requests)) for step in outcome.steps}


@pytest.mark.parametrize(
    ("what", "arrivals_ms", "tokens", "bmax", "window_ms", "served"),
    [
        ("a lone request waits", [100], 3, 4, 6, {106: "0", 116: "0", 126: "0"}),
        ("those in a window start together", [100, 104, 106], 1, 4, 6, {106: "012"}),
        ("a full batch does not wait", [100, 104, 105], 1, 2, 6, {104: "01", 114: "2"}),
        ("windows open with an arrival", [0, 1], 1, 1, 6, {0: "0", 10: "1"}),
        ("and so does the last", [0, 1, 7], 1, 2, 6, {1: "01", 13: "2"}),
        ("steps are topped up at once", [0, 3, 11], 2, 4, 2, {2: "0", 12: "012", 22: "12"}),
        ("first come, first run", [0, 0, 1, 2], 2, 2, 0, {0: "01", 10: "01", 20: "23", 30: "23"}),
        ("no window, no wait", [5, 40], 1, 4, 0, {5: "0", 40: "1"}),
        ("no requests, no steps", [], 1, 1, 6, {}),
    ],
)  # fmt: skip
def test_steps_start_when_they_must_and_serve_whom_they_must(
    what: str, arrivals_ms: list[float], tokens: int, bmax: int, window_ms: float,
    served: dict[float, str],
) -> None:  # fmt: skip
    outcome = run_schedule(arrivals_ms, tokens, bmax, window_ms, TEN_MS)
    assert served_of(outcome) == served
    for index, request in enumerate(outcome.requests):
        ends_ms = [start_ms + 10 for start_ms, those in served.items() if str(index) in those]
        times_s = (request.first_token_s, request.ended_s)
        assert times_s == pytest.approx((ends_ms[0] / 1000, ends_ms[-1] / 1000))


def test_each_step_is_run_once_in_order() -> None:
    asked: list[int] = []

    def run_step(batch: int) -> TimedStep:
        asked.append(batch)
        return TimedStep(batch, len(asked))

    outcome = run_schedule([0.0, 0.0, 2.5], 2, 3, 0.0, run_step)
    assert asked == [2, 2, 1, 1]
    assert [step.ms for step in outcome.steps] == [1, 2, 3, 4]
    assert [step.start_ms for step in outcome.steps] == [0, 1, 3, 6]


@given(
    gaps=st.lists(st.floats(0, 50), min_size=1, max_size=30),
    tokens=st.integers(1, 6),
    bmax=st.integers(1, 5),
    window_ms=st.floats(0, 20),
    t0=st.floats(0.1, 10),
    c=st.floats(0, 5),
)
def test_what_always_holds(
    gaps: list[float], tokens: int, bmax: int, window_ms: float, t0: float, c: float
) -> None:
    arrivals = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    curve = Curve(t0, c, 1.0)
    outcome = run_schedule(arrivals, tokens, bmax, window_ms, computed(curve))
    made = [0] * len(arrivals)
    for step in outcome.steps:
        assert 1 <= step.batch <= bmax
        assert len(set(step.requests)) == step.batch
        assert step.ms == curve.at(len(step.requests))
        for index in step.requests:
            made[index] += 1
    assert made == [tokens] * len(arrivals)
    admitted = admitted_ms(outcome)
    assert [request.arrived_s for request in outcome.requests] == [at / 1000 for at in arrivals]
    for arrived, joined, request in zip(arrivals, admitted, outcome.requests, strict=True):
        assert request.first_token_s is not None
        assert arrived <= joined
        assert joined / 1000 < request.first_token_s <= request.ended_s
    assert admitted == sorted(admitted)
    assert_works_while_there_is_work(arrivals, outcome, bmax, window_ms)


def assert_works_while_there_is_work(
    arrivals: list[float], outcome: Outcome, bmax: int, window_ms: float
) -> None:
    """No step leaves a place to nobody while one waits; none is late but for the window."""
    admitted = admitted_ms(outcome)
    for step in outcome.steps:
        both = zip(arrivals, admitted, strict=True)
        waiting = [joined for arrived, joined in both if arrived <= step.start_ms < joined]
        assert not waiting or step.batch == bmax
    ends = [0.0, *(step.start_ms + step.ms for step in outcome.steps)]
    for end, step in zip(ends, outcome.steps, strict=False):
        assert step.start_ms >= end
        first = min(step.requests)
        if admitted[first] < step.start_ms:  # it was being decoded before
            assert step.start_ms == end
        else:
            assert step.start_ms <= max(end, arrivals[first] + window_ms)


# 0.9 ms at b = 4 and 1.9 ms at b = 16, as measured in "Throughput, Latency & Batching Policy".
MEASURED = computed(Curve(0.567, 0.0833, 1.0))


@pytest.mark.parametrize("seed", range(5))
def test_window_of_2_ms_instead_of_6_takes_15_percent_off_the_p95_of_ttft(seed: int) -> None:
    arrivals = poisson_ms(80.0, 200, seed)
    long, short = (
        percentile(ttft_ms(outcome), 95)
        for outcome in (run_schedule(arrivals, 32, 16, ms, MEASURED) for ms in (6.0, 2.0))
    )
    assert long is not None
    assert short is not None
    assert short <= 0.85 * long


@pytest.mark.parametrize(("window_ms", "p95_ms"), [(6.0, 4.47), (2.0, 2.73)])
def test_reference_has_the_figures_of_the_papers_program(window_ms: float, p95_ms: float) -> None:
    random = Random(123)
    arrivals = list(accumulate(1000 * random.expovariate(80.0) for _ in range(200)))
    outcome = run_schedule(arrivals, 32, 16, window_ms, MEASURED, reference=True)
    times = sorted(ttft_ms(outcome))
    assert times[int(0.95 * (len(times) - 1))] == pytest.approx(p95_ms, abs=0.005)  # its percentile


def test_reference_idles_for_a_quarter_of_the_window_before_each_step() -> None:
    outcome = run_schedule([100.0, 107.0, 109.5], 2, 4, 6.0, TEN_MS, reference=True)
    # The window is open for all of its time; between steps 1.5 ms pass, in which nothing runs.
    assert served_of(outcome) == {106.0: "0", 117.5: "012", 129.0: "12"}


def test_larger_bmax_serves_more_tokens_a_second_of_device_time() -> None:
    arrivals = poisson_ms(400.0, 200, 1)
    rates = []
    for bmax in (1, 2, 4, 8, 16):
        steps = run_schedule(arrivals, 32, bmax, 6.0, MEASURED).steps
        rates.append(sum(step.batch for step in steps) / sum(step.ms for step in steps))
    assert rates == sorted(rates)
    assert rates[-1] > 2 * rates[0]
