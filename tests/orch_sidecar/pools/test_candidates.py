"""The pools that are drawn for a request, of many."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.api.options import RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.candidates import Candidates, PoolKind, Standing, standing
from orch_sidecar.pools.routing import Load, PlacementRequest, place
from orch_sidecar.tools.simulate.engine import EngineShape
from tests.benchmarks.entry.virtual import Traffic, quality
from tests.orch_sidecar.snapshots import BATCHED, SINGLE, snapshot

SEED = 7


def kind(group: str = "cloud", **more: Any) -> PoolKind:
    known: dict[str, Any] = {
        "measurement_type": BATCHED, "on_request": False, "models": frozenset({"m"}),
        "ctx_max": 2048, "slots_total": 8, "predicts": True,
    }  # fmt: skip
    return PoolKind(group, **(known | more))


def request(
    model: str = "m", cost: int = 1, tokens: int | None = None, **options: Any
) -> PlacementRequest:
    return PlacementRequest(model, cost, tokens, RequestOptions(**options))


def candidates(*values: float, of: PoolKind | None = None) -> Candidates:
    """Pools `0`, `1`, ... with these standings."""
    made, of_all = Candidates(Random(SEED)), of or kind()
    for number, value in enumerate(values):
        made.update(str(number), Standing(of_all, value, number))
    return made


def drawn(made: Candidates, asked: PlacementRequest | None = None, times: int = 400) -> set[str]:
    """All that are drawn in so many draws."""
    return {name for _ in range(times) for name in made.draw(asked or request())}


# Standings


def test_pool_with_a_free_slot_stands_before_any_in_which_the_request_would_wait() -> None:
    free = standing(kind(), 0.030, free=1, queue_depth=0, room=1)
    full = standing(kind(), 0.030, free=0, queue_depth=0, room=0)
    queue = standing(kind(), 0.030, free=0, queue_depth=3, room=0)
    limited = standing(kind(), 0.030, free=0, queue_depth=0, room=4)
    assert free.value == 0.030
    assert free.value < full.value == limited.value < queue.value
    assert [each.waits for each in (free, full, queue, limited)] == [False, True, True, True]
    assert [each.load for each in (free, full, queue, limited)] == [7, 8, 11, 4]


def test_request_waits_nowhere_while_a_slot_is_free_in_an_equal_engine() -> None:
    """Also where many slots end soon, so that the wait is short."""
    of = kind(slots_total=64)
    made = Candidates(Random(SEED))
    for number in range(10):
        full = standing(of, 0.030, free=0, queue_depth=0, room=0)
        made.update(str(number), full)
    made.update("free", standing(of, 0.030, free=1, queue_depth=0, room=1))
    assert made.draw(request()) == ["free"]


def test_engine_that_is_faster_once_it_begins_is_compared_with_a_free_slot() -> None:
    made = Candidates(Random(SEED))
    made.update("slow", standing(kind(), 0.090, free=8, queue_depth=0, room=8))
    made.update("fast", standing(kind(), 0.030, free=0, queue_depth=2, room=0))
    made.update("as slow", standing(kind("b"), 0.090, free=0, queue_depth=0, room=0))
    assert made.draw(request()) == ["slow", "fast", "as slow"]
    made.update("fast", None)
    assert made.draw(request()) == ["slow"]


def test_slow_engine_stands_behind_a_fast_one_with_more_to_do() -> None:
    slow = standing(kind(), 0.090, free=8, queue_depth=0, room=8)
    fast = standing(kind(), 0.035, free=1, queue_depth=0, room=1)
    assert fast.value < slow.value


def test_without_a_step_time_an_empty_queue_counts_first_and_then_free_slots() -> None:
    pools = [(0, 5), (0, 2), (0, 0), (1, 8), (2, 8)]
    of = kind(predicts=False)
    values = [standing(of, None, room, depth, room).value for depth, room in pools]
    assert values == sorted(values)
    assert len(set(values)) == len(values)


# Draws


def test_only_pools_that_are_nearly_the_best_are_drawn_and_all_of_them() -> None:
    made = candidates(1.0, 1.04, 2.0, 1.02, 1.11, 1.09)
    assert drawn(made) == {"0", "1", "3", "5"}
    assert all(len(set(made.draw(request()))) == 2 for _ in range(100))


def test_draws_are_even() -> None:
    made = candidates(*[1.0] * 10)
    count = Counter(name for _ in range(5000) for name in made.draw(request()))
    assert set(count) == {str(number) for number in range(10)}
    assert max(count.values()) < 1.25 * min(count.values())


def test_where_one_is_far_better_it_is_compared_with_the_next() -> None:
    assert candidates(5.0, 1.0, 3.0).draw(request()) == ["1", "2"]
    assert candidates(1.0).draw(request()) == ["0"]
    assert candidates().draw(request()) == []


def test_standing_that_changes_moves_the_pool_and_one_that_ends_removes_it() -> None:
    made = candidates(1.0, 2.0, 3.0)
    of = kind()
    made.update("2", Standing(of, 0.5, 0))
    assert made.draw(request()) == ["2", "0"]
    made.update("2", None)
    made.update("2", None)
    assert made.draw(request()) == ["0", "1"]
    assert "2" not in made
    made.update("1", Standing(kind(group="home"), 0.1, 0))
    assert made.draw(request(pool="cloud")) == ["0"]
    assert made.draw(request(pool="home")) == ["1"]


def test_pools_and_groups_that_failed_the_request_are_not_drawn() -> None:
    made = candidates(1.0, 1.0, 1.0)
    made.update("other", Standing(kind(group="home"), 9.0, 0))
    for _ in range(50):
        assert set(made.draw(request(), tried=("0", "1"))) == {"2", "other"}
    assert made.draw(request(), tried=("cloud",)) == ["other"]
    assert made.draw(request(), group="home") == ["other"]


def test_kinds_that_can_be_compared_are_and_of_others_the_best_is_drawn_too() -> None:
    made = candidates(1.0, 1.0, of=kind(ctx_max=1000))
    made.update("large", Standing(kind(ctx_max=9000), 1.01, 0))
    made.update("slow", Standing(kind(ctx_max=9000), 4.0, 0))
    assert drawn(made) == {"0", "1", "large"}
    unknown = kind(predicts=False)
    made.update("new", Standing(unknown, -8, 0))
    made.update("newer", Standing(unknown, -7, 0))
    assert {"new", "newer"} < set(made.draw(request()))


def test_load_is_that_of_all_that_could_serve_the_request() -> None:
    made = candidates(1.0, 2.0, 3.0)
    made.update("x", Standing(kind("x", models=frozenset({"x"})), 1.0, 5))
    assert made.load(request()) == Load(0 + 1 + 2, 24)
    made.update("2", Standing(kind(), 3.0, 7))
    assert made.load(request("")) == Load(0 + 1 + 7 + 5, 32)


def test_another_measurement_type_is_named_if_there_is_one() -> None:
    made = candidates(1.0)
    assert made.of_other_measurement(BATCHED) == []
    assert made.of_other_measurement(SINGLE) == ["0"]


POOLS = st.lists(
    st.tuples(
        st.sampled_from([None, {"m"}, {"x"}, {"m", "x"}]),
        st.sampled_from([SINGLE, BATCHED]),
        st.booleans(),
        st.sampled_from(["a", "b"]),
        st.sampled_from([1, 8]),
        st.sampled_from([None, 100, 2048]),
    ),
    min_size=2,
    max_size=8,
)
REQUESTS = st.builds(
    request,
    st.sampled_from(["", "m", "x", "z"]),
    st.sampled_from([1, 4]),
    st.sampled_from([None, 500]),
    pool=st.sampled_from([None, "a", "b", "z"]),
    prefers=st.booleans(),
    measurement_type=st.sampled_from([None, SINGLE, BATCHED]),
    labelled=st.booleans(),
)


@given(POOLS, REQUESTS)
def test_what_could_serve_a_request_is_what_placement_among_all_could_choose(
    pools: list[Any], asked: PlacementRequest
) -> None:
    """A pool could be chosen if it is when the others are unavailable."""
    made, snapshots = Candidates(Random(SEED)), []
    for number, (models, of_type, on_request, group, slots, ctx_max) in enumerate(pools):
        named: dict[str, Any] = {"models": models, "ctx_max": ctx_max, "on_request": on_request}
        snapshots.append(
            snapshot(str(number), group=group, measurement_type=of_type, slots_total=slots, **named)
        )
        frozen = None if models is None else frozenset(models)
        of = PoolKind(group, of_type, on_request, frozen, ctx_max, slots, predicts=True)
        made.update(str(number), Standing(of, 1.0, 0))
    away = Refusal(Reason.ENGINE_DOWN, "away")
    possible = set()
    for one in snapshots:
        rest = [each if each is one else each._replace(unavailable=away) for each in snapshots]
        found = place(rest, asked)
        if isinstance(found, tuple):
            possible.add(found[0])
    could = {
        name for name in map(str, range(len(pools))) if made._standings[name][0].kind.serves(asked)
    }
    # The admission of a pool that is the only one refuses itself what does not fit.
    assert could <= possible
    assert possible == could or len(possible) == 1


EQUAL = (EngineShape(slots=8),) * 10
SLOW = EngineShape(slots=8, t0_ms=24.0, c_ms=0.6, prefill_tokens_per_s=8_000.0)
SCENES = {
    "equal": Traffic(EQUAL, seconds=6.0),
    "mixed": Traffic((*EQUAL[:5], *(SLOW,) * 5), seconds=6.0),
}


@pytest.mark.parametrize("name", SCENES)
def test_requests_start_and_end_as_early_as_if_all_pools_were_asked(name: str) -> None:
    of_all, drawn = (quality(SCENES[name], way, 1) for way in ("all", "drawn"))
    assert drawn.end_mean <= 1.05 * of_all.end_mean
    assert drawn.end_p95 <= 1.05 * of_all.end_p95
    assert drawn.first_token_p95 <= 1.25 * of_all.first_token_p95


def test_turns_are_not_as_good() -> None:
    """Else the comparison would show nothing."""
    drawn, turns = (quality(SCENES["mixed"], way, 1) for way in ("drawn", "turns"))
    assert turns.end_p95 > 1.3 * drawn.end_p95
