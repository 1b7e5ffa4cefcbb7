"""The choice of a pool that has served the beginning of a prompt before."""

from __future__ import annotations

from dataclasses import replace

from orch_sidecar.api.options import RequestOptions
from orch_sidecar.pools.placement.routing import PlacementReason as By
from orch_sidecar.pools.placement.routing import PlacementRequest, place
from tests.orch_sidecar.snapshots import SINGLE
from tests.orch_sidecar.snapshots import snapshot as pool


def turn(served_by: str) -> PlacementRequest:
    return PlacementRequest("m", 1, None, RequestOptions(), served_by)


def test_pool_with_the_prefix_wins_if_it_is_nearly_as_good() -> None:
    pools = [pool("a", end_ms=1000.0), pool("b", end_ms=1090.0)]
    assert place(pools, turn("b")) == ("b", By.PREFIX)
    assert place(pools, turn("gone")) == ("a", By.PREDICTED_END)
    late = [pools[0], pool("b", end_ms=1200.0)]
    assert place(late, turn("b")) == ("a", By.PREDICTED_END)
    assert place([pools[0]], turn("b")) == ("a", By.ONLY)


def test_without_predictions_the_pool_with_the_prefix_wins_if_it_is_free() -> None:
    pools = [pool("a", room=8), pool("b", room=7)]
    assert place(pools, turn("b")) == ("b", By.PREFIX)
    full = [pools[0], pool("b", room=0)]
    assert place(full, turn("b")) == ("a", By.FREE_SLOTS)


def test_pool_with_the_prefix_gets_no_more_than_its_share_of_the_load() -> None:
    pools = [pool("a", room=8, end_ms=100.0), pool("b", room=4, end_ms=100.0)]
    assert place(pools, turn("b")) == ("a", By.FREE_SLOTS)
    assert place([pool("a", room=6, end_ms=100.0), pools[1]], turn("b")) == ("b", By.PREFIX)


def test_what_the_client_requires_is_not_traded_for_a_prefix() -> None:
    pools = [pool("a", end_ms=100.0), pool("b", end_ms=100.0, measurement_type=SINGLE)]
    asked = replace(turn("a"), options=RequestOptions(measurement_type=SINGLE))
    assert place(pools, asked) == ("b", By.MEASUREMENT_TYPE)
