"""Series of runs: the search for the largest rate that meets an SLO, and sweeps of concurrencies.

The search has short trials, then measures at the rate that it found (MLPerf Server). One that ends
early returns its last trial as an incomplete result, with all trials.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from orch_sidecar.tools.bench.load.endpoint import EndpointError
from orch_sidecar.tools.bench.load.interrupt import Interrupted
from orch_sidecar.tools.bench.plan.plan import Plan
from orch_sidecar.tools.bench.results.result import KEPT_SHARE, Result, Status, Trial
from orch_sidecar.tools.bench.results.sweep import Sweep, sweep_of
from orch_sidecar.tools.bench.runs.run import NotMeasurable, measure, silent

# With fewer requests the 99th percentile is the slowest one, and a single outlier decides.
LEAST_REQUESTS: Final = 100
# The result is within this fraction of the largest rate.
PRECISION: Final = 0.05
MAX_TRIALS: Final = 24
# A trial needs its requests even at a low rate. Rates at which it would take more than this many
# times the requested length are not tried.
LONGEST_TRIAL: Final = 5.0


class RateSearch:
    """Doubles the rate until the SLO is missed, then bisects.

    `best_per_s`: the largest rate so far that met the SLO, None without one.
    """

    def __init__(self, first_per_s: float, least_per_s: float = 0.0) -> None:
        """`least_per_s`: the lowest rate to try after the first one.

        Raises ValueError for a first rate that is not above 0.
        """
        if not first_per_s > 0:
            raise ValueError(f"the first rate is {first_per_s}: it must be above 0")
        self.next_per_s = first_per_s
        self.best_per_s: float | None = None
        self._least_per_s = least_per_s
        self.trials: list[Trial] = []
        self._missed_per_s: float | None = None

    @property
    def done(self) -> bool:
        """Whether the search has ended."""
        best, missed = self.best_per_s, self._missed_per_s
        if len(self.trials) >= MAX_TRIALS or self.too_slow:
            return True
        return best is not None and missed is not None and missed / best <= 1 + PRECISION

    @property
    def too_slow(self) -> bool:
        """Whether no rate met the SLO and the next one is below the lowest to try."""
        below = self.next_per_s < self._least_per_s
        return bool(self.trials) and self.best_per_s is None and below

    def record(self, result: Result) -> Trial:
        """Records the trial at `next_per_s` and chooses the next rate."""
        trial = Trial(
            rate_per_s=self.next_per_s,
            requests=len(result.calls),
            share=0.0 if result.goodput is None else result.goodput.share,
            kept=kept(result),
        )
        self.trials.append(trial)
        if trial.kept:
            self.best_per_s = self.next_per_s
        else:
            self._missed_per_s = self.next_per_s
        if self._missed_per_s is None:
            self.next_per_s *= 2
        elif self.best_per_s is None:
            self.next_per_s /= 2
        else:
            self.next_per_s = (self.best_per_s * self._missed_per_s) ** 0.5
        return trial


def kept(result: Result) -> bool:
    """Returns whether 99 % of all sent requests met the SLO; a rejected one did not."""
    return result.goodput is not None and (
        result.goodput.requests >= KEPT_SHARE * len(result.calls)
    )


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
            warm_up=clients,
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
