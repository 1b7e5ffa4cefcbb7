"""One run from end to end: read the engine's state, warm up, measure, read it again, judge.

Requests are never coalesced, as one generation for several requests would inflate the
throughput, and a salt keeps the engine's prefix cache from hits on earlier runs. An endpoint that
signs no statements before and after, or fails to, costs the row its evidence and the run nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from orch_sidecar.api.headers import (
    X_ORCH_CLASS,
    X_ORCH_NO_COALESCE,
    X_ORCH_RUN,
    X_ORCH_SCENARIO,
)
from orch_sidecar.api.options import run_digest
from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.load.call import Request, answered_of
from orch_sidecar.tools.bench.load.capabilities import (
    READY,
    accepted_of_others,
    fetch_json,
    read_capabilities,
    wait_until_idle,
)
from orch_sidecar.tools.bench.load.driver import (
    Interrupted,
    LoadGenerator,
    Work,
    interruptible,
    side_by_side,
    until_seen,
)
from orch_sidecar.tools.bench.load.endpoint import Capabilities, Endpoint, EndpointError
from orch_sidecar.tools.bench.load.prompts import Prompt, body
from orch_sidecar.tools.bench.load.scenario import Plan, schedule, traced_prompts
from orch_sidecar.tools.bench.machine import host
from orch_sidecar.tools.bench.results.result import (
    EvidenceDocument,
    Result,
    contradictions,
    identity,
    missing_identity,
)
from orch_sidecar.tools.bench.results.summary import RunRecord, result_of
from orch_sidecar.tools.bench.runs.loadgen import Loadgen, compared
from orch_sidecar.tools.facts.labels.judge import cannot_earn
from orch_sidecar.tools.facts.signing.evidence_file import Signed
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.traffic import WARMUP
from orch_sidecar.tools.terminal import Progress, print_error
from vllm_plugin.contracts.profile import ServiceClass
from vllm_plugin.contracts.statement import (
    STATEMENT_TYPE,
    STATEMENTS_PATH,
    parse_envelope,
    sequence_of,
)

# The warm-up has its own prompts, or the measurement would find them in the prefix cache.
_WARM_UP_SEED: Final = 1_000_003
_WARM_UP_CLIENTS: Final = 4  # of an open loop

_NONCE_BYTES: Final = 32
# The engine signs one statement per second for long: others may have asked just before.
_ATTEMPTS: Final = 3
_AGAIN_AFTER_S: Final = 1.0

_NOT_OFFERED: Final = "the endpoint offers no signed statements"
_BUSY: Final = "the engine is not idle before the run: it serves requests of others"

# What the engine answers, or why there is no answer.
_Answer = Mapping[str, Any] | str


class _Disturbed(Exception):
    """Others use the engine; the message says how."""


async def measure(plan: Plan) -> Result:
    """Runs the plan. If it is cancelled, it ends early with the result of what was measured.

    A request of others ends a run within seconds, and it begins again, with other prompts in an
    empty cache, up to `plan.restarts` times. Raises Unavailable for a plan that cannot be measured
    at its endpoint; Interrupted where nothing was measured yet; ValueError for a schedule that is
    too long.
    """
    with interruptible():
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
    first = await read_capabilities(plan.endpoint)
    _check_measurable(plan, first)
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{plan.scenario.label}-{secrets.token_hex(3)}"
    secret = secrets.token_hex(16)
    plan = _sending(plan, name, secret, salted=plan.ignore_eos or first is not None)
    with Progress("warming up"):
        before = await _warm_up(plan, first)
    if before is not None and not before.idle:
        raise (Unavailable if is_last else _Disturbed)(_BUSY)
    asked = {"run": name, "nonce": secrets.token_hex(_NONCE_BYTES)}
    statement = await _statement_before(plan.endpoint, asked, before)
    began_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record = RunRecord(plan, name, run_digest(secret), began_at, host(), before)
    await _load(record, due_s)
    if record.disturbed and not is_last:
        raise _Disturbed(record.disturbed)
    try:
        with Progress("waiting for the engine's report"), interruptible():
            await _read_afterwards(record)
            record.evidence = await _evidence_after(plan.endpoint, asked, statement)
    except Interrupted:
        record.stopped = True
    return result_of(record)


def _sending(plan: Plan, name: str, secret: str, *, salted: bool) -> Plan:
    """Returns the plan with the header fields of each request of a run, which are never coalesced.

    `name`: of its scenario, for everybody to read. `secret`: only the run has it, which
    distinguishes its requests from those of others that join the scenario. `salted`: the endpoint
    knows the salt, which is a field of vLLM's.
    """
    fields: dict[str, str] = {X_ORCH_NO_COALESCE: "true", X_ORCH_SCENARIO: name, X_ORCH_RUN: secret}
    scenario = replace(plan.scenario, cache_salt=name if salted else None)
    return replace(plan, endpoint=plan.endpoint.adding(fields), scenario=scenario)


async def _load(record: RunRecord, due_s: tuple[float, ...]) -> None:
    """Sends the requests, until others send one or the user ends it. `due_s`: of the schedule."""
    plan, before = record.plan, record.before
    scenario = plan.scenario
    # After which the run ends.
    requests = len(due_s) or scenario.least_requests
    seconds = due_s[-1] if due_s else scenario.least_seconds

    def show() -> None:
        over = load.now() / seconds if seconds else 1.0
        progress.share = min(1.0, over, load.ended / requests)
        progress.detail = f"{load.ended} requests"

    others = None
    logs = plan.loadgen_logs or Path(f"orch-bench-{record.id}-loadgen")
    with Progress(f"{scenario.label} {scenario.text}") as progress:
        load, loadgen = LoadGenerator(plan.endpoint, show), None
        if scenario.loadgen is None:
            work = _work_of(plan, load, due_s)
        else:
            loadgen = Loadgen(scenario, logs)
            work = loadgen.work(load, _requests_of(plan))
        try:
            with interruptible():
                if before is None:
                    await load.run(work)
                else:
                    watch = accepted_of_others(plan.endpoint, before.snapshot, load.reached)
                    others = await until_seen(load.run(work), watch)
        except Interrupted:
            record.stopped = True
    if others is not None:
        requests_text = "a request" if others == 1 else f"{others} requests"
        after = f"within {load.now():.0f} s of the start"
        record.disturbed = f"{requests_text} of others entered the engine {after}"
    record.calls, record.lag_s, record.cpu_share = load.calls, load.lag_s, load.cpu_share
    if loadgen is not None:
        record.loadgen = compared(logs, load.calls, loadgen.began_s)


def _check_measurable(plan: Plan, found: Capabilities | None) -> None:
    """Raises Unavailable where the run would be invalid or could not become a row."""
    label, snapshot = plan.scenario.label, None if found is None else found.snapshot
    reasons = []
    if snapshot is not None:
        reasons += [each.detail for each in cannot_earn(label, snapshot)]
        reasons += contradictions(snapshot, plan.given)
        if snapshot.state != READY:
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
        reasons += missing_identity(identity(plan.model, snapshot, plan.given))
    if reasons:
        raise Unavailable("; ".join(reasons))


async def _warm_up(plan: Plan, first: Capabilities | None) -> Capabilities | None:
    """Sends the warm-up; returns the engine's capabilities once it is idle again."""
    load = LoadGenerator(plan.endpoint)
    if plan.scenario.warm_up_requests:
        await load.run(_warm_up_of(plan, load))
        if not answered_of(load.calls):
            why = load.calls[0].why
            raise Unavailable(f"no request of the warm-up was answered: {why}")
    if first is None:
        return None
    return await wait_until_idle(plan.endpoint, first, answered_of(load.calls))


