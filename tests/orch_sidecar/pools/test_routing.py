"""The choice of a pool, and the refusals of requests that no pool can take."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.api.options import RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.routing import PlacementReason as By
from orch_sidecar.pools.routing import (
    PlacementRequest,
    PoolSnapshot,
    first_available,
    place,
)
from tests.orch_sidecar.snapshots import BATCHED, SINGLE
from tests.orch_sidecar.snapshots import snapshot as pool

DOWN = Refusal(Reason.ENGINE_DOWN, "it is down")


def never_reported(name: str) -> PoolSnapshot:
    return pool(name, models=None, slots_total=0, ctx_max=None, unavailable=DOWN)


def request(
    model: str = "m", cost: int = 1, tokens: int | None = None, **options: Any
) -> PlacementRequest:
    return PlacementRequest(model, cost, tokens, RequestOptions(**options))


def refused(
    pools: list[PoolSnapshot], asked: PlacementRequest, tried: tuple[str, ...] = ()
) -> Refusal:
    found = place(pools, asked, tried)
    assert isinstance(found, Refusal), found
    return found


# The model.


def test_model_decides_before_anything_else() -> None:
    pools = [pool("a", models={"x"}), pool("b", models={"m", "y"}), pool("c", models={"z"})]
    assert place(pools, request()) == ("b", By.ONLY)
    assert place(pools, request("z", pool="b", prefers=True)) == ("c", By.ONLY)


def test_model_that_no_pool_has_is_not_found_and_the_others_are_named() -> None:
    found = refused([pool("a", models={"x"}), pool("b", models={"y", "m"})], request("nope"))
    assert found.reason is Reason.NOT_FOUND
    assert found.param == "model"
    assert "'nope'" in found.message
    assert "m, x, y" in found.message


def test_refusal_names_a_handful_of_models() -> None:
    models = {f"adapter-{number:03}" for number in range(300)}
    found = refused([pool("a", models=models), pool("b")], request("nope"))
    assert found.message.endswith("adapter-018, adapter-019 and 281 more")


def test_single_pool_is_asked_for_any_model_so_that_its_engine_answers() -> None:
    assert place([pool("a")], request("nope")) == ("a", By.ONLY)


def test_pool_that_has_never_reported_may_have_the_model() -> None:
    found = refused([pool("a", models={"x"}), never_reported("b")], request())
    assert found is DOWN


# What the client requires.


def test_pinned_pool_is_the_pool_however_busy() -> None:
    pools = [pool("a"), pool("b", room=0, queue_depth=99, end_ms=1e6)]
    assert place(pools, request(pool="b")) == ("b", By.PINNED)


def test_pinned_pool_that_is_down_answers_itself() -> None:
    assert refused([pool("a"), pool("b", unavailable=DOWN)], request(pool="b")) is DOWN


@pytest.mark.parametrize(("name", "text"), [("c", "there is no pool 'c'"), ("b", "model 'm'")])
def test_pin_that_no_pool_can_meet_is_infeasible(name: str, text: str) -> None:
    found = refused([pool("a"), pool("b", models={"x"})], request(pool=name))
    assert found.reason is Reason.INFEASIBLE
    assert text in found.message


def test_preferred_pool_wins_if_it_is_available_and_is_ignored_if_not() -> None:
    busy = pool("b", room=0, queue_depth=9)
    assert place([pool("a"), busy], request(pool="b", prefers=True)) == ("b", By.PREFERRED)
    down = pool("b", unavailable=DOWN)
    assert place([pool("a"), down], request(pool="b", prefers=True)) == ("a", By.ONLY)
    assert place([pool("a")], request(pool="zzz", prefers=True)) == ("a", By.ONLY)


def test_measurement_type_is_binding() -> None:
    pools = [pool("a"), pool("b", measurement_type=SINGLE, room=0, queue_depth=50)]
    asked = request(measurement_type=SINGLE)
    assert place(pools, asked) == ("b", By.MEASUREMENT_TYPE)
    assert refused([pools[0], pools[1]._replace(unavailable=DOWN)], asked) is DOWN
    assert refused(pools, asked, tried=("b",)).reason is Reason.NO_POOL


def test_measurement_type_that_no_pool_has_is_infeasible() -> None:
    for pools in ([pool("a")], [pool("a"), pool("b")]):
        found = refused(pools, request(measurement_type=SINGLE))
        assert found.reason is Reason.INFEASIBLE
        assert "a (batched_online)" in found.message


# Groups of interchangeable pools, and pools that must be selected.


def test_group_can_be_pinned_and_the_best_of_it_takes_the_request() -> None:
    pools = [pool("a"), pool("b-1", group="b", room=1), pool("b-2", group="b", room=2)]
    assert place(pools, request(pool="b")) == ("b-2", By.FREE_SLOTS)
    assert place(pools, request(pool="b-1")) == ("b-1", By.PINNED)
    down = [pools[0], pools[1], pools[2]._replace(unavailable=DOWN)]
    assert place(down, request(pool="b")) == ("b-1", By.PINNED)


def test_preferred_group_wins_if_any_of_it_is_up() -> None:
    pools = [pool("a"), pool("b-1", group="b", room=0), pool("b-2", group="b", room=1)]
    asked = request(pool="b", prefers=True)
    assert place(pools, asked) == ("b-2", By.PREFERRED)
    away = [pools[0], *(each._replace(unavailable=DOWN) for each in pools[1:])]
    assert place(away, asked) == ("a", By.ONLY)
    assert first_available(pools, asked) == "b-1"


def test_pool_on_request_takes_only_requests_that_select_its_name_or_measurement_type() -> None:
    home = pool("home-1", group="home", measurement_type=SINGLE, on_request=True)
    pools = [home, pool("cloud", room=0, queue_depth=99)]
    assert place(pools, request()) == ("cloud", By.ONLY)
    assert first_available(pools, request()) == "cloud"
    assert place(pools, request(measurement_type=SINGLE)) == ("home-1", By.MEASUREMENT_TYPE)
    assert place(pools, request(pool="home")) == ("home-1", By.PINNED)
    assert place(pools, request(pool="home", prefers=True)) == ("home-1", By.PREFERRED)
    down = [home, pools[1]._replace(unavailable=DOWN)]
    assert refused(down, request()) is DOWN, "it is no spare for others"


def test_pool_on_request_does_not_stand_in_for_another_that_a_request_prefers() -> None:
    pools = [pool("home", on_request=True), pool("cloud", unavailable=DOWN)]
    assert refused(pools, request(pool="cloud", prefers=True)) is DOWN
    assert place(pools, request(pool="home", prefers=True)) == ("home", By.PREFERRED)


def test_pools_on_request_must_be_selected_even_if_no_other_has_the_model() -> None:
    pools = [pool("home", models={"x"}, on_request=True), pool("cloud")]
    found = refused(pools, request("x"))
    assert (found.reason, found.param) == (Reason.INFEASIBLE, "X-Orch-Pool")
    assert "pools of the model 'x' serve only requests that select them: home" in found.message


# What fits.


def test_pool_that_is_too_small_is_skipped() -> None:
    pools = [pool("a", slots_total=2, room=2), pool("b", room=0)]
    assert place(pools, request(cost=4)) == ("b", By.ONLY)
    pools = [pool("a", ctx_max=100), pool("b", room=0)]
    assert place(pools, request(tokens=101)) == ("b", By.ONLY)


def test_request_that_fits_nowhere_is_infeasible_with_the_numbers() -> None:
    found = refused([pool("a", slots_total=2), pool("b")], request(cost=9, tokens=50))
    assert found.reason is Reason.INFEASIBLE
    for text in ("9 sequences", "a has 2 slots", "b has 8 slots"):
        assert text in found.message


def test_pool_whose_size_is_not_known_could_take_it() -> None:
    found = refused([pool("a"), never_reported("b")], request(cost=9))
    assert found is DOWN


# Availability.


def test_unavailable_pools_are_named_with_the_cause() -> None:
    pools = [pool("a", unavailable=DOWN), pool("b", unavailable=Refusal(DOWN.reason, "gone"))]
    found = refused(pools, request())
    assert found.reason is Reason.NO_POOL
    assert "a: it is down; b: gone" in found.message


# The best.


def test_equal_predictions_are_decided_by_free_slots_and_then_by_name() -> None:
    pools = [pool("b", end_ms=300.2, room=3), pool("a", end_ms=300.4, room=3)]
    assert place(pools, request()) == ("a", By.NAME)
    pools = [pool("b", end_ms=300.2, room=4), pool("a", end_ms=300.4, room=3)]
    assert place(pools, request()) == ("b", By.FREE_SLOTS)


def test_earliest_predicted_end_wins_over_free_slots_an_empty_queue_and_the_name() -> None:
    early, idle = pool("b", room=0, queue_depth=9, end_ms=300.0), pool("a", end_ms=302.0)
    assert place([idle, early], request()) == ("b", By.PREDICTED_END)
    unknown = pool("c")
    assert place([early, unknown], request()) == ("c", By.FREE_SLOTS)


def test_without_a_prediction_a_free_slot_wins_then_the_shorter_queue_per_slot() -> None:
    free, busy = pool("b", room=1), pool("a", room=0)
    assert place([busy, free], request()) == ("b", By.FREE_SLOTS)
    small = pool("a", room=0, slots_total=2, queue_depth=3)
    large = pool("b", room=0, slots_total=8, queue_depth=4)
    assert place([small, large], request()) == ("b", By.FREE_SLOTS)


def test_free_slots_with_a_queue_or_too_few_of_them_do_not_count() -> None:
    pools = [pool("a", room=4, queue_depth=1), pool("b", room=1)]
    assert place(pools, request()) == ("b", By.FREE_SLOTS)
    pools = [pool("a", room=1), pool("b", room=2)]
    assert place(pools, request(cost=2)) == ("b", By.FREE_SLOTS)


# Requests without admission.


def test_request_without_admission_goes_to_the_first_that_can_take_it() -> None:
    pools = [pool("b", unavailable=DOWN), pool("c", room=0), pool("a")]
    assert first_available(pools, request(cost=0)) == "c"
    assert first_available(pools, request(cost=0, pool="a", prefers=True)) == "a"
    assert first_available(pools, request(cost=0, pool="b")) is DOWN
    missing = first_available(pools, request("nope", cost=0))
    assert isinstance(missing, Refusal)
    assert missing.reason is Reason.NOT_FOUND


POOLS = st.lists(
    st.builds(
        pool,
        st.sampled_from("abcd"),
        measurement_type=st.sampled_from([SINGLE, BATCHED]),
        models=st.sampled_from([None, {"m"}, {"x"}, {"m", "x"}]),
        slots_total=st.sampled_from([0, 1, 8]),
        room=st.integers(-1, 8),
        queue_depth=st.integers(0, 3),
        unavailable=st.sampled_from([None, None, DOWN]),
        end_ms=st.sampled_from([None, 5.0, 5.1, 9.0]),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda each: each.name,
)
REQUESTS = st.builds(
    request,
    st.sampled_from(["", "m", "x", "z"]),
    st.sampled_from([1, 4]),
    st.none(),
    pool=st.sampled_from([None, "a", "b", "z"]),
    prefers=st.booleans(),
    measurement_type=st.sampled_from([None, SINGLE, BATCHED]),
)


@given(POOLS, REQUESTS, st.sets(st.sampled_from("abcd")))
def test_choice_is_independent_of_the_order_and_meets_the_requirements(
    pools: list[PoolSnapshot], asked: PlacementRequest, tried: set[str]
) -> None:
    found = {place(list(order), asked, tried) for order in itertools.permutations(pools)}
    if not all(isinstance(each, tuple) for each in found):
        assert not any(isinstance(each, tuple) for each in found)
        return
    [placed] = found
    assert isinstance(placed, tuple)
    [chosen] = [each for each in pools if each.name == placed[0]]
    assert chosen.unavailable is None
    assert chosen.name not in tried
    assert not asked.pinned or chosen.name == asked.options.pool
    assert asked.options.measurement_type in (None, chosen.measurement_type)


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
