"""One run from end to end: look at the engine, warm up, measure, look again, judge.

Coalescing is never used: a decode that serves several requests says nothing of throughput. Nor
does the engine's prefix cache answer with what other runs have left in it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from orch_sidecar.tools.bench.load import arrivals
from orch_sidecar.tools.bench.load.call import Ask, Call, Fate
from orch_sidecar.tools.bench.load.driver import Load, TooManyConnections, Work, allow
from orch_sidecar.tools.bench.load.endpoint import Endpoint, EndpointError
from orch_sidecar.tools.bench.load.interrupt import Interrupted, unless
from orch_sidecar.tools.bench.load.progress import Progress
from orch_sidecar.tools.bench.load.prompts import Prompt, body
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.identity import Given, identity, lacking
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.summary import Run, result_of
from orch_sidecar.tools.bench.runs.client_host import host
from orch_sidecar.tools.bench.runs.idle import READY, Look, look, look_when_idle
from orch_sidecar.tools.facts.evidence.measured import Arrivals
from orch_sidecar.tools.facts.evidence.verdict import objections
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.scenarios import WARMUP

# Prompts of the warm-up and of the measurement must not be the same: their prefixes are cached.
_WARM_UP_SEED: Final = 1_000_003
_WARM_UP_CLIENTS: Final = 4  # of a schedule


class NotMeasurable(Exception):
    """What was asked for cannot be measured there; the message says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured where. `prompts`: for a seed, as many as are taken, or as
    `most_prompts` says.

    `for_row`: its result is to become a row, too.
    """

    endpoint: Endpoint
    model: str
    pool: str | None
    scenario: Scenario
    prompts: Callable[[int], Iterator[Prompt]]
    prompts_told: str
    ignore_eos: bool
    given: Given
    for_row: bool = False
    most_prompts: int | None = None


async def measure(plan: Plan, interrupted: asyncio.Event, *, trial: bool = False) -> Result:
    """Runs it. An interruption ends it early: what was measured by then is in the result.

    `trial`: see `summary.Run`. Raises EndpointError and NotMeasurable; Interrupted where nothing
    was measured yet; ValueError for a schedule that is too long.
    """
    scenario = plan.scenario
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{scenario.label.value}-{secrets.token_hex(3)}"
    due_s = _schedule(scenario)
    first = await unless(interrupted, look(plan.endpoint, plan.pool))
    _object(plan, first, _needed(scenario, due_s))
    # A salt is vLLM's word, and only vLLM is asked to ignore the end or tells its capabilities.
    salted = plan.ignore_eos or first is not None
    before = await unless(interrupted, _warm_up(plan, name, first, salted=salted))
    began_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    title = f"{scenario.label} {scenario.text}"
    with Progress(title, *_expected(scenario, due_s)) as progress:
        load = Load(plan.endpoint, lambda call: progress.ended(load.now()), interrupted)
        asks = _asks(plan, name, scenario.seed, salted=salted)
        pulse = await load.watched(_work(load, scenario, asks, due_s))
    interrupted.clear()  # the next one is about waiting for what the engine says
    after, unread = await _afterwards(plan, before, load.calls, interrupted)
    return result_of(
        Run(
            id=name,
            began_at=began_at,
            endpoint=plan.endpoint.url,
            model=plan.model,
            prompts=plan.prompts_told,
            cache_salt=name if salted else None,
            scenario=scenario,
            calls=load.calls,
            pulse=pulse,
            host=asdict(host()),
            given=plan.given,
            stopped=load.stopped or interrupted.is_set(),
            ended_by=load.ended_by,
            trial=trial,
            documents=[each.document for each in (before, after) if each is not None],
            restless=_restless(before=before, after=after),
            before=None if before is None else before.snapshot,
            after=None if after is None else after.snapshot,
            unread=unread,
        )
    )


def _object(plan: Plan, found: Look | None, prompts: int) -> None:
    """Raises NotMeasurable where it is clear beforehand that nothing would come of it.

    `prompts`: that many are taken at least.
    """
    label = plan.scenario.label
    reasons = []
    if found is not None:
        reasons += objections(label, found.snapshot)
        if found.state != READY:
            reasons.append(f"the pool {found.snapshot.pool!r} is {found.state}")
        if plan.model not in found.snapshot.models:
            served = ", ".join(found.snapshot.models)
            reasons.append(f"the model {plan.model!r} is not served there, but {served}")
    elif label is Label.SINGLE_STREAM:
        reasons.append(
            f"{plan.endpoint.url} has no /v1/capabilities: single_stream is measured only "
            "where the pool says that it is single_stream with one slot"
        )
    if plan.for_row:
        told = None if found is None else found.snapshot
        reasons += lacking(identity(plan.model, told, plan.given))
    if plan.most_prompts is not None and prompts > plan.most_prompts:
        reasons.append(
            f"{prompts} prompts are needed at least, and of that length there are "
            f"{plan.most_prompts}: ask for longer ones"
        )
    try:
        at_once = plan.scenario.arrivals is Arrivals.AT_ONCE
        allow(plan.scenario.least_requests if at_once else plan.scenario.clients or 0)
    except TooManyConnections as error:
        reasons.append(str(error))
    if reasons:
        raise NotMeasurable("; ".join(reasons))


def _needed(scenario: Scenario, due_s: tuple[float, ...]) -> int:
    """How many prompts its longest part takes at least: each client has the next one ready."""
    measured = len(due_s) or scenario.least_requests + (scenario.clients or 0)
    warm_up = scenario.warm_up and scenario.warm_up + _warm_up_clients(scenario)
    return max(measured, warm_up)


def _warm_up_clients(scenario: Scenario) -> int:
    return min(scenario.warm_up, scenario.clients or _WARM_UP_CLIENTS)


async def _warm_up(plan: Plan, name: str, first: Look | None, *, salted: bool) -> Look | None:
    """Some requests that do not count; returns what the engine says once they are over."""
    scenario = plan.scenario
    answered = 0
    if scenario.warm_up:
        load = Load(plan.endpoint, lambda call: None)
        asks = _asks(plan, name + WARMUP, scenario.seed + _WARM_UP_SEED, salted=salted)
        clients = _warm_up_clients(scenario)
        await load.watched(load.closed(asks, clients, lambda sent, _: sent >= scenario.warm_up))
        answered = sum(call.fate is Fate.ANSWERED for call in load.calls)
        if not answered:
            why = load.calls[0].why
            raise NotMeasurable(f"no request of the warm-up was answered: {why}")
    if first is None:
        return None
    return await look_when_idle(plan.endpoint, plan.pool, first, answered)


async def _afterwards(
    plan: Plan, before: Look | None, calls: list[Call], interrupted: asyncio.Event
) -> tuple[Look | None, str]:
    """What the engine says now, or why that cannot be known; what was measured is not lost."""
    if before is None:
        return None, ""
    answered = sum(call.fate is Fate.ANSWERED for call in calls)
    looking = look_when_idle(plan.endpoint, plan.pool, before, answered)
    try:
        found = await unless(interrupted, looking)
    except Interrupted:
        return None, "nobody waited until it told"
    except EndpointError as error:
        return None, str(error)
    if found.state != READY:
        return None, f"it is {found.state}"
    return found, ""


def _restless(**looks: Look | None) -> list[str]:
    return [when for when, found in looks.items() if found is not None and not found.idle]


def _work(load: Load, scenario: Scenario, asks: Iterator[Ask], due_s: tuple[float, ...]) -> Work:
    requests, seconds = scenario.least_requests, scenario.least_seconds
    if scenario.clients is not None:
        return load.closed(
            asks, scenario.clients, lambda sent, now_s: sent >= requests and now_s >= seconds
        )
    if scenario.arrivals is Arrivals.AT_ONCE:
        return load.at_once([next(asks) for _ in range(requests)])
    return load.open(asks, due_s)


def _schedule(scenario: Scenario) -> tuple[float, ...]:
    """When its requests are due; nothing where they come by other things than time."""
    rate = scenario.rate_per_s
    if rate is None:
        return ()
    match scenario.arrivals:
        case Arrivals.CONSTANT:
            times = arrivals.constant(rate)
        case Arrivals.GAMMA:
            assert scenario.burstiness is not None
            times = arrivals.gamma(rate, scenario.burstiness, scenario.seed)
        case _:
            times = arrivals.poisson(rate, scenario.seed)
    return arrivals.until(times, scenario.least_requests, scenario.least_seconds)


def _expected(scenario: Scenario, due_s: tuple[float, ...]) -> tuple[int, float]:
    """After how many requests and seconds it will be over."""
    at_once = scenario.arrivals is Arrivals.AT_ONCE
    return len(due_s) or scenario.least_requests, 0.0 if at_once else scenario.least_seconds


def _asks(plan: Plan, name: str, seed: int, *, salted: bool) -> Iterator[Ask]:
    """Requests without end, of the scenario of that name."""
    fields = {"X-Orch-No-Coalesce": "true", "X-Orch-Scenario": name}
    if plan.pool is not None:
        fields["X-Orch-Pool"] = plan.pool
    for prompt in plan.prompts(seed):
        written = body(prompt, plan.model, ignore_eos=plan.ignore_eos)
        if salted:
            written = with_salt(written, name)
        yield Ask(
            plan.endpoint.message(prompt.path, written, fields),
            prompt.input_tokens,
            prompt.output_tokens if plan.ignore_eos else None,
        )


def with_salt(written: bytes, salt: str) -> bytes:
    """A request's JSON, with a prefix cache of its own: of vLLM's, and no part of OpenAI's API.

    Without it a second run of the same seed, or of the same file, finds its prompts computed.
    """
    assert written.endswith(b"}")
    return written[:-1] + b',"cache_salt":"' + salt.encode("ascii") + b'"}'
