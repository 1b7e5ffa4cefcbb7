"""Computes the result and the verdict of a run from its calls and the engine's snapshots.

The label is judged by what the engine did (`facts.labels.judge`), not by the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean
from typing import Any, Final

from orch_sidecar.tools.bench.load.call import Call
from orch_sidecar.tools.bench.load.endpoint import Capabilities
from orch_sidecar.tools.bench.load.scenario import Plan, Scenario
from orch_sidecar.tools.bench.results.result import (
    FATES,
    ClientDocument,
    Counts,
    EvidenceDocument,
    Goodput,
    LoadgenDocument,
    Result,
    Status,
    identity,
)
from orch_sidecar.tools.facts.labels.figures import Totals, figures, spread
from orch_sidecar.tools.facts.labels.judge import Reason, judge
from orch_sidecar.tools.facts.labels.observation import Observation, States, observed
from orch_sidecar.tools.facts.labels.recorded import Call as RecordedCall
from orch_sidecar.tools.facts.labels.recorded import answers, met_of, waited_for
from orch_sidecar.tools.facts.labels.thresholds import CLIENT_LATE_S, CLIENT_LATE_SHARE
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.publication import MIN_DURATION_S, shortfalls

# A client that is busier or wakes later than this adds to every time it measures.
_LAG_S: Final = 0.02
_CPU_SHARE: Final = 0.9

# A load too sparse to batch: a search for a rate also tries such ones.
_TOO_SPARSE: Final = frozenset({Reason.NEVER_BATCHED, Reason.ONE_BY_ONE, Reason.MOSTLY_ALONE})
# Of a Poisson process with a mean of two in flight, two thirds of the busy time have several:
# 1 - m / (e^m - 1) = 0.69, and `thresholds.SHARED_STEPS` asks for half of the steps.
_IN_FLIGHT: Final = 2
_NOT_STATED: Final = EvidenceDocument(missing="interrupted before the engine's statement")


def _client_of(run: RunRecord, window_s: float) -> ClientDocument:
    """Returns the client and its health.

    It may take a share of the window to send what was all due at the start, as may a pause of the
    client in any run.
    """
    at_once, cpu_share = run.plan.scenario.arrivals is Arrivals.AT_ONCE, run.cpu_share
    late = spread([late_s for call in run.calls if (late_s := call.late_s) is not None])
    lag, some_s = spread(run.lag_s), CLIENT_LATE_SHARE * window_s
    causes = []
    if late is not None and late.p99 > max(CLIENT_LATE_S, some_s if at_once else 0.0):
        causes.append(f"requests were sent {1000 * late.p99:.1f} ms late (p99)")
    if lag is not None and lag.p99 > _LAG_S:
        causes.append(f"its event loop woke {1000 * lag.p99:.1f} ms late (p99)")
    elif lag is not None and lag.most > max(_LAG_S, some_s):
        causes.append(f"its event loop was blocked for {1000 * lag.most:.1f} ms")
    if cpu_share > _CPU_SHARE:
        causes.append(f"it used {cpu_share:.0%} of one core")
    return ClientDocument(
        host=dict(run.host),
        late_s=late,
        loop_lag_s=lag,
        cpu_share=cpu_share,
        bottleneck=causes,
    )


@dataclass(slots=True)
class RunRecord:
    """What is known of a run, as far as it has come. `plan`: with the salt of its prompts.

    `digest`: of its secret id, as its spans have it. `before`, `after`: what the engine reported,
    as far as it could be read; `unread_reason`: why it could not be read after the run. `lag_s`,
    `cpu_share`: of its client, as `LoadGenerator` has them. `stopped`: the user ended it early.
    `disturbed`: what others did that ended it, empty if they did not.
    """

    plan: Plan
    id: str
    digest: str
    began_at: str
    host: Mapping[str, Any]
    before: Capabilities | None
    calls: Sequence[Call] = ()
    lag_s: Sequence[float] = ()
    cpu_share: float = 0.0
    stopped: bool = False
    disturbed: str = ""
    after: Capabilities | None = None
    unread_reason: str = "interrupted before the engine's next report"
    evidence: EvidenceDocument = _NOT_STATED
    loadgen: LoadgenDocument | None = None

    @property
    def states(self) -> States | None:
        """Both states of the engine; None where one could not be read."""
        if self.before is None or self.after is None:
            return None
        return States(self.before.snapshot, self.after.snapshot)


def result_of(run: RunRecord) -> Result:
    """Returns the result with its verdict."""
    plan, scenario, calls = run.plan, run.plan.scenario, run.calls
    served = answers(calls)
    totals = figures(served) if served else None
    missing = [] if totals is None else _shortfalls(scenario, totals)
    status, reasons = Status.PRELIMINARY if missing else Status.VALID, [*_objections(run, totals)]
    if run.stopped:
        status = Status.INCOMPLETE
    elif reasons:
        status = Status.INVALID
    elif run.before is None:
        reasons = ["the endpoint has no /v1/capabilities: how its engine batched is unknown"]
        status = Status.UNVERIFIED
    batches = hit_ratio = None
    if run.states is not None:
        found = run.states.batches
        batches = replace(found, mean=round(found.mean, 6), shared=round(found.shared, 6))
        hit_ratio = round(run.states.prefix_hit_ratio, 6)
    fates = Counter[str](call.fate for call in calls)
    met = met_of(calls, scenario) if answers(waited_for(calls, scenario)) else []
    return Result(
        id=run.id,
        run=run.digest,
        status=status,
        reasons=reasons,
        shortfalls=missing,
        measurement_type=scenario.label,
        began_at=run.began_at,
        endpoint=plan.endpoint.url,
        scenario=scenario,
        engine=identity(plan.model, run.before.snapshot if run.before else None, plan.given)[0],
        client=_client_of(run, 0.0 if totals is None else totals.window_s),
        counts=Counts(
            sent=sum(call.sent_s is not None for call in calls),
            **{fate: fates[fate] for fate in FATES},
            reasons=dict(Counter(call.why for call in calls if call.why).most_common(20)),
            of_other_length=sum(not call.length_as_requested for call in calls),
            counted_by_events=sum(call.counted_by_events for call in calls),
        ),
        tokens_per_s=None if totals is None else totals.tokens_per_s,
        figures=totals,
        goodput=Goodput(requests=sum(met), share=round(fmean(met), 4)) if met else None,
        gaps_s=spread([gap_s for call in calls if call.served for gap_s in call.gaps_s]),
        batches=batches,
        prefix_hit_ratio=hit_ratio,
        capabilities=[each.document for each in (run.before, run.after) if each is not None],
        calls=[RecordedCall(*call.columns) for call in calls],
        evidence=run.evidence,
        loadgen=run.loadgen,
    )


def _objections(run: RunRecord, totals: Totals | None) -> Iterator[str]:
    """Yields why the figures do not hold."""
    scenario, calls = run.plan.scenario, run.calls
    if run.stopped:
        yield "the user interrupted the run"
    if run.disturbed:
        yield run.disturbed
    if run.states is None and run.before is not None:
        yield f"the engine's work is unknown: {run.unread_reason}"
    if run.after is not None and not run.after.idle:
        yield "the engine was not idle after the run: it also served other requests"
    if run.states is not None:
        for each in judge(_observation_of(scenario, calls, run.states)):
            if each.reason not in _TOO_SPARSE:
                yield each.detail
            elif not run.plan.trial:
                yield each.detail + _rate_advice(scenario, totals)
    if totals is None:
        yield "no request was answered completely"


def _observation_of(scenario: Scenario, calls: Sequence[Call], states: States) -> Observation:
    """Returns what the client saw of its requests, beside two states of the engine."""
    reached = [call for call in calls if call.reached]
    answered = [call for call in calls if call.fate == "answered"]
    tokens = [call.output_tokens for call in answered if call.output_tokens is not None]
    prompts = [call.input_tokens for call in answered if call.input_tokens is not None]
    # An event may have several tokens, and of what was not answered nobody knows them.
    counted = not any(call.counted_by_events for call in calls) and len(tokens) == len(reached)
    return observed(
        scenario.label,
        states,
        load=scenario,
        sent=len(reached),
        answered=len(answered),
        output_tokens=sum(tokens) if counted else None,
        input_tokens=sum(prompts) if len(prompts) == len(answered) else None,
        in_flight=[each for call in reached if (each := call.in_flight) is not None],
    )


def _rate_advice(scenario: Scenario, totals: Totals | None) -> str:
    """Advises a rate that would batch, with enough requests in flight: by Little's law, their
    number over the mean latency, which more of them rather lengthen. Empty where none helps."""
    rate, latency = scenario.rate_per_s, totals and totals.times_s["latency"]
    if rate is None or not latency or not latency.mean or rate * latency.mean >= _IN_FLIGHT:
        return ""
    return (
        f"; {rate:.4g} requests/s of {1000 * latency.mean:.0f} ms rarely overlap: "
        f"--rate {ceil(_IN_FLIGHT / latency.mean)} keeps about {_IN_FLIGHT} in flight"
    )


def _shortfalls(scenario: Scenario, totals: Totals) -> list[str]:
    """Returns what a run lacks to be published. The length of an offline one depends on its
    requests."""
    window_s, least_s = totals.window_s, scenario.least_seconds
    missing = shortfalls(scenario.label, totals.requests, window_s)
    if scenario.arrivals is Arrivals.AT_ONCE and window_s < least_s < MIN_DURATION_S:
        missing.append(f"{window_s:.1f} s instead of the requested {least_s:g} s: raise --requests")
    return missing
