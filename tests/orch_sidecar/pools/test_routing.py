"""Which pool takes a request, and what those hear whom none takes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.routing import Placed, View, Why, Wish, first, place
from vllm_plugin.profile import MeasurementType

SINGLE, BATCHED = MeasurementType.SINGLE_STREAM, MeasurementType.BATCHED_ONLINE
DOWN = Refusal(Reason.ENGINE_DOWN, "it is down")


def view(name: str, **more: Any) -> View:
    """An idle pool of 8 slots with the model `m`."""
    known: dict[str, Any] = {
        "measurement_type": BATCHED, "models": {"m"}, "slots_total": 8, "ctx_max": 2048,
        "room": 8, "queue_depth": 0, "unavailable": None, "end_ms": None,
    }  # fmt: skip
    return View(name, **({"group": name} | known | more))


def never_reported(name: str, **more: Any) -> View:
    return view(name, models=None, slots_total=0, ctx_max=None, room=0, unavailable=DOWN, **more)


def wish(model: str = "m", cost: int = 1, **more: Any) -> Wish:
    return Wish(model, cost, **more)


def refused(views: list[View], wanted: Wish, tried: tuple[str, ...] = ()) -> Refusal:
    found = place(views, wanted, tried)
    assert isinstance(found, Refusal), found
    return found


# The model.


def test_model_decides_first() -> None:
    views = [view("a", models={"x"}), view("b", models={"m", "y"}), view("c", models={"z"})]
    assert place(views, wish()) == Placed("b", Why.ONLY)
    assert place(views, wish("z", pool="b", prefers=True)) == Placed("c", Why.ONLY)


def test_model_that_nobody_has_is_not_found_and_the_others_are_named() -> None:
    found = refused([view("a", models={"x"}), view("b", models={"y", "m"})], wish("nope"))
    assert found.reason is Reason.NOT_FOUND
    assert found.param == "model"
    assert "'nope'" in found.message
    assert "m, x, y" in found.message


def test_refusal_names_a_handful_of_models() -> None:
    models = {f"adapter-{number:03}" for number in range(300)}
    found = refused([view("a", models=models), view("b")], wish("nope"))
    assert found.message.endswith("adapter-018, adapter-019 and 281 more")


def test_single_pool_is_asked_for_any_model_so_that_its_engine_answers() -> None:
    assert place([view("a")], wish("nope")) == Placed("a", Why.ONLY)


def test_pool_that_has_never_reported_may_have_the_model() -> None:
    found = refused([view("a", models={"x"}), never_reported("b")], wish())
    assert found is DOWN


def test_request_without_a_model_may_go_anywhere() -> None:
    views = [view("a", models={"x"}, room=1), view("b", models={"y"}, room=2)]
    assert place(views, wish("")) == Placed("b", Why.FREE_SLOTS)


# What the client demands.


def test_pinned_pool_is_the_pool_however_busy() -> None:
    views = [view("a"), view("b", room=0, queue_depth=99, end_ms=1e6)]
    assert place(views, wish(pool="b")) == Placed("b", Why.PINNED)


def test_pinned_pool_that_is_down_answers_itself() -> None:
    assert refused([view("a"), view("b", unavailable=DOWN)], wish(pool="b")) is DOWN


@pytest.mark.parametrize(("pool", "text"), [("c", "there is no pool 'c'"), ("b", "model 'm'")])
def test_pin_that_can_never_hold_is_infeasible(pool: str, text: str) -> None:
    found = refused([view("a"), view("b", models={"x"})], wish(pool=pool))
    assert found.reason is Reason.INFEASIBLE
    assert text in found.message


def test_preferred_pool_wins_if_it_is_up_and_is_forgotten_if_not() -> None:
    busy = view("b", room=0, queue_depth=9)
    assert place([view("a"), busy], wish(pool="b", prefers=True)) == Placed("b", Why.PREFERRED)
    down = view("b", unavailable=DOWN)
    assert place([view("a"), down], wish(pool="b", prefers=True)) == Placed("a", Why.ONLY)
    assert place([view("a")], wish(pool="zzz", prefers=True)) == Placed("a", Why.ONLY)


def test_measurement_type_is_never_traded() -> None:
    views = [view("a"), view("b", measurement_type=SINGLE, room=0, queue_depth=50)]
    wanted = wish(measurement_type=SINGLE)
    assert place(views, wanted) == Placed("b", Why.MEASUREMENT_TYPE)
    assert refused([views[0], views[1]._replace(unavailable=DOWN)], wanted) is DOWN
    assert refused(views, wanted, tried=("b",)).reason is Reason.NO_POOL


def test_measurement_type_that_no_pool_has_is_infeasible() -> None:
    for views in ([view("a")], [view("a"), view("b")]):
        found = refused(views, wish(measurement_type=SINGLE))
        assert found.reason is Reason.INFEASIBLE
        assert "a (batched_online)" in found.message


# Pools that stand in for each other, and pools that take only what asks for them.


def test_group_can_be_pinned_and_the_best_of_it_takes_the_request() -> None:
    views = [view("a"), view("b-1", group="b", room=1), view("b-2", group="b", room=2)]
    assert place(views, wish(pool="b")) == Placed("b-2", Why.FREE_SLOTS)
    assert place(views, wish(pool="b-1")) == Placed("b-1", Why.PINNED)
    down = [views[0], views[1], views[2]._replace(unavailable=DOWN)]
    assert place(down, wish(pool="b")) == Placed("b-1", Why.PINNED)


def test_preferred_group_wins_if_any_of_it_is_up() -> None:
    views = [view("a"), view("b-1", group="b", room=0), view("b-2", group="b", room=1)]
    wanted = wish(pool="b", prefers=True)
    assert place(views, wanted) == Placed("b-2", Why.PREFERRED)
    away = [views[0], *(each._replace(unavailable=DOWN) for each in views[1:])]
    assert place(away, wanted) == Placed("a", Why.ONLY)
    assert first(views, wanted) == "b-1"


def test_group_that_failed_a_request_is_not_asked_again() -> None:
    views = [view("a", room=1), view("b-1", group="b"), view("b-2", group="b")]
    assert place(views, wish(), tried=("b",)) == Placed("a", Why.ONLY)


def test_pool_on_request_takes_what_asks_by_name_or_by_measurement_type_and_nothing_else() -> None:
    home = view("home-1", group="home", measurement_type=SINGLE, on_request=True)
    views = [home, view("cloud", room=0, queue_depth=99)]
    assert place(views, wish()) == Placed("cloud", Why.ONLY)
    assert first(views, wish()) == "cloud"
    assert place(views, wish(measurement_type=SINGLE)).pool == "home-1"  # type: ignore[union-attr]
    assert place(views, wish(pool="home")) == Placed("home-1", Why.PINNED)
    assert place(views, wish(pool="home", prefers=True)) == Placed("home-1", Why.PREFERRED)
    down = [home, views[1]._replace(unavailable=DOWN)]
    assert refused(down, wish()) is DOWN, "it is no spare for others"


def test_model_that_only_pools_on_request_have_must_be_asked_for() -> None:
    views = [view("home", models={"x"}, on_request=True), view("cloud")]
    found = refused(views, wish("x"))
    assert (found.reason, found.param) == (Reason.INFEASIBLE, "X-Orch-Pool")
    assert "'x' is served by pools that take only what asks for them: home" in found.message


# What fits.


def test_pool_that_is_too_small_is_passed_over() -> None:
    views = [view("a", slots_total=2, room=2), view("b", room=0)]
    assert place(views, wish(cost=4)) == Placed("b", Why.ONLY)
    views = [view("a", ctx_max=100), view("b", room=0)]
    assert place(views, wish(tokens=101)) == Placed("b", Why.ONLY)


def test_request_that_fits_nowhere_is_infeasible_with_the_numbers() -> None:
    found = refused([view("a", slots_total=2), view("b")], wish(cost=9, tokens=50))
    assert found.reason is Reason.INFEASIBLE
    for text in ("9 sequences", "a has 2 slots", "b has 8 slots"):
        assert text in found.message


def test_pool_whose_size_is_not_known_could_take_it() -> None:
    found = refused([view("a"), never_reported("b")], wish(cost=9))
    assert found is DOWN


def test_single_pool_says_itself_what_does_not_fit() -> None:
    assert place([view("a")], wish(cost=99)) == Placed("a", Why.ONLY)


# What is up.


def test_pools_that_are_away_are_named_with_the_cause() -> None:
    views = [view("a", unavailable=DOWN), view("b", unavailable=Refusal(DOWN.reason, "gone"))]
    found = refused(views, wish())
    assert found.reason is Reason.NO_POOL
    assert "a: it is down; b: gone" in found.message


def test_pool_that_failed_the_request_is_not_asked_again() -> None:
    views = [view("a"), view("b", room=0)]
    assert place(views, wish(), ["a"]) == Placed("b", Why.ONLY)
    assert "a: failed it" in refused(views, wish(), ("a", "b")).message


# The best.


def test_earliest_predicted_end_wins() -> None:
    views = [view("a", end_ms=900.0), view("b", end_ms=300.0, room=0), view("c", end_ms=301.0)]
    assert place(views, wish()) == Placed("b", Why.PREDICTED_END)


def test_ends_within_a_millisecond_are_told_apart_by_free_slots_and_then_by_name() -> None:
    views = [view("b", end_ms=300.2, room=3), view("a", end_ms=300.4, room=3)]
    assert place(views, wish()) == Placed("a", Why.NAME)
    views = [view("b", end_ms=300.2, room=4), view("a", end_ms=300.4, room=3)]
    assert place(views, wish()) == Placed("b", Why.FREE_SLOTS)


def test_without_a_prediction_a_free_slot_wins_then_the_shorter_queue_per_slot() -> None:
    free, busy = view("b", room=1), view("a", room=0)
    assert place([busy, free], wish()) == Placed("b", Why.FREE_SLOTS)
    small = view("a", room=0, slots_total=2, queue_depth=3)
    large = view("b", room=0, slots_total=8, queue_depth=4)
    assert place([small, large], wish()) == Placed("b", Why.FREE_SLOTS)


def test_one_unknown_prediction_makes_all_of_them_uncomparable() -> None:
    views = [view("a", end_ms=10.0, room=0), view("b", room=2)]
    assert place(views, wish()) == Placed("b", Why.FREE_SLOTS)


def test_free_slots_that_others_wait_for_or_that_are_too_few_are_not_free() -> None:
    views = [view("a", room=4, queue_depth=1), view("b", room=1)]
    assert place(views, wish()) == Placed("b", Why.FREE_SLOTS)
    views = [view("a", room=1), view("b", room=2)]
    assert place(views, wish(cost=2)) == Placed("b", Why.FREE_SLOTS)


# Requests without admission.


def test_request_without_admission_goes_to_the_first_that_can_take_it() -> None:
    views = [view("b", unavailable=DOWN), view("c", room=0), view("a")]
    assert first(views, wish(cost=0)) == "c"
    assert first(views, wish(cost=0, pool="a", prefers=True)) == "a"
    assert first(views, wish(cost=0, pool="b")) is DOWN
    missing = first(views, wish("nope", cost=0))
    assert isinstance(missing, Refusal)
    assert missing.reason is Reason.NOT_FOUND


VIEWS = st.lists(
    st.builds(
        view,
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
WISHES = st.builds(
    Wish,
    st.sampled_from(["", "m", "x", "z"]),
    st.sampled_from([1, 4]),
    st.none(),
    st.sampled_from([None, "a", "b", "z"]),
    st.booleans(),
    st.sampled_from([None, SINGLE, BATCHED]),
)


@given(VIEWS, WISHES, st.sets(st.sampled_from("abcd")))
def test_answer_is_the_same_in_any_order_and_keeps_what_was_demanded(
    views: list[View], wanted: Wish, tried: set[str]
) -> None:
    found = {place(list(order), wanted, tried) for order in itertools.permutations(views)}
    if not all(isinstance(each, Placed) for each in found):
        assert not any(isinstance(each, Placed) for each in found)
        return
    [placed] = found
    assert isinstance(placed, Placed)
    [chosen] = [each for each in views if each.name == placed.pool]
    assert chosen.unavailable is None
    assert chosen.name not in tried
    assert not wanted.pinned or chosen.name == wanted.pool
    assert wanted.measurement_type in (None, chosen.measurement_type)
