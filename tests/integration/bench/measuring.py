"""Measurements in the test's own event loop, on scripted engines behind real sidecars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.tools.bench.load.prompts import cycle, synthetic
from orch_sidecar.tools.bench.load.scenario import Plan, Scenario
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.runs.run import measure
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from tests.integration.client import COMPLETIONS
from tests.integration.running import Running

SINGLE = Scenario(Label.SINGLE_STREAM, 12, arrivals=Arrivals.ONE_BY_ONE, clients=1)
CLOSED = Scenario(Label.BATCHED_ONLINE, 24, arrivals=Arrivals.CLOSED_LOOP, clients=4)
POISSON = Scenario(Label.BATCHED_ONLINE, 40, arrivals=Arrivals.POISSON, rate_per_s=100.0)
OFFLINE = Scenario(Label.OFFLINE, 30, arrivals=Arrivals.AT_ONCE)

INPUT_TOKENS, OUTPUT_TOKENS = 20, 6

Value = TypeVar("Value")


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


async def post_of_others(running: Running, max_tokens: int) -> None:
    """A request of another client, and its answer."""
    client, prompt = await running.client(), list(range(5))
    response = await client.post(COMPLETIONS, stream=True, prompt=prompt, max_tokens=max_tokens)
    assert response.status == 200


def prompts_file(folder: Path) -> str:
    """The path of a file of three prompts, with 4 tokens and answers of 6."""
    path = folder / "prompts.jsonl"
    lines = [{"prompt": [number, 1, 2, 3], "output_tokens": 6} for number in range(3)]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return str(path)


def known(value: Value | None) -> Value:
    """A value that must be there."""
    assert value is not None
    return value
