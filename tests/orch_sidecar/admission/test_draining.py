"""Whose drain of a pool applies when several ordered one."""

from __future__ import annotations

from itertools import permutations

import pytest

from orch_sidecar.admission.draining import Drain, OrderedBy, after_restart, stronger

ENGINE_STOP = Drain(OrderedBy.ENGINE_STOP, 1.0)
OPERATOR = Drain(OrderedBy.OPERATOR, 2.0)
SHUTDOWN = Drain(OrderedBy.SHUTDOWN, 3.0)


@pytest.mark.parametrize("orders", list(permutations([ENGINE_STOP, OPERATOR, SHUTDOWN])))
def test_strongest_order_stands_whenever_it_came(orders: list[Drain]) -> None:
    drain = None
    for order in orders:
        drain = stronger(drain, order)
    assert drain is SHUTDOWN
    assert stronger(stronger(None, OPERATOR), ENGINE_STOP) is OPERATOR


def test_order_that_is_repeated_keeps_the_time_of_the_first() -> None:
    assert stronger(OPERATOR, Drain(OrderedBy.OPERATOR, 9.0)) is OPERATOR


def test_only_the_stop_of_an_engine_ends_with_it() -> None:
    drains = (None, ENGINE_STOP, OPERATOR, SHUTDOWN)
    assert [after_restart(drain) for drain in drains] == [None, None, OPERATOR, SHUTDOWN]
