"""One run from end to end: read the engine's state, warm up, measure, read it again, judge.

Requests are never coalesced, as one generation for several requests would inflate the
throughput, and a salt keeps the engine's prefix cache from hits on earlier runs. An endpoint that
signs no statements before and after, or fails to, costs the row its evidence and the run nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from orch_sidecar.api import headers
from orch_sidecar.api.options import run_digest
from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.load import capabilities, driver
from orch_sidecar.tools.bench.load.call import Fate, Request
from orch_sidecar.tools.bench.load.endpoint import Capabilities, Endpoint, EndpointError
from orch_sidecar.tools.bench.load.prompts import Prompt, body
from orch_sidecar.tools.bench.load.scenario import Plan, schedule, traced_prompts
from orch_sidecar.tools.bench.machine import host
from orch_sidecar.tools.bench.results.result import EvidenceDocument, Result, identity
from orch_sidecar.tools.bench.results.summary import RunRecord, result_of
from orch_sidecar.tools.bench.runs.loadgen import Loadgen
from orch_sidecar.tools.facts.labels.judge import cannot_earn
from orch_sidecar.tools.facts.signing.files import Signed
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.scenarios import WARMUP
from orch_sidecar.tools.terminal import Progress, print_error
from vllm_plugin.contracts import statement
from vllm_plugin.contracts.profile import ServiceClass

# The warm-up has its own prompts, or the measurement would find them in the prefix cache.
_WARM_UP_SEED: Final = 1_000_003
_WARM_UP_CLIENTS: Final = 4  # of an open loop

# An engine signs one statement per second on average: others may have asked just before.
_RETRY_DELAY_S: Final = 1.0

_NOT_OFFERED: Final = "the endpoint offers no signed statements"


class _Disturbed(Exception):
    """Others use the engine; the message says how."""


async def measure(plan: Plan) -> Result:
    """Runs the plan. If it is cancelled, it ends early with the result of what was measured.

    A request of others ends a run within seconds, and it begins again, with other prompts in an
    empty cache, up to `plan.restarts` times. Raises Unavailable for a plan that cannot be measured
    at its endpoint; Interrupted where nothing was measured yet; ValueError for a schedule that is
    too long.
    """
    with driver.interruptible():
        for left in range(plan.restarts, 0, -1):
            try:
                return await _measure_once(plan, is_last=False)
            except _Disturbed as others:
                again = f"the run begins again ({left} of {plan.restarts} times left)"
                print_error(f"{others}; {again}")
        return await _measure_once(plan, is_last=True)


async def _measure_once(plan: Plan, *, is_last: bool) -> Result:
    """Runs the plan as `measure` does. Raises _Disturbed, unless `is_last`."""
    due_s = schedule(plan.scenario)
    first = await capabilities.read_capabilities(plan.endpoint)
    _check_measurable(plan, first)
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{plan.scenario.label}-{secrets.token_hex(3)}"
    # Known to this run alone: it tells its requests from those of others in its scenario.
    secret = secrets.token_hex(16)
    fields: dict[str, str] = {
        headers.X_ORCH_NO_COALESCE: "true",
        headers.X_ORCH_SCENARIO: name,
        headers.X_ORCH_RUN: secret,
    }
    salt = name if plan.ignore_eos or first is not None else None  # a field of vLLM's
    scenario = replace(plan.scenario, cache_salt=salt)
    plan = replace(plan, endpoint=plan.endpoint.adding(fields), scenario=scenario)
    with Progress("warming up"):
        before = await _warm_up(plan, first)
    if before is not None and not before.idle:
        busy = "the engine is not idle before the run: it serves requests of others"
        raise (Unavailable if is_last else _Disturbed)(busy)
    asked = {"run": name, "nonce": secrets.token_hex(32)}
    features = None if before is None else before.entry.get("features")
    is_offered = isinstance(features, Mapping) and features.get("evidence") is True
    signed = await _statement(plan.endpoint, asked) if is_offered else _NOT_OFFERED
    began_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record = RunRecord(plan, name, run_digest(secret), began_at, host(), before)
    await _load(record, due_s)
    if record.disturbed and not is_last:
        raise _Disturbed(record.disturbed)
    try:
        with Progress("waiting for the engine's report"), driver.interruptible():
            await _read_afterwards(record)
            record.evidence = await _evidence(plan.endpoint, asked, signed)
    except driver.Interrupted:
        record.stopped = True
    return result_of(record)


def _check_measurable(plan: Plan, found: Capabilities | None) -> None:
    """Raises Unavailable where the run would be invalid or could not become a row."""
    label, snapshot = plan.scenario.label, None if found is None else found.snapshot
    engine, reasons = identity(plan.model, snapshot, plan.given)
    if snapshot is not None:
        reasons += [each.detail for each in cannot_earn(label, snapshot)]
        if snapshot.state != capabilities.READY:
            reasons.append(f"the pool {snapshot.pool!r} is {snapshot.state}: it must be ready")
        if plan.model not in snapshot.models:
            served = ", ".join(snapshot.models)
            reasons.append(f"the pool does not serve the model {plan.model!r}, but {served}")
    elif label is Label.SINGLE_STREAM:
        reasons.append(
            f"{plan.endpoint.url} has no /v1/capabilities: single_stream needs a pool that "
            "reports single_stream with one slot"
        )
    if plan.for_row:
        reasons += engine.missing
    if reasons:
        raise Unavailable("; ".join(reasons))


async def _warm_up(plan: Plan, first: Capabilities | None) -> Capabilities | None:
    """Sends the warm-up, in a scenario and a cache of its own; returns the engine's capabilities
    once it is idle again."""
    scenario, name = plan.scenario, plan.endpoint.fields[headers.X_ORCH_SCENARIO] + WARMUP
    seed, salt = scenario.seed + _WARM_UP_SEED, None if scenario.cache_salt is None else name
    warm_up = replace(
        plan,
        endpoint=plan.endpoint.adding({headers.X_ORCH_SCENARIO: name}),
        scenario=replace(scenario, seed=seed, cache_salt=salt),
    )
    load, count = driver.LoadGenerator(plan.endpoint), scenario.warm_up_requests
    clients = min(count, scenario.clients or _WARM_UP_CLIENTS)
    await load.run(load.closed_loop(_requests(warm_up), clients, count))
    if count and not any(call.fate is Fate.ANSWERED for call in load.calls):
        raise Unavailable(f"no request of the warm-up was answered: {load.calls[0].why}")
    return await capabilities.wait_until_idle(plan.endpoint, first, load.calls)


async def _load(record: RunRecord, due_s: tuple[float, ...]) -> None:
    """Sends the requests, until others send one or the user ends it. `due_s`: of the schedule."""
    plan, scenario = record.plan, record.plan.scenario
    # After which the run ends.
    least_requests = len(due_s) or scenario.least_requests
    least_s = due_s[-1] if due_s else scenario.least_seconds

    def show() -> None:
        over = load.now() / least_s if least_s else 1.0
        progress.share = min(1.0, over, load.ended / least_requests)
        progress.detail = f"{load.ended} requests"

    load, others = driver.LoadGenerator(plan.endpoint, show), None
    logs = plan.loadgen_logs or Path(f"orch-bench-{record.id}-loadgen")
    loadgen = None if scenario.loadgen is None else Loadgen(scenario, logs)
    with Progress(f"{scenario.label} {scenario.text}") as progress:
        requests = _requests(plan)
        if scenario.arrivals is Arrivals.AT_ONCE:  # built before they are due, and loadgen's next
            requests = iter(list(islice(requests, least_requests + 1)))
        work = loadgen.work(load, requests) if loadgen else _work_of(plan, load, requests, due_s)
        watch = capabilities.accepted_of_others(plan.endpoint, record.before, load.calls)
        try:
            with driver.interruptible():
                others = await driver.until_seen(load.run(work), watch)
        except driver.Interrupted:
            record.stopped = True
    if others is not None:
        which = "a request" if others == 1 else f"{others} requests"
        record.disturbed = (
            f"{which} of others entered the engine within {load.now():.0f} s of the start"
        )
    record.calls, record.lag_s, record.cpu_share = load.calls, load.lag_s, load.cpu_share
    record.loadgen = None if loadgen is None else loadgen.compared(load.calls)


def _work_of(
    plan: Plan, load: driver.LoadGenerator, requests: Iterator[Request], due_s: tuple[float, ...]
) -> driver.Work:
    """Returns the work of the run's scenario. `due_s`: of its schedule."""
    scenario, trace = plan.scenario, plan.scenario.trace
    if trace is not None:
        # Built before the first one is due: long ones take time.
        traced = list(_requests(plan, traced_prompts(scenario.replay, plan.ids, scenario.seed)))
        return driver.side_by_side(
            load.open_loop(iter(traced), due_s),
            load.closed_loop(requests, trace.bulk_clients, 0, due_s[-1]),
        )
    if scenario.clients is not None:
        least = scenario.least_requests, scenario.least_seconds
        return load.closed_loop(requests, scenario.clients, *least)
    return load.open_loop(requests, due_s)


