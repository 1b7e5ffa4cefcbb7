"""What a run came to: its calls and the engine's snapshots in, its result out.

Pure. The label is judged by what the engine did (`facts/verdict.py`), never by what was asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orch_sidecar.bench.call import Call, Fate
from orch_sidecar.bench.load import Pulse
from orch_sidecar.bench.result import (
    BatchesTold,
    ClientTold,
    Counts,
    EngineTold,
    FiguresTold,
    Goodput,
    Result,
    ScenarioTold,
    SpreadMs,
    Status,
)
from orch_sidecar.bench.scenario import Scenario
from orch_sidecar.facts.served import Served, Spread, figures, spread
from orch_sidecar.facts.snapshot import Snapshot
from orch_sidecar.facts.verdict import Own, batches_of, judge, shortfalls

# A client that is later than this cannot have held to its schedule, and one that is busier or
# slower to wake than these adds to every time it takes.
LATE_MS: Final = 10.0
LAG_MS: Final = 20.0
CPU_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Given:
    """What an operator has typed about the engine, for one that does not tell it."""

    engine: str | None = None
    precision: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None

    @property
    def names(self) -> list[str]:
        values = {name: getattr(self, name) for name in ("engine", "precision", "gpu", "gpu_count")}
        return [name for name, value in values.items() if value is not None]


@dataclass(frozen=True, slots=True)
class Run:
    """A run that has ended. `documents`: capabilities before and after, if the endpoint has
    them, and `snapshots` what they say."""

    id: str
    began_at: str
    endpoint: str
    model: str
    prompts: str
    scenario: Scenario
    calls: Sequence[Call]
    pulse: Pulse
    host: Mapping[str, Any]
    stopped: bool
    given: Given
    documents: Sequence[Any] = ()
    snapshots: tuple[Snapshot, Snapshot] | None = None


def result_of(run: Run) -> Result:
    """The result, with its verdict."""
    served = [each for call in run.calls if (each := call.served) is not None]
    counted = figures(served) if served else None
    counts = _counts(run)
    own = Own(counts.sent, counts.answered)
    reasons, missing = [], []
    if run.snapshots is not None:
        reasons = judge(run.scenario.label, *run.snapshots, own)
    if not served:
        reasons.append("no request was answered in full")
    else:
        assert counted is not None
        missing = shortfalls(run.scenario.label, len(served), counted.window_s)
    if run.stopped:
        status = Status.INCOMPLETE
    elif reasons:
        status = Status.INVALID
    elif run.snapshots is None:
        status = Status.UNVERIFIED
        reasons = ["the endpoint has no /v1/capabilities: nobody says how its engine batched"]
    else:
        status = Status.PRELIMINARY if missing else Status.VALID
    return Result(
        id=run.id,
        status=status,
        reasons=reasons,
        shortfalls=missing,
        measurement_type=run.scenario.label,
        began_at=run.began_at,
        endpoint=run.endpoint,
        scenario=_scenario(run),
        engine=_engine(run),
        client=_client(run),
        counts=counts,
        figures=None if counted is None else _figures(run, served),
        goodput=_goodput(run, served),
        batches=None if run.snapshots is None else _batches(run.snapshots),
        capabilities=list(run.documents),
        calls=[_row(call) for call in run.calls],
    )


def _counts(run: Run) -> Counts:
    fates = Counter(call.fate for call in run.calls)
    reasons = Counter(call.why for call in run.calls if call.why)
    return Counts(
        sent=sum(call.sent_s is not None for call in run.calls),
        answered=fates[Fate.ANSWERED],
        refused=fates[Fate.REFUSED],
        failed=fates[Fate.FAILED],
        cut=fates[Fate.CUT],
        reasons=dict(reasons.most_common(20)),
        tokens_counted_by_events=any(call.counted_by_events for call in run.calls),
    )


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
        slo_ms=scenario.slo.bounds,
    )


def _engine(run: Run) -> EngineTold:
    given = run.given
    if run.snapshots is None:
        name, _, version = (given.engine or "").partition(" ")
        return EngineTold(
            engine=name or None,
            engine_version=version or None,
            model=run.model,
            pool=None,
            profile=None,
            slots_total=None,
            precision=given.precision,
            gpu=given.gpu,
            gpu_count=given.gpu_count,
            epoch=None,
            given=given.names,
        )
    told = run.snapshots[0]
    name, _, version = (given.engine or f"{told.engine} {told.engine_version}").partition(" ")
    return EngineTold(
        engine=name,
        engine_version=version,
        model=run.model,
        pool=told.pool,
        profile=told.profile,
        slots_total=told.slots_total,
        precision=given.precision or told.precision,
        gpu=given.gpu or told.gpu,
        gpu_count=told.gpu_count if given.gpu_count is None else given.gpu_count,
        epoch=told.epoch,
        given=given.names,
    )


def _client(run: Run) -> ClientTold:
    late = spread([call.late_s for call in run.calls if call.due_s is not None])
    lag = spread(run.pulse.lag_s)
    causes = []
    if late is not None and 1000 * late.p99 > LATE_MS:
        causes.append(f"requests were sent {1000 * late.p99:.1f} ms late (p99)")
    if lag is not None and 1000 * lag.p99 > LAG_MS:
        causes.append(f"its event loop woke {1000 * lag.p99:.1f} ms late (p99)")
    if run.pulse.cpu_share > CPU_SHARE:
        causes.append(f"it was busy for {run.pulse.cpu_share:.0%} of one core")
    return ClientTold(
        host=dict(run.host),
        late_ms=_ms(late),
        loop_lag_ms=_ms(lag),
        cpu_share=round(run.pulse.cpu_share, 3),
        bottleneck=causes,
    )


def _figures(run: Run, served: Sequence[Served]) -> FiguresTold:
    found = figures(served)
    answered = [call for call in run.calls if call.fate is Fate.ANSWERED]
    latency = _ms(found.latency_s)
    assert latency is not None
    queued_s = [call.queue_ms / 1000 for call in answered if call.queue_ms is not None]
    return FiguresTold(
        window_s=round(found.window_s, 6),
        input_tokens=found.input_tokens,
        output_tokens=found.output_tokens,
        tokens_per_s=round(found.tokens_per_s, 4),
        requests_per_s=round(found.requests / found.window_s, 4),
        ttft_ms=_ms(found.ttft_s),
        tpot_ms=_ms(found.tpot_s),
        itl_ms=_ms(spread([gap for call in answered for gap in call.gaps_s])),
        latency_ms=latency,
        queue_ms=_ms(spread(queued_s)),
    )


def _goodput(run: Run, served: Sequence[Served]) -> Goodput | None:
    slo = run.scenario.slo
    if not slo.bounds or not served:
        return None
    window_s = figures(served).window_s
    kept = [each for each in served if slo.kept_by(each)]
    return Goodput(
        requests=len(kept),
        share=round(len(kept) / len(run.calls), 4),
        requests_per_s=round(len(kept) / window_s, 4),
        tokens_per_s=round(sum(each.output_tokens for each in kept) / window_s, 4),
    )


def _batches(snapshots: tuple[Snapshot, Snapshot]) -> BatchesTold:
    found = batches_of(*snapshots)
    return BatchesTold(steps=found.steps, largest=found.largest, mean=round(found.mean, 3))


def _ms(found: Spread | None) -> SpreadMs | None:
    if found is None:
        return None
    names = ("mean", "p50", "p90", "p95", "p99")
    values = {name: round(1000 * getattr(found, name), 4) for name in names}
    return SpreadMs(**values, max=round(1000 * found.most, 4))


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
