"""Computes the result and the verdict of a run from its calls and the engine's snapshots.

The label is judged by what the engine did (`facts.labels.judge`), not by the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Final

from orch_sidecar.tools.bench.load.call import Call, ClientHealth, Fate
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.identity import IdentityOverrides, identity
from orch_sidecar.tools.bench.results.result import (
    ClassDocument,
    EvidenceDocument,
    FiguresDocument,
    LoadgenDocument,
    Result,
    Status,
)
from orch_sidecar.tools.bench.results.tally import client_of, counts_of, figures_of, goodput_of
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.judge import judge
from orch_sidecar.tools.facts.labels.objection import Reason
from orch_sidecar.tools.facts.labels.observation import (
    Observation,
    RequestCounts,
    States,
    observed,
)
from orch_sidecar.tools.facts.labels.recorded import Call as RecordedCall
from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.publication import MIN_DURATION_S, shortfalls
from vllm_plugin.contracts.profile import ServiceClass

# A load too sparse to batch: a search for a rate also tries such ones.
_TOO_SPARSE: Final = frozenset({Reason.NEVER_BATCHED, Reason.ONE_BY_ONE, Reason.MOSTLY_ALONE})
# Of a Poisson process with a mean of two in flight, two thirds of the busy time have several:
# 1 - m / (e^m - 1) = 0.69, and `thresholds.SHARED_STEPS` asks for half of the steps.
_IN_FLIGHT: Final = 2


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has ended. `scenario`: with its prompts and its salt.

    `digest`: of its secret id, as its spans have it.
    `documents`, `before`, `after`: the capabilities before and after the run and their snapshots,
    as far as they could be read. `not_idle`: "before" and "after", where the engine was not idle.
    `unread_reason`: why there is no snapshot after the run. `stopped`: it ended early, by the user
    unless `ended_by` gives another reason. `trial`: part of a search for a rate, where a rate too
    low to batch is no objection. `disturbed`: what others did that ended it, empty if they did not.
    `loadgen`: what MLCommons' load generator found, if it sent the requests.
    """

    id: str
    digest: str
    began_at: str
    endpoint: str
    model: str
    scenario: Scenario
    calls: Sequence[Call]
    client_health: ClientHealth
    host: Mapping[str, Any]
    given: IdentityOverrides
    stopped: bool = False
    ended_by: str = ""
    trial: bool = False
    disturbed: str = ""
    documents: Sequence[Any] = ()
    before: Snapshot | None = None
    after: Snapshot | None = None
    not_idle: Sequence[str] = ()
    unread_reason: str = ""
    evidence: EvidenceDocument = field(default_factory=EvidenceDocument)
    loadgen: LoadgenDocument | None = None

    @property
    def states(self) -> States | None:
        """Both states of the engine; None where one could not be read."""
        known = self.before is not None and self.after is not None
        return States(self.before, self.after) if known else None  # type: ignore[arg-type]


def result_of(run: FinishedRun) -> Result:
    """Returns the result with its verdict."""
    scenario, calls, figures = run.scenario, run.calls, figures_of(run.calls)
    goodput, classes = goodput_of(calls, scenario.slo_ms), {}
    if scenario.trace is not None and scenario.trace.has_bulk:
        for each in ServiceClass:
            classes[each.value] = _of_class(run, each)
        goodput = classes[ServiceClass.INTERACTIVE].goodput
    status, reasons, missing = _verdict(run, figures)
    batches = hit_ratio = None
    if run.states is not None:
        found = run.states.batches
        batches = replace(found, mean=round(found.mean, 6), shared=round(found.shared, 6))
        hit_ratio = round(run.states.prefix_hit_ratio, 6)
    return Result(
        id=run.id,
        run=run.digest,
        status=status,
        reasons=reasons,
        shortfalls=missing,
        measurement_type=scenario.label,
        began_at=run.began_at,
        endpoint=run.endpoint,
        scenario=scenario,
        engine=identity(run.model, run.before, run.given),
        client=client_of(
            calls,
            run.host,
            run.client_health,
            0.0 if figures is None else figures.window_s,
            at_once=scenario.arrivals is Arrivals.AT_ONCE,
        ),
        counts=counts_of(calls),
        figures=figures,
        goodput=goodput,
        classes=classes,
        batches=batches,
        prefix_hit_ratio=hit_ratio,
        capabilities=list(run.documents),
        calls=[_recorded(call) for call in calls],
        evidence=run.evidence,
        loadgen=run.loadgen,
    )


