"""The requests of a run, and the work of the load generator that sends them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from orch_sidecar.api.headers import (
    X_ORCH_CLASS,
    X_ORCH_NO_COALESCE,
    X_ORCH_RUN,
    X_ORCH_SCENARIO,
)
from orch_sidecar.tools.bench.load.call import Request
from orch_sidecar.tools.bench.load.driver import LoadGenerator, Work, side_by_side
from orch_sidecar.tools.bench.load.prompts import Prompt, body
from orch_sidecar.tools.bench.load.scenario import Plan, traced_prompts
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.traces.traffic import WARMUP
from vllm_plugin.contracts.profile import ServiceClass

# The warm-up has its own prompts, or the measurement would find them in the prefix cache.
_WARM_UP_SEED: Final = 1_000_003
_WARM_UP_CLIENTS: Final = 4  # of an open loop


def sending(plan: Plan, name: str, secret: str) -> Plan:
    """Returns the plan with the header fields of each request of a run, which are never coalesced.

    `name`: of its scenario, for everybody to read. `secret`: only its requests have it, which
    distinguishes them from those of others that join the scenario.
    """
    fields: dict[str, str] = {X_ORCH_NO_COALESCE: "true", X_ORCH_SCENARIO: name, X_ORCH_RUN: secret}
    return replace(plan, endpoint=plan.endpoint.adding(fields))


def work_of(plan: Plan, load: LoadGenerator, due_s: tuple[float, ...]) -> Work:
    """Returns the work of the run's scenario. `plan`: of `sending`. `due_s`: of its schedule."""
    scenario, trace = plan.scenario, plan.scenario.trace
    count, seconds = scenario.least_requests, scenario.least_seconds
    requests = requests_of(plan)
    if trace is not None:
        # Built before the first one is due: long ones take time.
        prompts = traced_prompts(scenario.replay, plan.ids, scenario.seed)
        traced = [_request(plan, *each) for each in prompts]
        return side_by_side(
            load.open_loop(iter(traced), due_s),
            load.closed_loop(requests, trace.bulk_clients, lambda _, now_s: now_s >= due_s[-1]),
        )
    if scenario.clients is not None:
        return load.closed_loop(
            requests, scenario.clients, lambda sent, now_s: sent >= count and now_s >= seconds
        )
    if scenario.arrivals is Arrivals.AT_ONCE:  # built before they are due
        requests = iter(list(islice(requests, count)))
    return load.open_loop(requests, due_s)


def warm_up_of(plan: Plan, load: LoadGenerator) -> Work:
    """Returns the work before the measurement, in a scenario and a cache of its own."""
    scenario, name = plan.scenario, plan.endpoint.fields[X_ORCH_SCENARIO] + WARMUP
    count, salt = scenario.warm_up_requests, None if scenario.cache_salt is None else name
    its_own = replace(
        plan,
        endpoint=plan.endpoint.adding({X_ORCH_SCENARIO: name}),
        scenario=replace(scenario, seed=scenario.seed + _WARM_UP_SEED, cache_salt=salt),
    )
    clients = min(count, scenario.clients or _WARM_UP_CLIENTS)
    return load.closed_loop(requests_of(its_own), clients, lambda sent, _: sent >= count)


def requests_of(plan: Plan) -> Iterator[Request]:
    """Yields requests, without end; beside a trace these are the bulk ones."""
    service_class = None if plan.scenario.trace is None else ServiceClass.BULK
    for prompt in plan.prompts(plan.scenario.seed):
        yield _request(plan, prompt, service_class)


def _request(plan: Plan, prompt: Prompt, service_class: ServiceClass | None) -> Request:
    own = {} if service_class is None else {str(X_ORCH_CLASS): service_class.value}
    salt = plan.scenario.cache_salt
    written = body(prompt, plan.model, ignore_eos=plan.ignore_eos, salt=salt)
    return Request(
        plan.endpoint.message(prompt.path, written, own),
        prompt.input_tokens,
        prompt.output_tokens if plan.ignore_eos else None,
        service_class,
    )
