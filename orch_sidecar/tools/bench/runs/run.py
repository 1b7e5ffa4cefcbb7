"""One run from end to end: read the engine's state, warm up, measure, read it again, judge.

Requests are never coalesced, as one generation for several requests would inflate the
throughput, and a salt keeps the engine's prefix cache from hits on earlier runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from orch_sidecar.api.options import run_digest
from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.load.call import Call, ClientHealth, Fate
from orch_sidecar.tools.bench.load.capabilities import (
    READY,
    Capabilities,
    accepted_of_others,
    read_capabilities,
    wait_until_idle,
)
from orch_sidecar.tools.bench.load.driver import (
    Interrupted,
    LoadGenerator,
    Work,
    cancel_and_wait,
    unless_interrupted,
)
from orch_sidecar.tools.bench.load.endpoint import EndpointError
from orch_sidecar.tools.bench.load.scenario import Scenario, schedule
from orch_sidecar.tools.bench.machine import host
from orch_sidecar.tools.bench.plan import Plan, logs_beside
from orch_sidecar.tools.bench.results.result import (
    EvidenceDocument,
    Result,
    contradictions,
    identity,
    missing_identity,
)
from orch_sidecar.tools.bench.results.summary import FinishedRun, result_of
from orch_sidecar.tools.bench.runs.evidence import StatementsOfRun
from orch_sidecar.tools.bench.runs.loadgen import Loadgen
from orch_sidecar.tools.bench.runs.work import RunId, expected, requests_of, work_of
from orch_sidecar.tools.facts.labels.judge import cannot_earn
from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.scenarios import WARMUP
from orch_sidecar.tools.terminal import Progress

# The warm-up has its own prompts, or the measurement would find them in the prefix cache.
_WARM_UP_SEED: Final = 1_000_003
_WARM_UP_CLIENTS: Final = 4  # of an open loop

_BUSY: Final = "the engine is not idle before the run: it serves requests of others"


class NotMeasurable(Unavailable):
    """The plan cannot be measured at this endpoint; the message gives the reasons."""


class _Disturbed(Exception):
    """Others use the engine; the message says how."""


def silent(text: str) -> None:
    """Prints nothing."""


async def measure(
    plan: Plan,
    interrupted: asyncio.Event,
    report: Callable[[str], None] = silent,
    *,
    trial: bool = False,
) -> Result:
    """Runs the plan. An interruption ends it early with the result of what was measured.

    A request of others ends a run within seconds, and it begins again, with other prompts in an
    empty cache, up to `plan.restarts` times. `report`: prints that. `trial`: see
    `summary.FinishedRun`. Raises EndpointError and NotMeasurable; Interrupted where nothing was
    measured yet; ValueError for a schedule that is too long.
    """
    for left in range(plan.restarts, 0, -1):
        try:
            return await _measure_once(plan, interrupted, trial=trial, is_last=False)
        except _Disturbed as others:
            report(f"{others}; the run begins again ({left} of {plan.restarts} times left)")
    return await _measure_once(plan, interrupted, trial=trial, is_last=True)


async def _measure_once(
    plan: Plan, interrupted: asyncio.Event, *, trial: bool, is_last: bool
) -> Result:
    """Runs the plan as `measure` does. Raises _Disturbed, unless `is_last`."""
    run, scenario = RunId.new(plan.scenario.label), plan.scenario
    due_s = schedule(scenario)
    first = await unless_interrupted(interrupted, read_capabilities(plan.endpoint, plan.pool))
    _check_measurable(plan, first)
    # The salt is vLLM's field: an endpoint with ignore_eos or capabilities knows it.
    if plan.ignore_eos or first is not None:
        run = replace(run, salt=run.name)
    scenario = replace(
        scenario,
        prompts=plan.prompts_text,
        cache_salt=run.salt or None,
        trace=None if scenario.replay is None else scenario.replay.document,
    )
    with Progress("warming up"):
        before = await unless_interrupted(interrupted, _warm_up(plan, run, first))
    if before is not None and not before.idle:
        raise (NotMeasurable if is_last else _Disturbed)(_BUSY)
    statements = StatementsOfRun(plan, run.name, before)
    await unless_interrupted(interrupted, statements.begin())
    began_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    title = f"{scenario.label} {scenario.text}"
    length = expected(scenario, due_s)
    with Progress(title) as progress:
        load = LoadGenerator(plan.endpoint, lambda: _show(progress, load, *length), interrupted)
        loadgen = _loadgen(plan, run)
        work = work_of(plan, run, load, due_s, loadgen)
        client_health, disturbed = await _load(plan, before, load, work, interrupted)
    interrupted.clear()  # the next one ends the waits for the engine's report and statement
    if disturbed and not is_last:
        raise _Disturbed(disturbed)
    with Progress("waiting for the engine's report"):
        after, unread_reason = await _afterwards(plan, before, load.calls, interrupted)
    evidence = await _evidence(statements, interrupted)
    return result_of(
        FinishedRun(
            id=run.name,
            digest=run_digest(run.secret),
            began_at=began_at,
            endpoint=plan.endpoint.url,
            model=plan.model,
            scenario=scenario,
            calls=load.calls,
            client_health=client_health,
            host=host(),
            given=plan.given,
            stopped=(load.stopped and not disturbed) or interrupted.is_set(),
            trial=trial,
            disturbed=disturbed,
            before=before,
            after=after,
            unread_reason=unread_reason,
            evidence=evidence,
            loadgen=None if loadgen is None else loadgen.document(load.calls),
        )
    )


def _show(progress: Progress, load: LoadGenerator, requests: int, seconds: float) -> None:
    """Shows how much of a run is over, which ends when these have ended and passed."""
    over = load.now() / seconds if seconds else 1.0
    progress.share = min(1.0, over, load.ended / requests)
    progress.detail = f"{load.ended} requests"


def _loadgen(plan: Plan, run: RunId) -> Loadgen | None:
    if plan.scenario.loadgen is None:
        return None
    beside = plan.loadgen_logs or logs_beside(Path(f"orch-bench-{run.name}.json"))
    return Loadgen(plan.scenario, beside)


async def _load(
    plan: Plan,
    before: Capabilities | None,
    load: LoadGenerator,
    work: Work,
    stopping: asyncio.Event,
) -> tuple[ClientHealth, str]:
    """Performs the work, and stops it once others have sent a request.

    Returns how many, and when it was seen; an empty text if they have not.
    """

    def sent() -> int:
        return sum(call.reached for call in load.calls)

    async def watch(since: Snapshot) -> str:
        others = await accepted_of_others(plan.endpoint, plan.pool, since, sent)
        stopping.set()
        requests = "a request" if others == 1 else f"{others} requests"
        return f"{requests} of others entered the engine within {load.now():.0f} s of the start"

    if before is None:
        return await load.run(work), ""
    watching = asyncio.create_task(watch(before.snapshot))
    try:
        client_health = await load.run(work)
    finally:
        await cancel_and_wait([watching])
    return client_health, "" if watching.cancelled() else watching.result()


def _check_measurable(plan: Plan, found: Capabilities | None) -> None:
    """Raises NotMeasurable where the run would be invalid or could not become a row."""
    label = plan.scenario.label
    reasons = []
    if found is not None:
        reasons += [each.detail for each in cannot_earn(label, found.snapshot)]
        reasons += contradictions(found.snapshot, plan.given)
        if found.snapshot.state != READY:
            reasons.append(
                f"the pool {found.snapshot.pool!r} is {found.snapshot.state}: it must be ready"
            )
        if plan.model not in found.snapshot.models:
            served = ", ".join(found.snapshot.models)
            reasons.append(f"the pool does not serve the model {plan.model!r}, but {served}")
    elif label is Label.SINGLE_STREAM:
        reasons.append(
            f"{plan.endpoint.url} has no /v1/capabilities: single_stream needs a pool that "
            "reports single_stream with one slot"
        )
    if plan.for_row:
        snapshot = None if found is None else found.snapshot
        reasons += missing_identity(identity(plan.model, snapshot, plan.given))
    if reasons:
        raise NotMeasurable("; ".join(reasons))


def _warm_up_clients(scenario: Scenario) -> int:
    return min(scenario.warm_up_requests, scenario.clients or _WARM_UP_CLIENTS)


async def _warm_up(plan: Plan, run: RunId, first: Capabilities | None) -> Capabilities | None:
    """Sends the warm-up; returns the engine's capabilities once it is idle again."""
    scenario = plan.scenario
    answered = 0
    if scenario.warm_up_requests:
        load = LoadGenerator(plan.endpoint)
        its_own = replace(run, name=run.name + WARMUP, salt=run.salt and run.salt + WARMUP)
        requests = requests_of(plan, its_own, scenario.seed + _WARM_UP_SEED)
        clients = _warm_up_clients(scenario)
        await load.run(
            load.closed_loop(requests, clients, lambda sent, _: sent >= scenario.warm_up_requests)
        )
        answered = sum(call.fate is Fate.ANSWERED for call in load.calls)
        if not answered:
            why = load.calls[0].why
            raise NotMeasurable(f"no request of the warm-up was answered: {why}")
    if first is None:
        return None
    return await wait_until_idle(plan.endpoint, plan.pool, first, answered)


async def _afterwards(
    plan: Plan, before: Capabilities | None, calls: list[Call], interrupted: asyncio.Event
) -> tuple[Capabilities | None, str]:
    """Returns the engine's capabilities, or why they are unknown; an error keeps the result."""
    if before is None:
        return None, ""
    answered = sum(call.fate is Fate.ANSWERED for call in calls)
    looking = wait_until_idle(plan.endpoint, plan.pool, before, answered)
    try:
        found = await unless_interrupted(interrupted, looking)
    except Interrupted:
        return None, "interrupted before the engine's next report"
    except EndpointError as error:
        return None, str(error)
    if found.snapshot.state != READY:
        return None, f"the engine is {found.snapshot.state}"
    return found, ""


async def _evidence(statements: StatementsOfRun, interrupted: asyncio.Event) -> EvidenceDocument:
    try:
        return await unless_interrupted(interrupted, statements.end())
    except Interrupted:
        return EvidenceDocument(missing="interrupted before the engine's statement")
