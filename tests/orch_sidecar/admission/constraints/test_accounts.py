"""The accounts behind the reserve: what bulk requests are owed, what idle slots cost, delays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.constraints.reserve import (
    ACCOUNT_S,
    UNUSED_SAVED_S,
    UNUSED_SHARE,
    BulkGuarantee,
    DelayClock,
    UnusedSlotsAccount,
)
from orch_sidecar.admission.ledger import Ledger
from tests.orch_sidecar.admission.bench import Bench
from tests.orch_sidecar.admission.examples import BULK, bulk, interactive, rules

# What idle slots cost


def test_idle_account_is_in_balance_at_its_share() -> None:
    account = UnusedSlotsAccount()
    assert account.left_share == 1
    account.update(UNUSED_SHARE, 0.0)
    account.update(0.0, 1000.0)
    assert account.left_share == pytest.approx(1)


def test_idle_account_is_spent_and_saved() -> None:
    account = UnusedSlotsAccount()
    account.update(2 * UNUSED_SHARE, 0.0)
    account.update(2 * UNUSED_SHARE, UNUSED_SAVED_S / 2)
    assert account.left_share == pytest.approx(0.5)
    account.update(0.0, UNUSED_SAVED_S + 1.0)
    assert account.left_share < 0
    account.update(0.0, 1000.0)
    assert account.left_share == 1


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1)), max_size=60))
def test_idle_slots_cost_no_more_than_their_share_and_what_was_saved(
    periods: list[tuple[float, float]],
) -> None:
    """As long as spending stops when nothing is left."""
    account, now, spent = UnusedSlotsAccount(), 0.0, 0.0
    for seconds, cost in periods:
        spending = cost if account.left_share > 0 else 0.0
        account.update(spending, now)
        now += seconds
        spent += spending * seconds
        account.update(0.0, now)
    assert spent <= UNUSED_SHARE * (now + UNUSED_SAVED_S) + 5, "the last period may overdraw it"


# The guarantee


def guarantee_of(slots: int) -> tuple[Ledger, BulkGuarantee]:
    ledger = Ledger()
    ledger.slots_total = slots
    return ledger, BulkGuarantee(ledger)


def test_waiting_bulk_requests_are_owed_their_share() -> None:
    _, guarantee = guarantee_of(16)
    guarantee.update(0.1, True, True, 0.0)
    guarantee.update(0.1, True, True, 5.0)
    assert guarantee.owed == pytest.approx(8.0)


def test_nothing_is_owed_while_none_waits() -> None:
    _, guarantee = guarantee_of(16)
    for now in (0.0, 5.0):
        guarantee.update(0.1, False, True, now)
    assert guarantee.owed == 0


def test_what_bulk_requests_use_counts_whether_others_wait_or_not() -> None:
    ledger, guarantee = guarantee_of(1)
    guarantee.update(0.1, True, True, 0.0)
    ledger.grant("b", bulk(), 0.0)
    ledger.release("b", 5.0)
    guarantee.update(0.1, False, True, 5.0)
    assert guarantee.owed == -ACCOUNT_S / 20, "half of what is earned in a minute, at most"
    guarantee.update(0.1, True, True, 100.0)
    assert guarantee.reaches_at(0.0) == pytest.approx(130.0)


def test_a_debt_from_times_of_plenty_is_forgiven() -> None:
    ledger, guarantee = guarantee_of(4)
    ledger.grant("b", bulk(4), 0.0)
    guarantee.update(0.1, True, False, 1000.0)
    assert guarantee.owed == 0
    guarantee.update(0.1, True, True, 1000.5)
    assert guarantee.owed < 0


def test_neither_debt_nor_credit_outlasts_a_minute() -> None:
    ledger, guarantee = guarantee_of(10)
    guarantee.update(0.1, True, True, 0.0)
    guarantee.update(0.1, True, True, 1000.0)
    assert guarantee.owed == ACCOUNT_S
    ledger.grant("b", bulk(10), 1000.0)
    guarantee.update(0.1, True, True, 2000.0)
    assert guarantee.owed == -ACCOUNT_S / 2


def test_time_at_which_a_bulk_request_will_be_due_is_predicted() -> None:
    ledger, guarantee = guarantee_of(16)
    ledger.grant("b", bulk(), 0.0)
    guarantee.update(0.1, True, True, 0.0)
    guarantee.update(0.1, True, True, 1.0)
    assert guarantee.owed == pytest.approx(0.6)
    ledger.grant("b2", bulk(3), 1.0)
    guarantee.update(0.1, True, True, 2.0)
    assert guarantee.owed == pytest.approx(-1.8)
    assert guarantee.reaches_at(0.0) is None, "while so many run it will never be"
    ledger.release("b2", 2.0)
    guarantee.update(0.1, True, True, 2.0)
    assert guarantee.reaches_at(0.0) == pytest.approx(5.0)


def test_a_bulk_request_is_due_when_half_of_what_it_takes_is_owed() -> None:
    """Only while others claim the slots, that it waits for otherwise."""
    bench = Bench(4, rules(bulk_share=0.1))
    bench.wait(bulk())
    reserve = bench.constraints.reserve
    reserve.bulk.lent_s = 4.0
    [waiting] = bench.queues.line(BULK)
    reserve.update(0.0)
    assert not reserve.is_due(waiting, 30.0), "it waits for something else"
    bench.wait(interactive(), "i")
    reserve.update(30.0)
    assert reserve.due_at(waiting, 30.0) == pytest.approx(35.0)
    reserve.update(34.9)
    assert not reserve.is_due(waiting, 34.9)
    reserve.update(35.1)
    assert reserve.is_due(waiting, 35.1)


def test_a_long_request_does_not_have_to_save_for_more_than_half_a_minute() -> None:
    bench = Bench(1, rules(bulk_share=0.1))
    bench.wait(bulk())
    bench.wait(interactive(), "i")
    reserve = bench.constraints.reserve
    reserve.bulk.lent_s = 60.0
    [waiting] = bench.queues.line(BULK)
    reserve.update(0.0)
    assert reserve.due_at(waiting, 0.0) == pytest.approx(30.0)


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
    assert clock.reaches_at(1.0) == 14.0
    clock.set_share(1.0, 14.0)
    assert clock.value(16.0) == 3


def test_a_delay_that_is_reached_was_reached() -> None:
    clock = DelayClock()
    clock.set_share(1.0, 10.0)
    clock.set_share(0.0, 15.0)
    assert clock.reaches_at(5.0) == 15.0
    assert clock.reaches_at(5.1) is None


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), max_size=20))
def test_it_never_goes_back_nor_faster_than_time(turns: list[tuple[float, float]]) -> None:
    clock, now, before = DelayClock(), 0.0, 0.0
    for passed_s, taken in turns:
        now += passed_s
        value = clock.value(now)
        assert before - 1e-9 <= value <= before + passed_s + 1e-9
        clock.set_share(taken, now)
        assert clock.value(now) == pytest.approx(value)
        before = value


def test_a_restart_of_the_engine_owes_bulk_nothing() -> None:
    ledger = Ledger()
    ledger.slots_total = 10
    guarantee = BulkGuarantee(ledger)
    ledger.grant("b", bulk(cost=2), 0.0)
    for now in (0.0, 50.0):
        guarantee.update(0.1, True, True, now)
    before = guarantee.owed
    assert before < 0
    ledger.begin_epoch("e2")
    guarantee.update(0.1, True, True, 50.0)
    assert guarantee.owed == before
