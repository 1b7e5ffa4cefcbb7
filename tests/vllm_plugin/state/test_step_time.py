"""The fit of step times: its accuracy with noisy steps, and its quality with few of them."""

from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import examples
from vllm_plugin.state import step_time
from vllm_plugin.state.step_time import Curve, StepSamples, StepTime, fit_curve

Constants = tuple[float, float, float]  # t0 and c in ms, alpha

MODEST: Constants = (3.1, 0.4, 0.8)
CURVES: list[Constants] = [
    MODEST,
    (5.0, 0.5, 0.9),
    (2.0, 2.0, 0.7),
    (10.0, 1.0, 1.0),
    (20.0, 5.0, 0.8),
]


def true_ms(curve: Constants, batch: float) -> float:
    t0, c, alpha = curve
    return float(t0 + c * batch**alpha)


class Machine:
    """A shared machine: steps have 10 % noise, and 2 % of them take 10 to 100 times as long."""

    def __init__(self, curve: Constants, seed: int, slots: int = 64) -> None:
        self.curve = curve
        self.random = random.Random(seed)
        self.samples = StepSamples(slots)
        self.slower = 1.0

    def step(self, batch: int) -> None:
        seconds = true_ms(self.curve, batch) / 1000 * self.slower
        seconds *= math.exp(self.random.gauss(0, 0.1))
        if self.random.random() < 0.02:
            seconds *= self.random.uniform(10, 100)
        self.samples.record(batch, seconds)

    def run(self, steps: int, largest: int) -> None:
        for _ in range(steps):
            self.step(self.random.randint(1, largest))

    def fit(self) -> StepTime:
        found = self.samples.fit()
        assert found is not None
        return found

    def largest_error(self, found: StepTime, largest: int) -> float:
        """Returns the largest relative deviation of the fit from the truth."""
        return max(
            abs(found.seconds(batch) * 1000 / (true_ms(self.curve, batch) * self.slower) - 1)
            for batch in range(1, largest + 1)
        )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("largest", [32, 64])
@pytest.mark.parametrize("curve", CURVES)
def test_known_constants_are_recovered_from_noisy_steps(
    curve: Constants, largest: int, seed: int
) -> None:
    machine = Machine(curve, seed)
    machine.run(6000, largest)
    found = machine.fit()
    assert machine.largest_error(found, largest) < 0.03
    document = found.document()
    for name, true in zip(("t0_ms", "c_ms", "alpha"), curve, strict=True):
        assert document[name] == pytest.approx(true, rel=0.10)
    assert (document["batches"], document["largest"], document["quality"]) == (
        largest,
        largest,
        "good",
    )
    assert document["error"] < 0.03
    assert document["samples"] > 4000


def test_compilation_of_many_seconds_does_not_distort_the_fit() -> None:
    machine = Machine(MODEST, 1)
    for batch in range(1, 33):
        machine.samples.record(batch, 20.0)  # each size once, when it is first seen
    machine.run(1000, 32)
    assert machine.largest_error(machine.fit(), 32) < 0.05


def test_fit_is_unknown_before_a_size_has_enough_samples() -> None:
    samples = StepSamples(8)
    assert samples.fit() is None
    for batch in (1, 2, 3, 4) * (step_time.MIN_SAMPLES_PER_SIZE - 1):
        samples.record(batch, 0.01)
    assert samples.fit() is None


def test_steps_without_duration_or_sequences_are_ignored() -> None:
    samples = StepSamples(8)
    samples.record(0, 0.01)
    samples.record(4, 0.0)
    samples.record(4, -0.1)
    assert not samples.fresh


def test_one_size_is_a_constant_and_poor() -> None:
    machine = Machine(MODEST, 2)
    for _ in range(500):
        machine.step(4)
    found = machine.fit()
    assert found.curve.c_s == 0.0
    assert found.seconds(4) * 1000 == pytest.approx(true_ms(MODEST, 4), rel=0.03)
    assert (found.batches, found.largest, found.good) == (1, 4, False)


