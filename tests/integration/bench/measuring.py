"""Measurements in the test's own event loop, on scripted engines behind real sidecars."""

from __future__ import annotations

from typing import Any

from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.tools.bench.load.prompts import cycle, synthetic
from orch_sidecar.tools.bench.load.scenario import Plan, Scenario
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.runs.run import measure
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from tests.integration.running import Running

SINGLE = Scenario(Label.SINGLE_STREAM, 12, arrivals=Arrivals.ONE_BY_ONE, clients=1)
CLOSED = Scenario(Label.BATCHED_ONLINE, 24, arrivals=Arrivals.CLOSED_LOOP, clients=4)
POISSON = Scenario(Label.BATCHED_ONLINE, 40, arrivals=Arrivals.POISSON, rate_per_s=100.0)
OFFLINE = Scenario(Label.OFFLINE, 30, arrivals=Arrivals.AT_ONCE)

INPUT_TOKENS, OUTPUT_TOKENS = 20, 6


def plan(url: str, scenario: Scenario, *, pool: str | None = None, **more: Any) -> Plan:
    """Synthetic prompts of 20 tokens, answers of 6."""
    values: dict[str, Any] = {
        "endpoint": Endpoint.of(url, pool=pool),
        "model": "tiny",
        "scenario": scenario,
        "prompts": lambda seed: synthetic(range(100), INPUT_TOKENS, OUTPUT_TOKENS, seed),
        "ignore_eos": True,
        "given": {},
    }
    return Plan(**values | more)


def the_same(seed: int) -> Any:
    """One prompt again and again."""
    return cycle([next(synthetic(range(100), INPUT_TOKENS, OUTPUT_TOKENS, 1))], seed)


async def measured(url: str, scenario: Scenario, **more: Any) -> Result:
    """The result of a run that nobody interrupts."""
    return await measure(plan(url, scenario, **more))


def url_of(running: Running) -> str:
    return f"http://127.0.0.1:{running.port}"
