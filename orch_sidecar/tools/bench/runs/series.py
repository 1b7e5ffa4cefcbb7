"""Series of runs: the search for the largest rate that meets an SLO, and sweeps of concurrencies.

The search has short trials: the rate is multiplied until the SLO is missed, or divided until it is
met, and the largest rate is then approached from both sides. Then it measures at the rate that it
found (MLPerf Server). One that ends early returns its last trial as an incomplete result, with all
trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.load.scenario import Plan
from orch_sidecar.tools.bench.results.result import KEPT_SHARE, Result, Status, Trial
from orch_sidecar.tools.bench.results.sweep import Sweep, sweep_of
from orch_sidecar.tools.bench.runs.run import measure
from orch_sidecar.tools.terminal import print_error


@dataclass(slots=True)
class RateSearch:
    """The rates that were tried, and the next one, above 0.

    `trial_s`: the length of a trial, of `requests` at least; rates at which these take more than
    `longest` times as long are not tried. `kept_share`: of its requests, rejected ones among them,
    that must meet the SLO. `factor`: from one rate to the next. `precision`: the largest rate is
    within this fraction of the result. `best`: the largest one that met the SLO; `missed`: the
    smallest one that did not; None without one. `last`: the result of the last trial.
    """

    next_per_s: float
    trial_s: float
    kept_share: float = KEPT_SHARE
    requests: int = 100  # with fewer the 99th percentile is the slowest one: an outlier decides
    factor: float = 2.0
    precision: float = 0.05
    most_trials: int = 24
    longest: float = 5.0
    trials: list[Trial] = field(default_factory=list)
    best: Trial | None = None
    missed: Trial | None = None
    last: Result | None = None

    @property
    def done(self) -> bool:
        """Whether the search has ended."""
        if len(self.trials) >= self.most_trials or self.too_slow:
            return True
        if self.best is None or self.missed is None:
            return False
        apart = self.missed.rate_per_s / self.best.rate_per_s
        return apart <= 1 + self.precision + 1e-9  # as quotients are rounded

    @property
    def too_slow(self) -> bool:
        """Whether no rate met the SLO, and a trial at the next one would take too long."""
        least_per_s = self.requests / (self.longest * self.trial_s)
        return bool(self.trials) and self.best is None and self.next_per_s < least_per_s

    def record(self, result: Result) -> Trial:
        """Records the trial at `next_per_s`, and chooses the next rate."""
        good, requests = result.goodput, len(result.calls)
        trial = Trial(
            rate_per_s=self.next_per_s,
            requests=requests,
            share=0.0 if good is None else good.share,  # which is rounded
            kept=good is not None and good.requests >= self.kept_share * requests,
        )
        self.trials.append(trial)
        if trial.kept:
            self.best = trial
        else:
            self.missed = trial
        if self.missed is None:
            self.next_per_s *= self.factor
        elif self.best is None:
            self.next_per_s /= self.factor
        else:
            self.next_per_s = (self.best.rate_per_s * self.missed.rate_per_s) ** 0.5
        return trial


async def try_rates(plan: Plan, search: RateSearch) -> None:
    """Tries rates until the search is done. Each trial has its own prompts.

    Raises what `measure` raises, and Unavailable where a trial is not sound.
    """
    while not search.done:
        rate_per_s = search.next_per_s
        scenario = replace(
            plan.scenario,
            rate_per_s=rate_per_s,
            least_requests=search.requests,
            least_seconds=search.trial_s,
            seed=plan.scenario.seed + 1 + len(search.trials),
        )
        last = search.last = await measure(replace(plan, scenario=scenario, trial=True))
        unserved = last.status is Status.INVALID and last.figures is None  # the rate is too high
        if not (last.is_sound or unserved):
            raise Unavailable(f"the trial at {rate_per_s:.4g}/s is {last.status}")
        tried = search.record(last)
        print_error(f"{tried.rate_per_s:.4g}/s: {tried.share:.1%} met the SLO")
        for cause in last.client.bottleneck:
            print_error(f"  the client may be the bottleneck: {cause}")


async def find_rate(plan: Plan, trial_s: float) -> Result:
    """Returns the run at the largest rate that meets the SLO.

    Raises what `measure` raises where nothing was measured yet.
    """
    assert plan.scenario.rate_per_s is not None
    search = RateSearch(plan.scenario.rate_per_s, trial_s)
    try:
        await try_rates(plan, search)
        if search.best is None:
            why = f"no rate met the SLO, down to {search.trials[-1].rate_per_s:.4g}/s"
            if search.too_slow:
                why += f": lower ones take more than {search.longest:g} times --trial"
            raise Unavailable(why)
        rate_per_s = search.best.rate_per_s
        print_error(f"largest rate that meets the SLO: {rate_per_s:.4g}/s")
        final = replace(plan.scenario, rate_per_s=rate_per_s)
        found, update = await measure(replace(plan, scenario=final)), dict[str, Any]()
    except (Unavailable, OSError, ValueError) as error:
        if search.last is None:
            raise
        found, why = search.last, f"the search ended early: {error}"
        update = {"status": Status.INCOMPLETE, "reasons": [why, *found.reasons]}
    return found.model_copy(update={**update, "trials": search.trials})


async def run_sweep(plan: Plan, concurrencies: Sequence[int]) -> Sweep:
    """Measures each concurrency; what ends the sweep early leaves it incomplete.

    Raises what `measure` raises where nothing was measured yet.
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
            results.append(await measure(replace(plan, scenario=scenario)))
            if results[-1].status is Status.INCOMPLETE:
                raise Unavailable(results[-1].reasons[0])
        except Unavailable as error:
            if not results:
                raise
            ended_by = f"at {clients} clients: {error}"
            break
    return sweep_of(results, ended_by)
