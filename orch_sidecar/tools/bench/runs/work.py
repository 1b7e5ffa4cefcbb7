"""The requests of a run, and the work of the load generator that sends them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from orch_sidecar.api.headers import (
    X_ORCH_CLASS,
    X_ORCH_NO_COALESCE,
    X_ORCH_POOL,
    X_ORCH_RUN,
    X_ORCH_SCENARIO,
)
from orch_sidecar.tools.bench.load.call import Request
from orch_sidecar.tools.bench.load.driver import LoadGenerator, Work, side_by_side
from orch_sidecar.tools.bench.load.prompts import Prompt, body
from orch_sidecar.tools.bench.load.scenario import Plan, Scenario
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.traces.scenarios import WARMUP
from vllm_plugin.contracts.profile import ServiceClass

# The warm-up has its own prompts, or the measurement would find them in the prefix cache.
_WARM_UP_SEED: Final = 1_000_003
_WARM_UP_CLIENTS: Final = 4  # of an open loop


@dataclass(frozen=True, slots=True)
class RunId:
    """The id of a run.

    `name`: of its result and its scenario, for everybody to read. `secret`: only its requests have
    it, which distinguishes them from those of others that join the scenario. `salt`: separates its
    prompts from those of other runs in the prefix cache; empty where none is sent.
    """

    name: str
    secret: str
    salt: str

    @classmethod
    def of(cls, scenario: Scenario, *, salted: bool) -> RunId:
        """Returns a new one."""
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{scenario.label}-{secrets.token_hex(3)}"
        return cls(name, secrets.token_hex(16), name if salted else "")


def work_of(plan: Plan, run: RunId, load: LoadGenerator, due_s: tuple[float, ...]) -> Work:
    """Returns the work of the run's scenario. `due_s`: of its schedule."""
    scenario, replay = plan.scenario, plan.scenario.replay
    count, seconds = scenario.least_requests, scenario.least_seconds
    requests = requests_of(plan, run, scenario.seed)
    if replay is not None:
        # Built before the first one is due: long ones take time.
        traced = [_request(plan, run, *each) for each in replay.prompts(plan.ids, scenario.seed)]
        return side_by_side(
            load.open_loop(iter(traced), due_s),
            load.closed_loop(requests, replay.bulk_clients, lambda _, now_s: now_s >= due_s[-1]),
        )
    if scenario.clients is not None:
        return load.closed_loop(
            requests, scenario.clients, lambda sent, now_s: sent >= count and now_s >= seconds
        )
    if scenario.arrivals is Arrivals.AT_ONCE:  # built before they are due
        requests = iter(list(islice(requests, count)))
    return load.open_loop(requests, due_s)


def warm_up_of(plan: Plan, run: RunId, load: LoadGenerator) -> Work:
    """Returns the work before the measurement, in a scenario and a cache of its own."""
    count = plan.scenario.warm_up_requests
    its_own = replace(run, name=run.name + WARMUP, salt=run.salt and run.salt + WARMUP)
    requests = requests_of(plan, its_own, plan.scenario.seed + _WARM_UP_SEED)
    clients = min(count, plan.scenario.clients or _WARM_UP_CLIENTS)
    return load.closed_loop(requests, clients, lambda sent, _: sent >= count)


def requests_of(plan: Plan, run: RunId, seed: int) -> Iterator[Request]:
    """Yields requests, without end, that belong to the scenario of the run's name."""
    # Beside a trace these are the bulk ones.
    service_class = None if plan.scenario.replay is None else ServiceClass.BULK
    for prompt in plan.prompts(seed):
        yield _request(plan, run, prompt, service_class)


def _request(plan: Plan, run: RunId, prompt: Prompt, service_class: ServiceClass | None) -> Request:
    fields: dict[str, str] = {
        X_ORCH_NO_COALESCE: "true",
        X_ORCH_SCENARIO: run.name,
        X_ORCH_RUN: run.secret,
    }
    if plan.pool is not None:
        fields[X_ORCH_POOL] = plan.pool
    if service_class is not None:
        fields[X_ORCH_CLASS] = service_class.value
    written = body(prompt, plan.model, ignore_eos=plan.ignore_eos, salt=run.salt)
    return Request(
        plan.endpoint.message(prompt.path, written, fields),
        prompt.input_tokens,
        prompt.output_tokens if plan.ignore_eos else None,
        service_class,
    )