def _requests(
    plan: Plan, prompts: Iterable[tuple[Prompt, ServiceClass | None]] | None = None
) -> Iterator[Request]:
    """Yields the requests of prompts with their classes; by default those of the plan, without end,
    which beside a trace are bulk."""
    scenario = plan.scenario
    if prompts is None:
        service_class = None if scenario.trace is None else ServiceClass.BULK
        prompts = ((each, service_class) for each in plan.prompts(scenario.seed))
    for prompt, service_class in prompts:
        own = {} if service_class is None else {str(headers.X_ORCH_CLASS): service_class.value}
        written = body(prompt, plan.model, ignore_eos=plan.ignore_eos, salt=scenario.cache_salt)
        message = plan.endpoint.message(prompt.path, written, own)
        output_tokens = prompt.output_tokens if plan.ignore_eos else None
        yield Request(message, prompt.input_tokens, output_tokens, service_class)


async def _read_afterwards(record: RunRecord) -> None:
    """Records the engine's capabilities, or why they are unknown; an error keeps the result."""
    endpoint, before = record.plan.endpoint, record.before
    try:
        found = await capabilities.wait_until_idle(endpoint, before, record.calls)
        if found is not None and found.snapshot.state != capabilities.READY:
            raise EndpointError(f"the engine is {found.snapshot.state}")
        record.after = found
    except EndpointError as error:
        record.unread_reason = str(error)