def test_one_size_is_good_for_an_engine_of_one_slot() -> None:
    machine = Machine(MODEST, 3, slots=1)
    for _ in range(step_time.GOOD_SAMPLES - 1):
        machine.step(1)
    assert not machine.fit().good, "too few steps"
    machine.step(1)
    found = machine.fit()
    assert found.good
    assert found.document()["t0_ms"] == pytest.approx(3.5, rel=0.05)
    assert (found.document()["c_ms"], found.document()["alpha"]) == (0.0, 1.0)


@pytest.mark.parametrize(("slots", "good"), [(2, True), (64, False)])
def test_two_sizes_give_a_line(slots: int, good: bool) -> None:
    machine = Machine(MODEST, 4, slots=slots)
    machine.run(500, 2)
    found = machine.fit()
    assert found.curve.alpha == 1.0
    assert machine.largest_error(found, 2) < 0.03
    assert found.good is good


def test_line_through_close_sizes_overestimates_the_times_beyond_them() -> None:
    """Where alpha is unknown, other sizes must be predicted too slow rather than too fast."""
    machine = Machine((2.0, 2.0, 0.7), 5)
    for _ in range(4000):
        machine.step(machine.random.randint(20, 40))
    found = machine.fit()
    assert found.curve.alpha == 1.0
    assert found.good
    for batch in (1, 4, 8, 64, 128):
        assert found.seconds(batch) * 1000 > 0.98 * true_ms(machine.curve, batch)


def test_few_steps_are_poor() -> None:
    machine = Machine(MODEST, 6)
    for batch in (1, 2, 4, 8) * 6:
        machine.step(batch)
    found = machine.fit()
    assert (found.samples, found.batches, found.good) == (24, 4, False)


def test_times_that_do_not_follow_the_curve_are_poor() -> None:
    samples = StepSamples(64)
    for _ in range(50):
        for batch, seconds in ((1, 0.1), (2, 0.01), (4, 0.2), (8, 0.02), (16, 0.3)):
            samples.record(batch, seconds)
    found = samples.fit()
    assert found is not None
    assert found.error > step_time.GOOD_ERROR
    assert not found.good


def test_the_curve_follows_a_change_of_speed_within_a_block_of_steps() -> None:
    """At all sizes, although only steps of one size have run since."""
    machine = Machine(MODEST, 7)
    machine.run(3000, 32)
    machine.fit()
    for slower in (5.0, 1.0, 0.5):
        machine.slower = slower
        for _ in range(2 * step_time.BLOCK_STEPS):
            machine.step(8)
        found = machine.fit()
        assert machine.largest_error(found, 32) < 0.10
        assert found.good


def test_the_curve_follows_a_speed_that_drifts_while_batches_come_and_go() -> None:
    machine = Machine(MODEST, 8)
    batch = 1
    for index in range(12_000):
        machine.slower = math.exp(0.8 * math.sin(index / 1500))  # over a factor of 5
        batch = min(32, max(1, batch + machine.random.choice((-1, 0, 1))))
        machine.step(batch)
        if index % 100 == 99:
            found = machine.fit()
            if index > 3000:  # every size was seen, in fast times and in slow ones
                assert machine.largest_error(found, 32) < 0.2
                here = found.seconds(batch) * 1000 / (true_ms(MODEST, batch) * machine.slower)
                assert here == pytest.approx(1.0, abs=0.12)


def test_the_curve_does_not_drift_with_the_number_of_fits() -> None:
    """Of a batch of two, every third step was slow: the median is no measure of its mean."""
    samples = StepSamples(8)
    for step in range(2 * step_time.BLOCK_STEPS):
        samples.record(2, 0.025 if step % 3 == 0 else 0.010)
    found = []
    for _ in range(40):
        for _ in range(16):
            samples.record(1, 0.009)
        fitted = samples.fit()
        assert fitted is not None
        found.append(fitted.seconds(2))
    assert found[0] == pytest.approx(0.0124, rel=0.05)
    assert found[-1] == pytest.approx(found[0], rel=0.05)