async def _read_afterwards(record: RunRecord) -> None:
    """Records the engine's capabilities, or why they are unknown; an error keeps the result."""
    before = record.before
    if before is None:
        return
    try:
        found = await wait_until_idle(record.plan.endpoint, before, answered_of(record.calls))
    except EndpointError as error:
        record.unread_reason = str(error)
        return
    if found.snapshot.state == READY:
        record.after = found
    else:
        record.unread_reason = f"the engine is {found.snapshot.state}"


async def _statement_before(
    endpoint: Endpoint, asked: Mapping[str, Any], found: Capabilities | None
) -> _Answer:
    """Returns the answer to what is `asked` of the run, its name and nonce; endpoints that offer no
    statements are not asked. `found`: the capabilities before the run, None without any."""
    features = None if found is None else found.entry.get("features")
    is_offered = isinstance(features, Mapping) and features.get("evidence") is True
    return await _statement(endpoint, asked) if is_offered else _NOT_OFFERED


async def _evidence_after(
    endpoint: Endpoint, asked: Mapping[str, Any], before: _Answer
) -> EvidenceDocument:
    """Asks for the statement after the run; returns the evidence, or why there is none."""
    if isinstance(before, str):
        return EvidenceDocument(missing=before)
    try:
        since = sequence_of(parse_envelope(before["statement"], STATEMENT_TYPE))
        after = await _statement(endpoint, {**asked, "since": since})
        if isinstance(after, str):
            return EvidenceDocument(missing=after)
        parts = {**after, **asked, "before": before["statement"], "after": after["statement"]}
        known = {name: parts.get(name) for name in Signed.model_fields}
        return EvidenceDocument(signed=Signed.model_validate(known))
    except (KeyError, ValueError) as error:
        return EvidenceDocument(missing=f"the engine's statement is not one: {error}")


async def _statement(endpoint: Endpoint, asked: Mapping[str, Any]) -> _Answer:
    why = _NOT_OFFERED
    for left in reversed(range(_ATTEMPTS)):
        try:
            answer = await fetch_json(endpoint, STATEMENTS_PATH, asked)
            return answer if isinstance(answer, dict) else _NOT_OFFERED
        except EndpointError as error:
            why = str(error)
            await asyncio.sleep(_AGAIN_AFTER_S if left else 0.0)
    return why


def _work_of(plan: Plan, load: LoadGenerator, due_s: tuple[float, ...]) -> Work:
    """Returns the work of the run's scenario. `due_s`: of its schedule."""
    scenario, trace = plan.scenario, plan.scenario.trace
    count, seconds = scenario.least_requests, scenario.least_seconds
    requests = _requests_of(plan)
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


def _warm_up_of(plan: Plan, load: LoadGenerator) -> Work:
    """Returns the work before the measurement, in a scenario and a cache of its own."""
    scenario, name = plan.scenario, plan.endpoint.fields[X_ORCH_SCENARIO] + WARMUP
    count, salt = scenario.warm_up_requests, None if scenario.cache_salt is None else name
    its_own = replace(
        plan,
        endpoint=plan.endpoint.adding({X_ORCH_SCENARIO: name}),
        scenario=replace(scenario, seed=scenario.seed + _WARM_UP_SEED, cache_salt=salt),
    )
    clients = min(count, scenario.clients or _WARM_UP_CLIENTS)
    return load.closed_loop(_requests_of(its_own), clients, lambda sent, _: sent >= count)


def _requests_of(plan: Plan) -> Iterator[Request]:
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
