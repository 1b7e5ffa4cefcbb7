"""One run from end to end: look at the engine, warm up, measure, look again, judge.

Coalescing is never used: a decode that serves several requests says nothing of throughput.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from orch_sidecar.bench import arrivals
from orch_sidecar.bench.about import host
from orch_sidecar.bench.call import Call, Fate
from orch_sidecar.bench.endpoint import Endpoint, EndpointError
from orch_sidecar.bench.idle import snapshot_when_idle
from orch_sidecar.bench.load import Load, Message, Pulse
from orch_sidecar.bench.progress import Progress
from orch_sidecar.bench.prompts import Prompt, body
from orch_sidecar.bench.result import Result
from orch_sidecar.bench.scenario import Scenario
from orch_sidecar.bench.summary import Given, Run, result_of
from orch_sidecar.facts.measured import Arrivals
from orch_sidecar.facts.snapshot import NotASnapshot, Snapshot
from orch_sidecar.facts.verdict import objections

# Prompts of the warm-up and of the measurement must not be the same: their prefixes are cached.
_WARM_UP_SEED: Final = 1_000_003


class NotMeasurable(Exception):
    """What was asked for cannot be measured there; the message says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured where. `prompts`: for a seed, as many as are taken."""

    endpoint: Endpoint
    model: str
    pool: str | None
    scenario: Scenario
    prompts: Callable[[int], Iterator[Prompt]]
    prompts_told: str
    ignore_eos: bool
    given: Given


async def measure(plan: Plan) -> Result:
    """Runs it; Ctrl-C ends it early. Raises EndpointError and NotMeasurable."""
    scenario = plan.scenario
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{scenario.label.value}-{secrets.token_hex(3)}"
    before = await _look(plan)
    _object(plan, before)
    await _warm_up(plan, name)
    before = await _look(plan)
    began_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    title = f"{scenario.label} {scenario.text}"
    with Progress(title, _expected(scenario), scenario.least_seconds) as progress:
        load = Load(plan.endpoint, lambda call: progress.ended(load.now()))
        messages = _messages(plan, name, plan.scenario.seed)
        pulse = await _interruptible(load, _work(load, scenario, messages))
    after = await _look(plan)
    _count(load.calls)
    if (before is None) != (after is None):
        raise EndpointError("the endpoint told its capabilities at one end of the run only")
    return result_of(
        Run(
            id=name,
            began_at=began_at,
            endpoint=plan.endpoint.url,
            model=plan.model,
            prompts=plan.prompts_told,
            scenario=scenario,
            calls=load.calls,
            pulse=pulse,
            host=asdict(host()),
            stopped=load.stopped,
            given=plan.given,
            documents=[before[0], after[0]] if before and after else (),
            snapshots=(before[1], after[1]) if before and after else None,
        )
    )


async def _look(plan: Plan) -> tuple[Any, Snapshot] | None:
    try:
        return await snapshot_when_idle(plan.endpoint, plan.pool)
    except NotASnapshot as error:
        raise NotMeasurable(f"{plan.endpoint.url}/v1/capabilities: {error}") from error


def _object(plan: Plan, before: tuple[Any, Snapshot] | None) -> None:
    label = plan.scenario.label
    if before is not None:
        reasons = objections(label, before[1])
        if reasons:
            raise NotMeasurable("; ".join(reasons))
    elif label.value == "single_stream":
        raise NotMeasurable(
            f"{plan.endpoint.url} has no /v1/capabilities: single_stream is measured only "
            "where the pool says that it is single_stream with one slot"
        )


async def _warm_up(plan: Plan, name: str) -> None:
    """Some requests that do not count."""
    scenario = plan.scenario
    if not scenario.warm_up:
        return
    load = Load(plan.endpoint, lambda call: None)
    messages = _messages(plan, f"{name}.warmup", scenario.seed + _WARM_UP_SEED)
    clients = min(scenario.warm_up, scenario.clients or 4)
    work = load.closed(messages, clients, lambda sent, _: sent >= scenario.warm_up)
    await _interruptible(load, work)
    if load.stopped:
        raise NotMeasurable("it was stopped during the warm-up")
    failed = [call for call in load.calls if call.fate is not Fate.ANSWERED]
    if len(failed) == len(load.calls):
        raise NotMeasurable(f"no request of the warm-up was answered: {failed[0].why}")


def _work(load: Load, scenario: Scenario, messages: Iterator[Message]) -> Any:
    requests, seconds = scenario.least_requests, scenario.least_seconds
    if scenario.clients is not None:
        return load.closed(
            messages, scenario.clients, lambda sent, now_s: sent >= requests and now_s >= seconds
        )
    if scenario.arrivals is Arrivals.AT_ONCE:
        return load.at_once([next(messages) for _ in range(requests)])
    return load.open(messages, arrivals.until(_schedule(scenario), requests, seconds))


def _schedule(scenario: Scenario) -> Iterator[float]:
    rate = scenario.rate_per_s
    assert rate is not None
    if scenario.arrivals is Arrivals.GAMMA:
        assert scenario.burstiness is not None
        return arrivals.gamma(rate, scenario.burstiness, scenario.seed)
    if scenario.arrivals is Arrivals.CONSTANT:
        return arrivals.constant(rate)
    return arrivals.poisson(rate, scenario.seed)


def _expected(scenario: Scenario) -> int:
    rate = scenario.rate_per_s or 0.0
    return max(1, scenario.least_requests, round(rate * scenario.least_seconds))


def _messages(plan: Plan, name: str, seed: int) -> Iterator[Message]:
    fields = {"X-Orch-No-Coalesce": "true", "X-Orch-Scenario": name}
    if plan.pool is not None:
        fields["X-Orch-Pool"] = plan.pool
    for prompt in plan.prompts(seed):
        written = body(prompt, plan.model, ignore_eos=plan.ignore_eos)
        yield plan.endpoint.message(prompt.path, written, fields)


async def _interruptible(load: Load, work: Any) -> Pulse:
    """Runs the work; the first Ctrl-C stops it, and what there is counts."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, load.stop)
    try:
        return await load.watched(work)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _count(calls: list[Call]) -> None:
    """Tokens of answers that do not tell them are counted by their events."""
    for call in calls:
        if call.fate is Fate.ANSWERED and call.output_tokens is None:
            call.output_tokens = len(call.event_s)
            call.input_tokens = call.input_tokens or 0
            call.counted_by_events = True
