"""Series of runs: the search for the largest rate that meets an SLO, and sweeps of concurrencies.

The search has short trials, then measures at the rate that it found (MLPerf Server). One that ends
early returns its last trial as an incomplete result, with all trials.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from orch_sidecar.tools.bench.load.endpoint import EndpointError
from orch_sidecar.tools.bench.load.interrupt import Interrupted
from orch_sidecar.tools.bench.plan.plan import Plan
from orch_sidecar.tools.bench.results.result import Result, Status
from orch_sidecar.tools.bench.results.sweep import Sweep, sweep_of
from orch_sidecar.tools.bench.runs.rate import RULES, RateSearch, try_rates
from orch_sidecar.tools.bench.runs.run import NotMeasurable, measure, silent


async def find_rate(
    plan: Plan, trial_s: float, interrupted: asyncio.Event, report: Callable[[str], None]
) -> Result:
    """Returns the run at the largest rate that meets the SLO. `report`: prints the progress.

    Raises what `measure` raises where nothing was measured yet.
    """
    assert plan.scenario.rate_per_s is not None
    search = RateSearch(plan.scenario.rate_per_s, RULES, trial_s)
    try:
        why = await try_rates(plan, search, interrupted, report)
        if why or search.best is None:
            return _ended(search, why or search.why_none)
        rate_per_s = search.best.rate_per_s
        report(f"largest rate that meets the SLO: {rate_per_s:.4g}/s")
        final = replace(plan.scenario, rate_per_s=rate_per_s)
        result = await measure(replace(plan, scenario=final), interrupted, report)
    except (EndpointError, NotMeasurable, Interrupted, OSError, ValueError) as error:
        if search.last is None:
            raise
        return _ended(search, f"the search ended early: {error}")
    return result.model_copy(update={"trials": search.trials})


def _ended(search: RateSearch, why: str) -> Result:
    """Returns the last trial as an incomplete result."""
    last = search.last
    assert last is not None, "a search has a trial"
    update = {"status": Status.INCOMPLETE, "reasons": [why, *last.reasons], "trials": search.trials}
    return last.model_copy(update=update)


async def run_sweep(
    plan: Plan,
    concurrencies: Sequence[int],
    interrupted: asyncio.Event,
    report: Callable[[str], None] = silent,
) -> Sweep:
    """Measures each concurrency; what ends the sweep early leaves it incomplete.

    `report`: as of `measure`. Raises what `measure` raises where nothing was measured yet.
    """
    results: list[Result] = []
    ended_by = ""
    for number, clients in enumerate(concurrencies):
        # Each has its own prompts, and a warm-up at its own concurrency.
        scenario = replace(
            plan.scenario,
            clients=clients,
            least_requests=2 * clients,
            warm_up_requests=clients,
            seed=plan.scenario.seed + number,
        )
        try:
            results.append(await measure(replace(plan, scenario=scenario), interrupted, report))
        except (EndpointError, NotMeasurable, Interrupted) as error:
            if not results:
                raise
            ended_by = f"at {clients} clients: {error}"
            break
        if results[-1].status is Status.INCOMPLETE:
            ended_by = f"at {clients} clients: {results[-1].reasons[0]}"
            break
    return sweep_of(results, ended_by)
