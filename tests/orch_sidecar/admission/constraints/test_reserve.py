"""The reserve of interactive requests, and by how much their traffic delays bulk ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.constraints.reserve import DelayClock
from orch_sidecar.admission.types import BlockedBy
from tests.orch_sidecar.admission.bench import Bench
from tests.orch_sidecar.admission.examples import bulk, interactive, rules


def test_reserve_is_lent_while_there_is_no_interactive_traffic() -> None:
    bench = Bench(8, rules(reserved_share=0.5))
    bench.grant(bulk(7))
    assert bench.blocked_by(bulk()) is None


def test_reserve_is_kept_as_far_as_it_is_used_and_one_more() -> None:
    bench = Bench(8, rules(reserved_share=0.5))
    run = bench.grant(interactive(2), 0.0)
    bench.grant(bulk(4), 0.0)
    assert bench.blocked_by(bulk(), 0.0) is None
    assert bench.blocked_by(bulk(2), 0.0) is BlockedBy.RESERVE
    assert bench.blocked_by(bulk(2), 0.0, aged=True) is BlockedBy.RESERVE, "however long it waits"
    assert bench.blocked_by(interactive(2), 0.0) is None
    bench.release(run, 1.0)
    assert bench.blocked_by(bulk(3), 1.0) is None
    assert bench.blocked_by(bulk(4), 1.0) is BlockedBy.RESERVE, "one for the next to come"


def test_more_of_a_large_reserve_is_kept_free() -> None:
    bench = Bench(64, rules(reserved_share=0.25))
    bench.grant(interactive(2))
    bench.grant(bulk(56))
    assert bench.blocked_by(bulk(3)) is None
    assert bench.blocked_by(bulk(4)) is BlockedBy.RESERVE


def test_reserve_is_not_kept_from_a_delayed_request_that_is_too_large_for_the_rest() -> None:
    bench = Bench(8, rules(reserved_share=0.5))
    run = bench.grant(interactive())
    bench.grant(bulk(), 1.0)
    assert bench.blocked_by(bulk(7), 1.0) is BlockedBy.SLOT
    bench.release(run, 1.0)
    assert bench.blocked_by(bulk(7), 1.0) is BlockedBy.RESERVE
    assert bench.blocked_by(bulk(7), 1.0, aged=True) is BlockedBy.RESERVE, (
        "beside it there is room for seven"
    )
    bench.wait(interactive(2))
    assert bench.blocked_by(bulk(7), 1.0, aged=True) is None
    assert bench.blocked_by(bulk(5), 1.0, aged=True) is BlockedBy.RESERVE, "the other one will end"


def test_reserve_is_never_more_than_its_share() -> None:
    bench = Bench(16, rules(reserved_share=0.25))
    bench.grant(interactive(6))
    bench.grant(bulk(9))
    assert bench.blocked_by(bulk()) is None


def test_interactive_requests_use_their_reserve_themselves() -> None:
    bench = Bench(8, rules(reserved_share=0.25))
    bench.grant(interactive(2))
    bench.grant(bulk(5))
    assert bench.blocked_by(bulk()) is None


def test_claim_ends_ten_seconds_after_the_last_interactive_request() -> None:
    bench = Bench(8, rules(reserved_share=0.5))
    bench.release(bench.grant(interactive(4), 0.0), 1.0)
    bench.grant(bulk(7), 2.0)
    assert bench.blocked_by(bulk(), 5.9) is BlockedBy.RESERVE
    assert bench.blocked_by(bulk(), 11.0) is None


def test_queued_requests_claim_the_reserve_too() -> None:
    bench = Bench(8, rules(reserved_share=0.5))
    bench.grant(bulk(5))
    bench.wait(interactive(2))
    bench.constraints.arrived(interactive(1), 0.0)
    assert bench.blocked_by(bulk()) is BlockedBy.RESERVE


def share(bench: Bench, now: float = 0.0) -> float:
    """How fast the delay clock runs."""
    bench.constraints.update_delay(now)
    return bench.constraints.reserve.clock.value(now + 1.0) - bench.constraints.reserve.clock.value(
        now
    )


def test_without_bulk_requests_there_is_no_delay() -> None:
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
    assert bench.blocked_by(bulk(prompt_tokens=100)) is BlockedBy.PREFILL
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
    assert bench.blocked_by(bulk(4)) is BlockedBy.BATCH
    assert share(bench) == 1
    bench.release(run, 1.0)
    assert share(bench, now=20.0) == 0


def test_a_request_too_large_for_any_batch_is_not_delayed_by_its_own_class() -> None:
    bench = Bench(8)
    bench.limit(interactive=4, bulk=4, mixed=4)
    bench.grant(bulk(4))
    bench.wait(bulk(8))
    assert share(bench) == 0


# The delay clock


def test_it_stands_still_while_nothing_is_taken() -> None:
    clock = DelayClock()
    clock.set_share(0.0, 10.0)
    assert clock.value(1000.0) == 0
    assert clock.reaches_at(1.0) is None


def test_it_runs_at_the_share_that_is_taken() -> None:
    clock = DelayClock()
    clock.set_share(0.25, 10.0)
    assert clock.value(14.0) == 1
    clock.set_share(1.0, 14.0)
    assert clock.value(16.0) == 3


def test_time_at_which_a_delay_is_reached_is_predicted() -> None:
    clock = DelayClock()
    clock.set_share(0.25, 10.0)
    assert clock.reaches_at(1.0) == 14.0
    clock.set_share(0.5, 12.0)
    assert clock.reaches_at(1.0) == 13.0


def test_a_delay_that_is_reached_was_reached() -> None:
    clock = DelayClock()
    clock.set_share(1.0, 10.0)
    clock.set_share(0.0, 15.0)
    assert clock.reaches_at(5.0) == 15.0
    assert clock.reaches_at(5.1) is None


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    clock = DelayClock()
    clock.set_share(1.0, 10.0)
    assert clock.value(9.0) == 0
    clock.set_share(1.0, 9.0)
    assert clock.value(10.0) == 1


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), max_size=20))
def test_it_never_goes_back_nor_faster_than_time(turns: list[tuple[float, float]]) -> None:
    clock, now, before = DelayClock(), 0.0, 0.0
    for passed_s, share in turns:
        now += passed_s
        value = clock.value(now)
        assert before - 1e-9 <= value <= before + passed_s + 1e-9
        clock.set_share(share, now)
        assert clock.value(now) == pytest.approx(value)
        before = value
