"""What a run came to: its calls and the engine's snapshots in, its result out.

Pure. The label is judged by what the engine did (`facts/verdict.py`), never by what was asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orch_sidecar.tools.bench.load.call import Call, Fate, Pulse
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.identity import Given, identity
from orch_sidecar.tools.bench.results.result import BatchesTold, Result, ScenarioTold, Status
from orch_sidecar.tools.bench.results.tally import Tally, counts_of
from orch_sidecar.tools.facts.evidence.measured import Arrivals
from orch_sidecar.tools.facts.evidence.snapshot import Snapshot
from orch_sidecar.tools.facts.evidence.verdict import (
    MIN_DURATION_S,
    NEVER_BATCHED,
    RequestCounts,
    batches_between,
    judge,
    shortfalls,
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run that has ended.

    `documents`: capabilities before and after, as far as they could be read; `before`, `after`:
    what they say; `restless`: before or after it, whenever the engine was not idle. `unread`: why
    there is none after it, where there was one before. `stopped`: it was not brought to its end,
    and `ended_by` is what ended it, if not somebody. `trial`: of a search for a rate; whether
    anything was batched at one that is too low is not its question.
    """

    id: str
    began_at: str
    endpoint: str
    model: str
    prompts: str
    cache_salt: str | None
    scenario: Scenario
    calls: Sequence[Call]
    pulse: Pulse
    host: Mapping[str, Any]
    given: Given
    stopped: bool = False
    ended_by: str = ""
    trial: bool = False
    documents: Sequence[Any] = ()
    before: Snapshot | None = None
    after: Snapshot | None = None
    restless: Sequence[str] = ()
    unread: str = ""


def result_of(run: Run) -> Result:
    """The result, with its verdict."""
    tally, counts = Tally(run.calls), counts_of(run.calls)
    label = run.scenario.label
    status, reasons, missing = _verdict(run, tally)
    batches = None
    if run.before is not None and run.after is not None:
        found = batches_between(run.before, run.after)
        batches = BatchesTold(steps=found.steps, largest=found.largest, mean=round(found.mean, 3))
    return Result(
        id=run.id,
        status=status,
        reasons=reasons,
        shortfalls=missing,
        measurement_type=label,
        began_at=run.began_at,
        endpoint=run.endpoint,
        scenario=_scenario(run),
        engine=identity(run.model, run.before, run.given),
        client=tally.client(run.host, run.pulse, at_once=run.scenario.arrivals is Arrivals.AT_ONCE),
        counts=counts,
        figures=tally.figures(),
        goodput=tally.goodput(run.scenario.slo),
        batches=batches,
        capabilities=list(run.documents),
        calls=[_row(call) for call in run.calls],
    )


def _verdict(run: Run, tally: Tally) -> tuple[Status, list[str], list[str]]:
    """What it is worth, why, and what it lacks to be published."""
    reasons = _objections(run)
    missing = []
    if tally.window_s is None:
        reasons.append("no request was answered in full")
    else:
        missing = shortfalls(run.scenario.label, len(tally.served), tally.window_s)
        missing += _too_short(run.scenario, tally.window_s)
    if run.stopped:
        why = run.ended_by or "it was stopped before its end"
        return Status.INCOMPLETE, [why, *reasons], missing
    if reasons:
        return Status.INVALID, reasons, missing
    if run.before is None:
        silent = "the endpoint has no /v1/capabilities: nobody says how its engine batched"
        return Status.UNVERIFIED, [silent], missing
    return Status.PRELIMINARY if missing else Status.VALID, [], missing


def _objections(run: Run) -> list[str]:
    reasons = [
        f"the engine was not idle {when} this measurement: others used it" for when in run.restless
    ]
    if run.unread:
        return [*reasons, f"what the engine did is not known: {run.unread}"]
    if run.before is None or run.after is None:
        return reasons
    reasons += judge(run.scenario.label, run.before, run.after, _own(run.calls))
    allowed = NEVER_BATCHED if run.trial else None
    return [reason for reason in reasons if reason != allowed]


def _own(calls: Sequence[Call]) -> RequestCounts:
    """What the engine had to do for these. Events are no count of tokens: one may have several."""
    reached = [call for call in calls if call.reached]
    answered = [call for call in reached if call.fate is Fate.ANSWERED]
    tokens = [None if call.counted_by_events else call.output_tokens for call in answered]
    known = [count for count in tokens if count is not None]
    return RequestCounts(
        sent=len(reached),
        answered=len(answered),
        output_tokens=sum(known) if len(known) == len(reached) else None,
    )


def _too_short(scenario: Scenario, window_s: float) -> list[str]:
    """What comes at once lasts as long as it lasts: more than was asked for, or not."""
    asked_s = scenario.least_seconds
    if scenario.arrivals is not Arrivals.AT_ONCE or not window_s < asked_s < MIN_DURATION_S:
        return []
    return [f"{window_s:.1f} s, and {asked_s:g} s were asked for: it takes more requests"]


def _scenario(run: Run) -> ScenarioTold:
    scenario = run.scenario
    return ScenarioTold(
        name=scenario.label.value.replace("_", "-"),
        arrivals=scenario.arrivals,
        clients=scenario.clients,
        rate_per_s=scenario.rate_per_s,
        burstiness=scenario.burstiness,
        least_requests=scenario.least_requests,
        least_seconds=scenario.least_seconds,
        warm_up_requests=scenario.warm_up,
        seed=scenario.seed,
        prompts=run.prompts,
        cache_salt=run.cache_salt,
        slo_ms=scenario.slo.bounds,
    )


def _row(call: Call) -> list[Any]:
    first_s = call.event_s[0] if call.event_s else None
    times = (call.due_s, call.sent_s, first_s, call.ended_s)
    return [
        *(None if at is None else round(at, 6) for at in times),
        call.status,
        call.fate.value,
        call.why,
        call.input_tokens,
        call.output_tokens,
        call.queue_ms,
    ]
