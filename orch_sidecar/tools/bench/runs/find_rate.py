"""Searches the largest rate that meets the SLO with short trials, then measures at that rate.

A search that ends early returns its last trial as an incomplete result, with all trials.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from orch_sidecar.tools.bench.load.endpoint import EndpointError
from orch_sidecar.tools.bench.load.interrupt import Interrupted
from orch_sidecar.tools.bench.plan.plan import Plan
from orch_sidecar.tools.bench.results.result import Result, Status
from orch_sidecar.tools.bench.runs.rate_search import LEAST_REQUESTS, RateSearch
from orch_sidecar.tools.bench.runs.run import NotMeasurable, measure

# A trial needs its requests even at a low rate. Rates at which it would take more than this many
# times the requested length are not tried.
LONGEST_TRIAL: Final = 5.0


async def find_rate(
    plan: Plan, trial_s: float, interrupted: asyncio.Event, report: Callable[[str], None]
) -> Result:
    """Returns the run at the largest rate that meets the SLO. `report`: prints the progress.

    Each trial has its own prompts. Raises what `measure` raises where nothing was measured yet.
    """
    scenario = plan.scenario
    assert scenario.rate_per_s is not None
    search = RateSearch(scenario.rate_per_s, LEAST_REQUESTS / (LONGEST_TRIAL * trial_s))
    last: Result | None = None
    try:
        while not search.done:
            rate_per_s = search.next_per_s
            trial = replace(
                scenario,
                rate_per_s=rate_per_s,
                least_requests=LEAST_REQUESTS,
                least_seconds=trial_s,
                seed=scenario.seed + 1 + len(search.trials),
            )
            last = await measure(replace(plan, scenario=trial), interrupted, report, trial=True)
            if last.status is Status.INCOMPLETE:
                return _ended(last, search, f"the search ended early at {rate_per_s:.4g}/s")
            if last.status is Status.INVALID and last.figures is not None:
                return _ended(last, search, f"the trial at {rate_per_s:.4g}/s is invalid")
            tried = search.record(last)
            report(f"{tried.rate_per_s:.4g}/s: {tried.share:.1%} met the SLO")
            for cause in last.client.bottleneck:
                report(f"  the client may be the bottleneck: {cause}")
        assert last is not None
        if search.best_per_s is None:
            return _ended(last, search, _none_kept(search, trial_s))
        report(f"largest rate that meets the SLO: {search.best_per_s:.4g}/s")
        final = replace(scenario, rate_per_s=search.best_per_s)
        result = await measure(replace(plan, scenario=final), interrupted, report)
    except (EndpointError, NotMeasurable, Interrupted, OSError, ValueError) as error:
        if last is None:
            raise
        return _ended(last, search, f"the search ended early: {error}")
    return result.model_copy(update={"trials": search.trials})


def _ended(last: Result, search: RateSearch, why: str) -> Result:
    """Returns the last trial as an incomplete result."""
    update = {"status": Status.INCOMPLETE, "reasons": [why, *last.reasons], "trials": search.trials}
    return last.model_copy(update=update)


def _none_kept(search: RateSearch, trial_s: float) -> str:
    text = f"no rate met the SLO, down to {search.trials[-1].rate_per_s:.4g}/s"
    if not search.too_slow:
        return text
    next_s = LEAST_REQUESTS / search.next_per_s
    return (
        f"{text}: a trial at {search.next_per_s:.4g}/s would take {next_s:.0f} s for "
        f"{LEAST_REQUESTS} requests, more than {LONGEST_TRIAL:g} times --trial {trial_s:g}"
    )
