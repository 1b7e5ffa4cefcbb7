"""The requests of a run, and the work of the load generator that sends them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

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
from orch_sidecar.tools.bench.load.scenario import Replay, Scenario
from orch_sidecar.tools.bench.plan import Plan
from orch_sidecar.tools.bench.runs.loadgen import Loadgen
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from vllm_plugin.contracts.profile import ServiceClass


@dataclass(frozen=True, slots=True)
class RunId:
    """The id of a run.

    `name`: of its result and its scenario, for everybody to read. `secret`: only its requests have
    it, which distinguishes them from those of others that join the scenario. `salt`: separates its
    prompts from those of other runs in the prefix cache; empty where none is sent.
    """

    name: str
    secret: str
    salt: str = ""

    @classmethod
    def new(cls, label: Label) -> RunId:
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{label.value}-{secrets.token_hex(3)}"
        return cls(name, secrets.token_hex(16))


def work_of(
    plan: Plan,
    run: RunId,
    load: LoadGenerator,
    due_s: tuple[float, ...],
    loadgen: Loadgen | None = None,
) -> Work:
    """Returns the work of the run's scenario. `due_s`: of its schedule; `loadgen`: what decides
    instead when requests are sent."""
    scenario = plan.scenario
    count, seconds = scenario.least_requests, scenario.least_seconds
    requests = requests_of(plan, run, scenario.seed)
    if loadgen is not None:
        return loadgen.work(load, requests)
    if scenario.replay is not None:
        replayed = load.open_loop(iter(_replayed(plan, run, scenario.replay)), due_s)
        beside = load.closed_loop(
            requests, scenario.replay.bulk_clients, lambda _, now_s: now_s >= due_s[-1]
        )
        return side_by_side(replayed, beside)
    if scenario.clients is not None:
        return load.closed_loop(
            requests, scenario.clients, lambda sent, now_s: sent >= count and now_s >= seconds
        )
    if scenario.arrivals is Arrivals.AT_ONCE:  # built before they are due
        requests = iter(list(islice(requests, count)))
    return load.open_loop(requests, due_s)


def expected(scenario: Scenario, due_s: tuple[float, ...]) -> tuple[int, float]:
    """Returns the requests and seconds after which the run ends, for the progress bar."""
    return len(due_s) or scenario.least_requests, due_s[-1] if due_s else scenario.least_seconds


def requests_of(plan: Plan, run: RunId, seed: int) -> Iterator[Request]:
    """Yields requests, without end, that belong to the scenario of the run's name."""
    # Beside a trace these are the bulk ones.
    service_class = None if plan.scenario.replay is None else ServiceClass.BULK
    for prompt in plan.prompts(seed):
        yield _request(plan, run, prompt, service_class)


def _replayed(plan: Plan, run: RunId, replay: Replay) -> list[Request]:
    """Returns the requests of a trace, built before the first one is due: long ones take time."""
    prompts = replay.prompts(plan.ids, plan.scenario.seed)
    return [_request(plan, run, prompt, service_class) for prompt, service_class in prompts]


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
