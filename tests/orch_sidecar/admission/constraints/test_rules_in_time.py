"""What is scarce for a while: windows, and the delay of bulk requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch_sidecar.admission.constraints.rules import BlockedBy
from orch_sidecar.admission.types import AdmissionRequest, EngineReport
from tests.orch_sidecar.admission.bench import Bench
from tests.orch_sidecar.admission.examples import (
    STEP_TIME,
    bulk,
    class_rules,
    interactive,
    rules,
)
from vllm_plugin.profile import Bounds

# The window.


def bench_at(per_second: float, until: float = 2.0, window_ms: int = 50) -> Bench:
    """An idle engine to which bulk requests have come at that rate."""
    window = Bounds(least=window_ms, most=window_ms)
    bench = Bench(8, rules(bulk=class_rules(queue_capacity=64), window_ms=window))
    for number in range(int(until * per_second)):
        bench.scarce.arrived(bulk(), (number + 1) / per_second)
    return bench


def test_window_opens_if_another_request_is_expected_within_it() -> None:
    assert bench_at(per_second=25.0).scarce.opens_window(bulk(), 2.0)
    assert not bench_at(per_second=16.0).scarce.opens_window(bulk(), 2.0)


def test_window_opens_for_bulk_only() -> None:
    assert not bench_at(per_second=100.0).scarce.opens_window(interactive(), 2.0)


def test_window_opens_only_while_the_engine_is_idle() -> None:
    leased, foreign = bench_at(per_second=100.0), bench_at(per_second=100.0)
    leased.grant(interactive(), 2.0)
    foreign.ledger.foreign = 1
    assert not leased.scarce.opens_window(bulk(), 2.0)
    assert not foreign.scarce.opens_window(bulk(), 2.0)


@pytest.mark.parametrize(
    ("ends_at", "held_s"),
    [(2.01, 0.01), (2.05, 0.05), (9.0, 0.05)],  # the last: who opened it had left
)
def test_windows_and_the_time_for_which_they_hold_are_counted(
    ends_at: float, held_s: float
) -> None:
    bench = bench_at(per_second=100.0)
    assert (bench.scarce.windows, bench.scarce.windows_s) == (0, 0.0)
    bench.scarce.opens_window(bulk(), 2.0)
    bench.grant(interactive(), ends_at)
    assert bench.scarce.windows == 1
    assert bench.scarce.windows_s == pytest.approx(held_s)
    bench.grant(bulk(), ends_at)
    assert bench.scarce.windows_s == pytest.approx(held_s)


def test_window_that_is_ended_or_followed_by_another_is_counted_once() -> None:
    bench = bench_at(per_second=100.0)
    bench.scarce.opens_window(bulk(), 2.0)
    assert bench.scarce.ends_window(bulk(may_queue=False), 2.02)
    bench.scarce.opens_window(bulk(), 2.1)
    bench.scarce.opens_window(bulk(), 2.2)  # who opened the last one had left
    bench.grant(bulk(), 2.23)
    assert bench.scarce.windows == 3
    assert bench.scarce.windows_s == pytest.approx(0.02 + 0.05 + 0.03)


def test_window_is_of_no_use_to_one_that_fills_it() -> None:
    assert not bench_at(per_second=100.0).scarce.opens_window(bulk(8), 2.0)


@pytest.mark.parametrize(
    "ask", [bulk(may_queue=False), bulk(max_wait_ms=50.0), bulk(deadline_ms=50.0)]
)
def test_a_request_that_may_not_wait_neither_opens_nor_bears_a_window(
    ask: AdmissionRequest,
) -> None:
    bench = bench_at(per_second=100.0)
    assert not bench.scarce.opens_window(ask, 2.0)
    assert bench.scarce.opens_window(bulk(max_wait_ms=51.0, deadline_ms=51.0), 2.0)
    assert not bench.scarce.ends_window(bulk(), 2.0)
    assert bench.hold(bulk(), 2.0) is BlockedBy.WINDOW
    assert bench.scarce.ends_window(ask, 1.99)
    assert bench.hold(bulk(), 2.0) is None


@pytest.mark.parametrize("promise", [bulk(deadline_ms=160.0), bulk()])
def test_a_request_whose_first_token_would_come_too_late_bears_no_window(
    promise: AdmissionRequest,
) -> None:
    """A prompt of 100 ms and a step of 11 ms leave less than the window of 50 ms."""
    bench = bench_at(per_second=100.0)
    if promise.deadline_ms is None:
        of_class = bench.scarce.rules.bulk.model_copy(update={"ttft_p95_ms": 160.0})
        bench.scarce.rules = rules(bulk=of_class)
    assert bench.scarce.opens_window(replace(promise, prompt_tokens=100), 2.0), "nothing is known"
    bench.outlook.step_time, bench.outlook.prefill_tokens_per_s = STEP_TIME, 1000.0
    assert not bench.scarce.ends_window(replace(promise, prompt_tokens=50), 2.0)
    assert bench.scarce.ends_window(replace(promise, prompt_tokens=100), 2.0)
    assert not bench.scarce.opens_window(replace(promise, prompt_tokens=100), 2.0)
    assert bench.scarce.opens_window(replace(promise, prompt_tokens=50), 2.0)


def test_window_closes_in_time_or_when_it_is_full() -> None:
    bench = bench_at(per_second=100.0)
    bench.scarce.opens_window(bulk(), 2.0)
    bench.wait(bulk())
    assert bench.scarce.eases_at(BlockedBy.WINDOW, 2.0) == 2.05
    assert bench.hold(bulk(), 2.049) is BlockedBy.WINDOW
    assert bench.hold(bulk(), 2.05) is None
    bench.wait(bulk(7), "more")
    assert bench.hold(bulk(), 2.0) is None


def test_window_ends_with_whoever_goes() -> None:
    bench = bench_at(per_second=100.0)
    bench.scarce.opens_window(bulk(), 2.0)
    assert bench.hold(interactive(), 2.0) is None
    bench.release(bench.grant(interactive(), 2.0), 2.01)
    assert bench.hold(bulk(), 2.01) is None


# The delay of bulk requests.


def share(bench: Bench, now: float = 0.0) -> float:
    """How fast the delay clock runs."""
    bench.scarce.turn_clock(now)
    return bench.scarce.clock.value(now + 1.0) - bench.scarce.clock.value(now)


def test_without_bulk_requests_nobody_is_delayed() -> None:
    bench = Bench(4)
    bench.grant(interactive(4))
    assert share(bench) == 0


@pytest.mark.parametrize(("taken", "expected"), [(0, 0.0), (1, 0.25), (3, 0.75), (4, 1.0)])
def test_delay_grows_at_the_share_of_slots_that_interactive_requests_take(
    taken: int, expected: float
) -> None:
    bench = Bench(4)
    if taken:
        bench.grant(interactive(taken))
    bench.wait(bulk(4))
    assert share(bench) == pytest.approx(expected)


def test_waiting_for_other_bulk_requests_is_no_delay() -> None:
    bench = Bench(4)
    bench.grant(bulk(4))
    bench.wait(bulk())
    assert share(bench) == 0


def test_what_interactive_requests_take_of_their_reserve_is_no_delay() -> None:
    bench = Bench(8, rules(reserved_share=0.5))
    bench.grant(interactive(2))
    bench.wait(bulk())
    assert share(bench) == 0
    bench.grant(interactive(4))
    assert share(bench) == pytest.approx(0.5), "two of the four that are not reserved"


def test_the_smaller_batch_beside_interactive_requests_is_no_delay_but_what_they_take_of_it() -> (
    None
):
    batch = Bench(8)
    batch.limit(interactive=4, bulk=8, mixed=4)
    batch.wait(bulk())
    run = batch.grant(interactive())
    assert share(batch) == pytest.approx(0.25)
    batch.release(run, 1.0)
    assert share(batch, now=1.0) == 0


def test_waiting_for_prompts_is_no_delay_of_its_own() -> None:
    bench = Bench(8, rules(reserved_share=0.25))
    bench.grant(interactive())
    bench.grant(bulk(prompt_tokens=100))
    bench.wait(bulk(prompt_tokens=100))
    assert bench.hold(bulk(prompt_tokens=100)) is BlockedBy.PREFILL
    assert share(bench) == 0


def test_a_request_too_large_for_what_the_reserve_leaves_is_delayed_altogether() -> None:
    bench = Bench(8, rules(reserved_share=0.25))
    bench.grant(interactive())
    bench.wait(bulk(7))
    bench.wait(bulk(), "behind")
    assert share(bench) == 1
    bench.queues.remove("waiting")
    assert share(bench) == 0, "what is next fits beside it"


def test_a_request_too_large_for_the_smaller_batch_is_delayed_altogether() -> None:
    """Else the one interactive request, which is within its share, would keep it out for ever."""
    bench = Bench(8, rules(reserved_share=0.25))
    bench.limit(interactive=4, bulk=8, mixed=4)
    bench.wait(bulk(4))
    assert share(bench) == 0
    run = bench.grant(interactive())
    assert bench.hold(bulk(4)) is BlockedBy.BATCH
    assert share(bench) == 1
    bench.release(run, 1.0)
    assert share(bench, now=20.0) == 0


def test_a_request_too_large_for_any_batch_is_not_delayed_by_its_own_class() -> None:
    bench = Bench(8)
    bench.limit(interactive=4, bulk=4, mixed=4)
    bench.grant(bulk(4))
    bench.wait(bulk(8))
    assert share(bench) == 0


# When it may ease of itself.


@pytest.mark.parametrize("hold", [BlockedBy.KV, BlockedBy.RESERVE, BlockedBy.BATCH])
def test_what_comes_back_slowly_is_looked_at_now_and_then(hold: BlockedBy) -> None:
    assert Bench(4).scarce.eases_at(hold, 10.0) == 10.25


def test_slots_come_free_when_somebody_says_so() -> None:
    assert Bench(4).scarce.eases_at(BlockedBy.SLOT, 10.0) is None


def test_prompts_are_looked_at_when_they_will_have_been_read() -> None:
    bench = Bench(4)
    bench.grant(bulk(prompt_tokens=600))
    bench.wait(bulk(prompt_tokens=0))
    assert bench.scarce.eases_at(BlockedBy.PREFILL, 0.0) == 0.25, "of unknown speed"
    bench.scarce.reported(EngineReport("e", 4, prefill_tokens_per_s=1000.0), 0.0)
    assert bench.scarce.eases_at(BlockedBy.PREFILL, 0.0) == pytest.approx(0.1)