async def _statement(endpoint: Endpoint, asked: Mapping[str, Any]) -> Mapping[str, Any] | str:
    """Returns the engine's answer to what is `asked` of the run, or why there is none."""
    why = _NOT_OFFERED
    for left in reversed(range(3)):
        try:
            answer = await capabilities.fetch_json(endpoint, statement.STATEMENTS_PATH, asked)
            return answer if isinstance(answer, dict) else _NOT_OFFERED
        except EndpointError as error:
            why = str(error)
            await asyncio.sleep(_RETRY_DELAY_S if left else 0.0)
    return why


async def _evidence(
    endpoint: Endpoint, asked: Mapping[str, Any], before: Mapping[str, Any] | str
) -> EvidenceDocument:
    """Asks for the statement after the run; returns the evidence, or why there is none."""
    if isinstance(before, str):
        return EvidenceDocument(missing=before)
    try:
        signed = statement.parse_envelope(before["statement"], statement.STATEMENT_TYPE)
        after = await _statement(endpoint, {**asked, "since": statement.sequence_of(signed)})
        if isinstance(after, str):
            return EvidenceDocument(missing=after)
        parts = {**after, **asked, "before": before["statement"], "after": after["statement"]}
        known = {name: parts.get(name) for name in Signed.model_fields}
        return EvidenceDocument(signed=Signed.model_validate(known))
    except (KeyError, ValueError) as error:
        return EvidenceDocument(missing=f"the engine's statement is not one: {error}")
