"""Measures what `orch tune` decides from: closed loops of growing size, then a few rates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from orch_sidecar.api.headers import X_ORCH_CLASS
from orch_sidecar.tools.bench.load.capabilities import entry_of, read_capabilities
from orch_sidecar.tools.bench.load.endpoint import EndpointError
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.plan import Plan
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.bench.runs.series import RateSearch, SearchRules, run_sweep, try_rates
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.simulate.traffic import Traffic
from orch_sidecar.tools.tune.decision import Decision, decide
from orch_sidecar.tools.tune.engine_model import (
    EngineModel,
    FullSlots,
    curve_of,
    model_of,
    steps_between,
)

# Bulk requests, so that no SLO of the profile in force limits the batch that is to be measured.
_SWEEP_CLASS: Final = "bulk"
# The SLOs of a profile are of the 95th percentile; a share of fewer requests is no share. A rate
# that meets them and one a quarter above it that does not are enough.
RATES: Final = SearchRules(0.95, requests=40, factor=1.25, precision=0.25, most_trials=5)
# Of the rate at which all slots are always full: below it queues stay short.
_FIRST_SHARE: Final = 0.8
# Trials have other prompts than the closed loops before them.
_SEEDS_APART: Final = 100


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was measured and decided. `rate`: None without an SLO."""

    sweep: Sweep
    model: EngineModel
    full: FullSlots
    decision: Decision
    rate: RateSearch | None


async def tune(
    plan: Plan,
    traffic: Traffic,
    seconds: float,
    interrupted: asyncio.Event,
    report: Callable[[str], None],
) -> Tuning:
    """Measures and decides. `traffic`: like that of the plan. `seconds`: of each concurrency and
    trial. `report`: progress.

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
    model = model_of(entry, round(traffic.prompt + traffic.output), curve, prefill)
    slo_ms = plan.scenario.slo_ms
    full = FullSlots(model.shape(), traffic)
    full.measured(_times_per_token(sweep))
    decision = decide(model, full, slo_ms.get("tpot"), slots)
    rate = None
    if slo_ms:
        usable = min(decision.slots, slots)
        rate = RateSearch(_FIRST_SHARE * full.at(usable).requests_per_s, RATES, seconds)
        apart = replace(plan.scenario, seed=plan.scenario.seed + _SEEDS_APART)
        if why := await try_rates(replace(plan, scenario=apart), rate, interrupted, report):
            report(why)
    return Tuning(sweep, model, full, decision, rate)


def _times_per_token(sweep: Sweep) -> Iterator[tuple[int, float]]:
    """Yields the 95th percentile of each concurrency, milliseconds. One request alone waits for
    no prompt of another."""
    for point, result in zip(sweep.points, sweep.results, strict=True):
        figures = result.figures
        if point.clients and point.clients > 1 and figures is not None and figures.tpot_ms:
            yield point.clients, figures.tpot_ms.p95


def _entries(result: Result, pool: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the pool's entries before and after a run."""
    found = [entry_of(document, pool) for document in result.capabilities]
    if len(found) < 2:
        raise EndpointError(
            f"the engine's state after a run is missing: {'; '.join(result.reasons) or 'unknown'}"
        )
    return found[0], found[-1]