def _of_class(run: FinishedRun, service_class: ServiceClass) -> ClassDocument:
    """Returns the figures of one class. The SLO is that of interactive requests."""
    calls = [call for call in run.calls if call.service_class is service_class]
    slo_ms = run.scenario.slo_ms if service_class is ServiceClass.INTERACTIVE else {}
    return ClassDocument(
        counts=counts_of(calls), figures=figures_of(calls), goodput=goodput_of(calls, slo_ms)
    )


def _verdict(
    run: FinishedRun, figures: FiguresDocument | None
) -> tuple[Status, list[str], list[str]]:
    """Returns the status, its reasons, and what the run lacks to be published."""
    reasons = _objections(run, figures)
    if run.disturbed:
        reasons.insert(0, run.disturbed)
    missing = []
    if figures is None:
        reasons.append("no request was answered completely")
    else:
        missing = shortfalls(run.scenario.label, figures.requests, figures.window_s)
        missing += _too_short(run.scenario, figures.window_s)
    if run.stopped:
        why = run.ended_by or "the user interrupted the run"
        return Status.INCOMPLETE, [why, *reasons], missing
    if reasons:
        return Status.INVALID, reasons, missing
    if run.before is None:
        silent = "the endpoint has no /v1/capabilities: how its engine batched is unknown"
        return Status.UNVERIFIED, [silent], missing
    return Status.PRELIMINARY if missing else Status.VALID, [], missing


def _objections(run: FinishedRun, figures: FiguresDocument | None) -> list[str]:
    reasons = [
        f"the engine was not idle {when} the run: it also served other requests"
        for when in run.not_idle
    ]
    if run.unread_reason:
        return [*reasons, f"the engine's work is unknown: {run.unread_reason}"]
    if run.states is None:
        return reasons
    for each in judge(_observation(run, run.states)):
        if each.reason not in _TOO_SPARSE:
            reasons.append(each.detail)
        elif not run.trial:
            reasons.append(each.detail + _denser(run.scenario, figures))
    return reasons


def _denser(scenario: Scenario, figures: FiguresDocument | None) -> str:
    """Returns what would batch: a rate at which enough requests are in flight at a time.

    By Little's law it is their number over the mean latency, which more of them rather lengthen.
    """
    rate, mean_ms = scenario.rate_per_s, figures and figures.latency_ms.mean
    if rate is None or not mean_ms or (wanted := ceil(1000 * _IN_FLIGHT / mean_ms)) <= rate:
        return ""
    return (
        f"; an answer took {mean_ms:.0f} ms, too little for {rate:.4g} requests/s to overlap:"
        f" --rate {wanted} keeps about {_IN_FLIGHT} in flight"
    )


def _observation(run: FinishedRun, states: States) -> Observation:
    """Returns what client and engine saw. An event may have several tokens: none is counted."""
    reached = [call for call in run.calls if call.reached]
    answered = [call for call in reached if call.fate is Fate.ANSWERED]
    tokens = [None if call.counted_by_events else call.output_tokens for call in answered]
    known = [count for count in tokens if count is not None]
    prompts = [call.input_tokens for call in answered if call.input_tokens is not None]
    counts = RequestCounts(
        sent=len(reached),
        answered=len(answered),
        output_tokens=sum(known) if len(known) == len(reached) else None,
        input_tokens=sum(prompts) if len(prompts) == len(answered) else None,
    )
    return observed(
        run.scenario.label,
        states,
        counts,
        in_flight=[
            Interval(call.sent_s, call.ended_s)
            for call in reached
            if call.sent_s is not None and call.ended_s is not None
        ],
        arrivals=run.scenario.arrivals,
        at_once=run.scenario.clients,
    )


def _too_short(scenario: Scenario, window_s: float) -> list[str]:
    """Returns the shortfall of an offline run, whose length depends on its requests."""
    least_s = scenario.least_seconds
    if scenario.arrivals is not Arrivals.AT_ONCE or not window_s < least_s < MIN_DURATION_S:
        return []
    return [f"{window_s:.1f} s instead of the requested {least_s:g} s: raise --requests"]


def _recorded(call: Call) -> RecordedCall:
    return RecordedCall(
        due_s=_rounded(call.due_s),
        sent_s=_rounded(call.sent_s),
        first_s=_rounded(call.event_s[0] if call.event_s else None),
        ended_s=_rounded(call.ended_s),
        status=call.status,
        fate=call.fate.value,
        why=call.why,
        input_tokens=call.input_tokens,
        output_tokens=call.output_tokens,
        queue_ms=call.queue_ms,
        service_class=call.service_class,
    )


def _rounded(at_s: float | None) -> float | None:
    return None if at_s is None else round(at_s, 6)
