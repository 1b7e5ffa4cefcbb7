"""Grouping requests into scenarios."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.facts.traces.requests import Outcome, build_traffic
from orch_sidecar.tools.facts.traces.scenarios import Scenario, group_scenarios
from orch_sidecar.tools.facts.traces.spans import Span, Value
from tests.orch_sidecar.tools.facts.spans import one, real, traffic_from, without

GAP_S = 60.0


def split(*requests: list[Span], gap_s: float = GAP_S) -> list[list[int]]:
    """Returns the numbers of the requests in each scenario."""
    return [numbers(each) for each in group_scenarios(traffic_from(*requests), gap_s)]


def numbers(scenario: Scenario) -> list[int]:
    return [int(request.link.trace_id, 16) for request in scenario.requests]


def test_real_requests_belong_to_the_scenarios_of_their_ids() -> None:
    found = group_scenarios(build_traffic([*real("home"), *real("mixed")]), GAP_S)
    sizes = {each.key.scenario: len(each.requests) for each in found}
    assert sizes == {"home-1.warmup": 1, "home-1": 5, "shared-1": 3, "two-1": 3, "bulk-1": 2}
    assert [each.key.scenario for each in found if each.is_warmup] == ["home-1.warmup"]
    home = found[1]
    columns = home.sequences[0].engine.reported.columns
    assert tuple(columns.values()) == ("vLLM 0.32.0", "FP32", "CPU (AMD EPYC)", 0)
    assert len(home.sequences) == 5


def test_without_an_id_a_scenario_ends_where_nothing_ran_for_the_gap() -> None:
    requests = [one(1, 0, 10), one(2, 69.9, 70), one(3, 130.1, 131)]
    assert split(*requests) == [[1, 2], [3]]
    assert split(*requests, gap_s=59.9) == [[1], [2], [3]]


def test_scenario_with_an_id_can_pause() -> None:
    named: dict[str, Value] = {"orch.scenario": "run-1"}
    assert split(one(1, 0, 1, server=named), one(2, 600, 601, server=named)) == [[1, 2]]
    # Longer than a reader of an interval sees beyond it.
    assert split(one(1, 0, 1, server=named), one(2, 601, 602, server=named)) == [[1], [2]]


@pytest.mark.parametrize(
    "other",
    [
        {"server": {"orch.scenario": "run-1"}},
        {"server": {"gen_ai.request.model": "another"}},
        {"server": {"orch.pool": "another"}},
        {"server": {"orch.profile": "another"}},
        {"label": "offline"},
        {"decode": {"orch.engine_version": "0.33.0"}},
        {"decode": {"orch.precision": "FP8"}},
        {"decode": {"orch.gpu": "A100"}},
        {"decode": {"orch.gpu_count": 2}},
        {"decode": {"orch.speculative": "ngram:3", "orch.tokens_per_step": 4}},
        {"decode": {"orch.kv_cache_dtype": "fp8_e4m3"}},
        {"server": {"orch.run": "0123"}},
    ],
)
def test_other_labels_are_another_scenario(other: dict[str, object]) -> None:
    assert split(one(1, 0, 1), one(2, 2, 3, **other), one(3, 4, 5)) == [[1, 3], [2]]  # type: ignore[arg-type]


def test_requests_that_reached_no_engine_join_the_nearest_scenario() -> None:
    newer: dict[str, Value] = {"orch.engine_version": "0.33.0"}
    requests = [
        one(1, 0, 1),
        one(2, 0.5, 0.6, outcome="queue_full"),
        one(3, 10, 11, decode=newer),
        one(4, 10.5, 10.6, outcome="cancelled"),
    ]
    assert split(*requests) == [[1, 2], [3, 4]]
    [first, _] = group_scenarios(traffic_from(*requests), GAP_S)
    assert [each.outcome for each in first.requests] == [Outcome.SERVED, Outcome.REFUSED]


def test_requests_without_a_pool_are_assigned_by_id_or_time() -> None:
    unplaced = ("orch.pool", "orch.profile")
    named: dict[str, Value] = {"orch.scenario": "run-1"}

    def refused(number: int, at_s: float, server: dict[str, Value]) -> list[Span]:
        spans = one(number, at_s, at_s + 0.1, outcome="no_pool", server=server, label="none")
        return without(spans[:1], *unplaced)

    traffic = traffic_from(
        one(1, 0, 5),
        one(2, 100, 101, server=named),
        refused(3, 2, {}),  # during the first one
        refused(4, 50, {}),  # during none: it belongs to no scenario, as the last two
        refused(5, 50, named),
        refused(6, 3, {"gen_ai.request.model": "another"}),
        refused(7, 3, {**named, "orch.run": "0123"}),
    )
    found = group_scenarios(traffic, GAP_S)
    assert [sorted(numbers(each)) for each in found] == [[1, 3], [2, 5]]


def test_requests_outside_of_the_interval_only_mark_the_cut() -> None:
    traffic = traffic_from(*(one(number, number, number + 0.5) for number in range(1, 6)))
    [found] = group_scenarios(traffic, GAP_S, first_ns=2 * 10**9, last_ns=4 * 10**9)
    assert numbers(found) == [2, 3, 4]
    assert (len(found.before), len(found.after)) == (1, 1)
    [whole] = group_scenarios(traffic, GAP_S, first_ns=10**9, last_ns=5 * 10**9)
    assert (len(whole.requests), whole.before, whole.after) == (5, [], [])
    assert group_scenarios(traffic, GAP_S, first_ns=6 * 10**9) == []


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 100)), max_size=30))
def test_every_request_is_in_one_scenario_and_pauses_are_between_them(
    times: list[tuple[float, float]],
) -> None:
    requests = [
        one(number, start, start + length) for number, (start, length) in enumerate(times, start=1)
    ]
    found = group_scenarios(traffic_from(*requests), 10.0)
    every = sorted(number for each in found for number in numbers(each))
    assert every == list(range(1, len(times) + 1))
    for earlier, later in pairwise(found):
        end_ns = max(request.end_ns for request in earlier.requests)
        assert later.start_ns - end_ns >= 10 * 10**9
    for each in found:
        end_ns = each.start_ns
        for request in each.requests:
            assert request.start_ns - end_ns < 10 * 10**9
            end_ns = max(end_ns, request.end_ns)
