"""The search for a rate as it is run: short trials, and then the run that was asked for.

Whatever ends the search, what was measured by then is the result: incomplete, with its trials.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from orch_sidecar.tools.bench.load.endpoint import EndpointError
from orch_sidecar.tools.bench.load.interrupt import Interrupted
from orch_sidecar.tools.bench.results.result import Result, Status
from orch_sidecar.tools.bench.runs.rate_search import LEAST_REQUESTS, RateSearch
from orch_sidecar.tools.bench.runs.run import NotMeasurable, Plan, measure

# A trial takes its requests, however seldom they come. Rates at which that takes longer than so
# many times what a trial was to take are not looked for: whoever wants them says so.
LONGEST_TRIAL: Final = 5.0


async def find_rate(
    plan: Plan, trial_s: float, interrupted: asyncio.Event, tell: Callable[[str], None]
) -> Result:
    """The run at the largest rate that keeps the SLO. `tell`: how the search goes, in words.

    Each trial has prompts of its own. Raises what `measure` does, where nothing was measured yet.
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
            last = await measure(replace(plan, scenario=trial), interrupted, trial=True)
            if last.status is Status.INCOMPLETE:
                return _ended(last, search, f"the search was stopped at {rate_per_s:.4g}/s")
            if last.status is Status.INVALID and last.figures is not None:
                return _ended(last, search, f"the trial at {rate_per_s:.4g}/s is invalid")
            told = search.tell(last)
            tell(f"{told.rate_per_s:.4g}/s: {told.share:.1%} kept the SLO")
            for cause in last.client.bottleneck:
                tell(f"  the client may be the bottleneck: {cause}")
        assert last is not None
        if search.best_per_s is None:
            return _ended(last, search, _none_kept(search, trial_s))
        tell(f"largest rate that keeps the SLO: {search.best_per_s:.4g}/s")
        final = replace(scenario, rate_per_s=search.best_per_s)
        result = await measure(replace(plan, scenario=final), interrupted)
    except (EndpointError, NotMeasurable, Interrupted, OSError, ValueError) as error:
        if last is None:
            raise
        return _ended(last, search, f"the search was ended: {error}")
    return result.model_copy(update={"trials": search.trials})


def _ended(last: Result, search: RateSearch, why: str) -> Result:
    """The last trial, as what there is."""
    told = {"status": Status.INCOMPLETE, "reasons": [why, *last.reasons], "trials": search.trials}
    return last.model_copy(update=told)


def _none_kept(search: RateSearch, trial_s: float) -> str:
    said = f"no rate kept the SLO, down to {search.trials[-1].rate_per_s:.4g}/s"
    if not search.too_slow:
        return said
    next_s = LEAST_REQUESTS / search.next_per_s
    return (
        f"{said}: a trial at {search.next_per_s:.4g}/s would take {next_s:.0f} s for "
        f"{LEAST_REQUESTS} requests, more than {LONGEST_TRIAL:g} times --trial {trial_s:g}"
    )
