"""Measures what `orch tune` decides from: closed loops of growing size, then a few rates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from orch_sidecar.api.headers import X_ORCH_CLASS
from orch_sidecar.tools.bench.load.capabilities import read_capabilities
from orch_sidecar.tools.bench.load.endpoint import EndpointError
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.plan.plan import Plan
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.bench.runs.run import measure
from orch_sidecar.tools.bench.runs.series import run_sweep
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.workload import Workload
from orch_sidecar.tools.tune.decision import Decision, decide
from orch_sidecar.tools.tune.full_slots import FullSlots
from orch_sidecar.tools.tune.memory import MemoryBound, memory_bound
from orch_sidecar.tools.tune.rate import FIRST_SHARE, RateBracket, Trial
from orch_sidecar.tools.tune.steps import StepCurve, curve_of, steps_between

# Bulk requests, so that no SLO of the profile in force limits the batch that is to be measured.
_SWEEP_CLASS: Final = "bulk"
# A share of fewer requests is no share.
TRIAL_REQUESTS: Final = 40


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of each request."""

    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was measured and decided. `rate`: None without an SLO."""

    sweep: Sweep
    curve: StepCurve
    full: FullSlots
    memory: MemoryBound | None
    decision: Decision
    prefill_tokens_per_s: float | None
    rate: RateBracket | None


async def tune(
    plan: Plan,
    lengths: Lengths,
    seconds: float,
    interrupted: asyncio.Event,
    report: Callable[[str], None],
) -> Tuning:
    """Measures and decides. `seconds`: of each concurrency and trial. `report`: progress.

    Raises what `measure` of bench raises, and NotEnough where no curve can be drawn.
    """
    found = await read_capabilities(plan.endpoint, plan.pool)
    if found is None:
        raise EndpointError(
            f"{plan.endpoint.url} has no /v1/capabilities: orch tune needs an engine with the "
            "plugin, or a sidecar"
        )
    slots = found.snapshot.slots_total
    sizes = [2**power for power in range(slots.bit_length()) if 2**power < slots] + [slots]
    report(f"{len(sizes)} concurrencies from 1 to {slots}, {seconds:g} s each, then up to 5 rates")
    fields = {**plan.endpoint.fields, X_ORCH_CLASS: _SWEEP_CLASS}
    closed = Scenario(Label.BATCHED_ONLINE, Arrivals.CLOSED_LOOP, 1, seconds, plan.scenario.seed)
    endpoint = replace(plan.endpoint, fields=fields)
    steady = replace(plan, endpoint=endpoint, scenario=closed)
    sweep = await run_sweep(steady, sizes, interrupted, report)
    curve = curve_of(steps_between(*_entries(each, found.snapshot.pool)) for each in sweep.results)
    entry = _entries(sweep.results[-1], found.snapshot.pool)[1]
    prefill = entry.get("prefill_tokens_per_s") or None
    memory = memory_bound(entry, lengths.prompt + lengths.output)
    slo = plan.scenario.slo
    full = FullSlots(_shape(curve, prefill, entry), _requests(lengths))
    full.measured(_times_per_token(sweep))
    decision = decide(curve, full, memory, slo.tpot_ms, prefill, slots)
    rate = None
    if slo.bounds:
        usable = min(decision.slots, slots)
        rate = RateBracket(FIRST_SHARE * full.at(usable).requests_per_s)
        await _try_rates(plan, rate, seconds, interrupted, report)
    return Tuning(sweep, curve, full, memory, decision, prefill, rate)


def _shape(
    curve: StepCurve, prefill_tokens_per_s: float | None, entry: Mapping[str, Any]
) -> EngineShape:
    """Returns the engine. Where it has not measured its prefill, prompts take no time."""
    features, plain, fit = entry.get("features", {}), EngineShape(), curve.fit
    step_tokens = features.get("max_num_batched_tokens") or plain.step_tokens
    return EngineShape(
        t0_ms=fit.t0,
        c_ms=fit.c,
        alpha=fit.alpha,
        prefill_tokens_per_s=prefill_tokens_per_s or inf,
        step_tokens=step_tokens,
        long_prefill_tokens=features.get("long_prefill_token_threshold") or step_tokens,
    )


def _requests(lengths: Lengths) -> Workload:
    return Workload(bulk_share=0.0, prompt=lengths.prompt, output=lengths.output, spread=0.0)


def _times_per_token(sweep: Sweep) -> Iterator[tuple[int, float]]:
    """Yields the 95th percentile of each concurrency, milliseconds. One request alone waits for
    no prompt of another."""
    for point, result in zip(sweep.points, sweep.results, strict=True):
        figures = result.figures
        if point.clients and point.clients > 1 and figures is not None and figures.tpot_ms:
            yield point.clients, figures.tpot_ms.p95


async def _try_rates(
    plan: Plan,
    rate: RateBracket,
    seconds: float,
    interrupted: asyncio.Event,
    report: Callable[[str], None],
) -> None:
    while not rate.done and not interrupted.is_set():
        scenario = replace(
            plan.scenario,
            rate_per_s=rate.next_per_s,
            least_requests=TRIAL_REQUESTS,
            least_seconds=seconds,
            seed=plan.scenario.seed + 100 + len(rate.trials),
        )
        result = await measure(replace(plan, scenario=scenario), interrupted, report, trial=True)
        met = 0 if result.goodput is None else result.goodput.requests
        trial = Trial(rate.next_per_s, len(result.calls), met)
        rate.record(trial)
        report(f"{trial.rate_per_s:.3g} requests/s: {trial.share:.0%} met the SLO")


def _entries(result: Result, pool: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the pool's entries before and after a run."""
    found = [
        entry
        for document in result.capabilities
        for entry in document["engines"]
        if entry["pool"] == pool
    ]
    if len(found) < 2:
        raise EndpointError(
            f"the engine's state after a run is missing: {'; '.join(result.reasons) or 'unknown'}"
        )
    return found[0], found[-1]
