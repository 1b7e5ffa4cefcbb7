"""What admission is for: the policies on the same arrivals, at twice what the engine can do.

70 % of the requests are bulk, eight times as long; arrivals are Poisson, lengths lognormal. The
SLO of interactive requests is three times the p95 of their first token without load.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from orch_sidecar.tools.simulate.compare import (
    Figures,
    Policy,
    Scenario,
    capacity,
    course_of,
    figures,
    unloaded_ttft_p95_ms,
    with_slo,
)
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.fronts import Sight
from orch_sidecar.tools.simulate.run import Course, Record
from orch_sidecar.tools.simulate.traffic import Workload
from vllm_plugin.contracts.profile import AdmissionRules, ServiceClass, load

INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK
SECONDS = 100.0
SEED = 1
# No bulk request is to wait longer than that, here.
MAX_WAIT_S = 60.0

# Shapes of the step time: a large model on a GPU, a small one on few cores, one whose steps
# hardly grow with the batch. In each the SLO can be kept: two steps with a part of a bulk prompt
# in each take less.
SHAPES = {
    "large": EngineShape(16, t0_ms=8, c_ms=0.2, alpha=0.9, prefill_tokens_per_s=25_000),
    "small": EngineShape(16, t0_ms=3, c_ms=0.4, alpha=0.8, prefill_tokens_per_s=20_000),
    "flat": EngineShape(16, t0_ms=20, c_ms=0.05, alpha=1.0, prefill_tokens_per_s=10_000),
    "flat-64": EngineShape(64, t0_ms=20, c_ms=0.05, alpha=1.0, prefill_tokens_per_s=10_000),
}


@cache
def scenario_of(name: str) -> tuple[float, Scenario, AdmissionRules]:
    """The SLO in milliseconds, what arrives, and the rules of admission."""
    shape = replace(SHAPES[name], long_prefill_tokens=256)
    workload = Workload()
    slo_ms = 3 * unloaded_ttft_p95_ms(shape, workload, SEED)
    rate = 2 * capacity(shape, workload, SEED)
    rules = with_slo(load("cloud").admission, {"ttft": slo_ms})
    bulk = rules.bulk.model_copy(update={"max_wait_s": MAX_WAIT_S})
    rules = rules.model_copy(update={"bulk": bulk})
    return slo_ms, Scenario(shape, workload, rate, SECONDS, SEED), rules


@cache
def course(name: str, policy: Policy) -> Course:
    _, scenario, rules = scenario_of(name)
    return course_of(policy, scenario, rules)


@cache
def measured(name: str) -> tuple[float, dict[str, Figures]]:
    """The SLO in milliseconds, and the figures of each policy."""
    slo_ms, _, rules = scenario_of(name)
    slos = {each: rules.of(each).ttft_p95_ms for each in ServiceClass}
    return slo_ms, {policy: figures(course(name, policy), slos) for policy in Policy}


def bulk_records(name: str) -> list[Record]:
    """The bulk requests under the policy."""
    records = course(name, Policy.POLICY).records
    return [each for each in records if each.arrival.service_class is BULK]


def p95_of(found: Figures) -> float:
    ttft_ms = found.classes[INTERACTIVE].ttft_ms
    assert ttft_ms is not None
    return ttft_ms.p95


@pytest.mark.parametrize("name", SHAPES)
def test_interactive_requests_keep_their_slo_and_in_other_ways_are_far_from_it(name: str) -> None:
    slo_ms, found = measured(name)
    assert p95_of(found[Policy.POLICY]) <= slo_ms
    assert p95_of(found[Policy.FIFO]) > 100 * slo_ms
    assert p95_of(found[Policy.DIRECT]) > 100 * slo_ms
    assert p95_of(found[Policy.PRIORITY]) > 3 * slo_ms


@pytest.mark.parametrize("name", SHAPES)
def test_most_interactive_requests_are_served(name: str) -> None:
    """They take a tenth of the capacity. Not all: a slot that is kept free costs tokens."""
    _, found = measured(name)
    interactive = found[Policy.POLICY].classes[INTERACTIVE]
    assert interactive.served >= 0.55 * interactive.arrived


@pytest.mark.parametrize("name", SHAPES)
def test_interactive_goodput_is_a_multiple_and_costs_a_twentieth_of_the_tokens(name: str) -> None:
    _, found = measured(name)
    good = {policy: found[policy].classes[INTERACTIVE].goodput_per_s for policy in Policy}
    assert good[Policy.POLICY] >= 2 * good[Policy.DIRECT]
    assert good[Policy.POLICY] >= 2 * good[Policy.PRIORITY]
    assert found[Policy.POLICY].tokens_per_s >= 0.95 * found[Policy.DIRECT].tokens_per_s


@pytest.mark.parametrize("name", SHAPES)
def test_no_bulk_request_waits_longer_than_it_may(name: str) -> None:
    """But for those that gave their slots back: these may wait again."""
    for each in bulk_records(name):
        if each.started_at is not None and not each.reclaimed:
            # A step until the engine begins with it.
            assert each.started_at - each.arrival.at <= MAX_WAIT_S + 0.1


@pytest.mark.parametrize("name", ["small", "flat"])
def test_no_bulk_request_is_refused_after_it_gave_its_slots_back(name: str) -> None:
    reclaimed = [each for each in bulk_records(name) if each.reclaimed]
    assert len(reclaimed) > 10
    assert [each for each in reclaimed if each.refused] == []


def with_full_cache(rules: AdmissionRules, *, cache_known: bool) -> Figures:
    """64 slots and contexts that do not fit together: a mean of 1536 tokens, and 60 000 in all."""
    shape = replace(SHAPES["large"], slots=64, kv_tokens=60_000, long_prefill_tokens=256)
    scenario = Scenario(shape, Workload(bulk_share=0.9), 6.0, 100.0, seed=1)
    sight = Sight(cache=cache_known)
    return figures(course_of(Policy.POLICY, scenario, rules, sight=sight), {})


def test_kv_budget_avoids_preemptions_and_makes_more_tokens() -> None:
    rules = load("cloud").admission
    without, with_it = (with_full_cache(rules, cache_known=known) for known in (False, True))
    assert without.preemptions > 500
    assert with_it.preemptions == 0
    assert with_it.tokens_per_s > 1.05 * without.tokens_per_s
