"""Runs closed loops of several concurrencies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from orch_sidecar.tools.bench.load.endpoint import EndpointError
from orch_sidecar.tools.bench.load.interrupt import Interrupted
from orch_sidecar.tools.bench.plan.plan import Plan
from orch_sidecar.tools.bench.results.result import Result, Status
from orch_sidecar.tools.bench.results.sweep import Sweep, sweep_of
from orch_sidecar.tools.bench.runs.run import NotMeasurable, measure, silent


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
