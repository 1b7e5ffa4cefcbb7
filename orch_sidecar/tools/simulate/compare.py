"""Compares policies on the same arrivals.

Capacity and SLO are measured in the same model: capacity is the engine's throughput of the same
mix of requests while its queue is never empty; the SLO of interactive requests is a multiple of
their p95 TTFT alone at a low rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from typing import Final

from orch_sidecar.tools.facts.labels.figures import percentile
from orch_sidecar.tools.simulate.engine import Engine, EngineShape, Sequence
from orch_sidecar.tools.simulate.fronts import (
    Admitted,
    Direct,
    Outcomes,
    Sight,
    plain_rules,
)
from orch_sidecar.tools.simulate.report import Figures, figures
from orch_sidecar.tools.simulate.run import Course, Run
from orch_sidecar.tools.simulate.traffic import Arrival, BulkClients, Traffic
from vllm_plugin.contracts.profile import AdmissionRules, ServiceClass

_PER_SLOT: Final = 30  # requests: the first ones, which all start at once, are few of them


@dataclass(frozen=True, slots=True)
class FullLoad:
    """Requests and generated tokens per second, and the 95th percentile of requests' milliseconds
    per token, with the prompts that are read meanwhile; None: none has a second token."""

    requests_per_s: float
    tokens_per_s: float
    tpot_p95_ms: float | None


def full_load(shape: EngineShape, traffic: Traffic, seed: int) -> FullLoad:
    """Returns what the engine makes of this traffic, in order of arrival."""
    engine = Engine(replace(shape, by_priority=False), seed)
    arrivals = traffic.at_once(_PER_SLOT * shape.slots, seed)
    sequences = [Sequence(at, each.prompt, each.output) for at, each in enumerate(arrivals)]
    for sequence in sequences:
        engine.add(sequence)
    now, tpot_s = 0.0, list[float]()
    while engine.waiting:
        took = engine.begin_step(now)
        assert took is not None, "a sequence is waiting"
        now += took
        for ended in engine.end_step(now):
            if ended.output > 1 and ended.first_token_at is not None:
                tpot_s.append((now - ended.first_token_at) / (ended.output - 1))
    tokens_each = sum(each.output for each in arrivals) / len(arrivals)
    tokens_per_s = engine.tokens / now
    p95_s = percentile(tpot_s, 95)
    p95_ms = None if p95_s is None else 1000 * p95_s
    return FullLoad(tokens_per_s / tokens_each, tokens_per_s, p95_ms)


# Requests of the unloaded run, enough for a p95.
_ALONE: Final = 400
# As a share of the capacity of a single stream, so that requests hardly ever queue.
_LOW_LOAD: Final = 0.05


class Policy(StrEnum):
    """The admission in front of the engine."""

    POLICY = "policy"  # by the rules
    FIFO = "fifo"  # in order of arrival, up to the slots
    DIRECT = "direct"  # none, the engine schedules in order of arrival
    PRIORITY = "priority"  # none, the engine schedules interactive requests first


@dataclass(frozen=True, slots=True)
class Scenario:
    """Traffic for one engine. `rate` in requests per second, without those of the `clients`."""

    shape: EngineShape
    workload: Traffic
    rate: float
    seconds: float
    seed: int
    retry: bool = False
    clients: BulkClients | None = None

    def arrivals(self) -> list[Arrival]:
        return self.workload.arrivals(self.rate, self.seconds, self.seed)


def with_slo(rules: AdmissionRules, slo_ms: Mapping[str, float]) -> AdmissionRules:
    """Returns the rules with another SLO of interactive requests, if they have any. `slo_ms`: by
    the names of the times, `ttft` and `tpot`."""
    if rules.interactive is None:
        return rules
    bounds = {f"{time}_p95_ms": bound for time, bound in slo_ms.items()}
    interactive = rules.interactive.model_copy(update=bounds)
    return rules.model_copy(update={"interactive": interactive})


def course_of(
    policy: Policy,
    scenario: Scenario,
    rules: AdmissionRules,
    *,
    sight: Sight | None = None,
    passed: Callable[[float], None] | None = None,
) -> Course:
    """Runs one policy. `sight`: the information that its admission gets, by default all. `passed`:
    gets the seconds of virtual time that are over, now and then."""

    def front(outcomes: Outcomes) -> Direct:
        if policy is Policy.POLICY:
            return Admitted(rules, sight or Sight(), outcomes, scenario.seed)
        if policy is Policy.FIFO:
            plain = Sight(classes=False, measured=False, cache=False)
            return Admitted(plain_rules(rules), plain, outcomes, scenario.seed)
        return Direct(outcomes)

    by_priority = policy in (Policy.POLICY, Policy.PRIORITY)
    run = Run(
        replace(scenario.shape, by_priority=by_priority),
        scenario.arrivals(),
        scenario.seconds,
        front,
        scenario.seed,
        scenario.retry,
        scenario.clients,
        passed,
    )
    return run.to_the_end()


def compare(
    scenario: Scenario,
    rules: AdmissionRules,
    policies: Many[Policy],
    begins: Callable[[Policy], Callable[[float], None] | None] = lambda policy: None,
) -> dict[str, Figures]:
    """Returns the figures of each policy by the SLOs of the rules. `begins`: is told which policy
    is next, and returns what gets the seconds that are over."""
    slo_ms = {each: rules.of(each).ttft_p95_ms for each in ServiceClass}
    return {
        policy: figures(course_of(policy, scenario, rules, passed=begins(policy)), slo_ms)
        for policy in policies
    }


def capacity(shape: EngineShape, workload: Traffic, seed: int) -> float:
    """Returns the engine's throughput of this mix while its queue is never empty, requests/s."""
    return full_load(shape, workload, seed).requests_per_s


def unloaded_ttft_p95_ms(shape: EngineShape, workload: Traffic, seed: int) -> float:
    """Returns the p95 TTFT of interactive requests at a low load."""
    alone = workload.alone(ServiceClass.INTERACTIVE)
    one_s = alone.prompt / shape.prefill_tokens_per_s + alone.output * shape.step_ms(1) / 1000
    rate = _LOW_LOAD / one_s
    arrivals = alone.arrivals(rate, ceil(_ALONE / rate), seed)
    course = Run(shape, arrivals, ceil(_ALONE / rate), Direct, seed).to_the_end()
    done = (record.completed for record in course.records)
    p95_s = percentile([each.ttft_s for each in done if each and each.ttft_s is not None], 95)
    assert p95_s is not None, "all requests have ended"
    return 1000 * p95_s