def test_hours_at_one_size_do_not_erase_the_others() -> None:
    machine = Machine(MODEST, 9)
    machine.run(3000, 32)
    for index in range(50_000):
        machine.step(8)
        if index % 200 == 0:
            machine.samples.fit()
    found = machine.fit()
    assert machine.largest_error(found, 32) < 0.06
    assert found.batches == 32


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 512), st.floats(1e-4, 60)), min_size=1, max_size=400),
    st.integers(1, 512),
)
def test_any_steps_give_a_finite_monotonic_fit(steps: list[tuple[int, float]], slots: int) -> None:
    samples = StepSamples(slots)
    for batch, seconds in steps:
        for _ in range(3):
            samples.record(batch, seconds)
    found = samples.fit()
    if found is None:
        return
    assert 0 < found.curve.alpha <= 1
    assert found.curve.t0_s >= 0
    assert found.curve.c_s >= 0
    predicted = [found.seconds(batch) for batch in (0, 1, 2, 3, 8, 64, 512, 4096)]
    assert predicted == sorted(predicted)
    assert predicted[1] > 0
    assert math.isfinite(found.error)


def test_memory_is_bounded_with_and_without_fits() -> None:
    for fits in (True, False):
        machine = Machine(MODEST, 10)
        for index in range(40_000):
            machine.step(1 + index % 300)
            if fits and index % 1000 == 999:
                machine.samples.fit()
        blocks = machine.samples._blocks
        assert len(blocks) <= 2 * step_time.BLOCKS
        assert max(map(len, blocks)) <= step_time.BLOCK_STEPS
        machine.samples.fit()
        assert len(blocks) <= step_time.BLOCKS
        assert len(machine.samples._means) <= 300


def test_fit_of_all_samples_takes_milliseconds() -> None:
    """About 2 of CPU; the limit allows for a machine that is slow and busy."""
    machine = Machine(MODEST, 11, slots=256)
    machine.run(10_000, 256)
    took = []
    for _ in range(9):
        machine.run(100, 256)
        began = time.thread_time()
        machine.fit()
        took.append(time.thread_time() - began)
    assert min(took) < 0.020


def test_new_samples_since_the_last_fit_are_flagged() -> None:
    samples = StepSamples(8)
    assert not samples.fresh
    samples.record(1, 0.01)
    assert samples.fresh
    samples.fit()
    assert not samples.fresh


@pytest.mark.parametrize(
    "true",
    [Curve(3.1, 0.4, 0.8), Curve(0.0, 2.0, 0.5), Curve(7.0, 0.1, 1.0), Curve(1.0, 1.0, 0.1)],
)
def test_exact_points_recover_the_curve(true: Curve) -> None:
    sizes = (1, 2, 4, 8, 16)
    found = fit_curve({b: true.seconds(b) for b in sizes}, dict.fromkeys(sizes, 10))
    assert found.t0_s == pytest.approx(true.t0_s, abs=0.03)
    assert found.c_s == pytest.approx(true.c_s, abs=0.03)
    assert found.alpha == pytest.approx(true.alpha, abs=0.01)


def test_two_points_give_a_line() -> None:
    found = fit_curve({2: 3.0, 4: 4.0}, {2: 1, 4: 100}, alpha=1.0)
    assert found.t0_s == pytest.approx(2.0)
    assert found.c_s == pytest.approx(0.5)


def test_times_that_fall_with_the_batch_give_a_constant() -> None:
    found = fit_curve({1: 4.0, 8: 2.0}, {1: 1, 8: 1}, alpha=1.0)
    assert found.c_s == 0.0
    assert 2.0 <= found.t0_s <= 4.0


def test_times_that_grow_faster_than_the_batch_give_no_fixed_part() -> None:
    found = fit_curve({1: 1.0, 8: 64.0}, {1: 1, 8: 1}, alpha=1.0)
    assert found.t0_s == 0.0
    assert found.c_s > 1.0


def test_points_with_larger_weights_dominate() -> None:
    found = fit_curve({1: 1.0, 2: 9.0, 3: 1.0}, {1: 100, 2: 1, 3: 100}, alpha=1.0)
    assert found.seconds(2) == pytest.approx(1.0, rel=0.1)


def test_many_sizes_are_merged_into_few_points() -> None:
    sizes = range(1, 4097)
    points = step_time._points(dict.fromkeys(sizes, 1.0), dict.fromkeys(sizes, 1))
    assert len(points) <= 120
    assert sum(point.weight for point in points) == 4096
    assert points[0].log_b == 0.0


def test_empty_batch_takes_the_fixed_part() -> None:
    assert Curve(2.0, 1.0, 0.5).seconds(0) == 2.0
