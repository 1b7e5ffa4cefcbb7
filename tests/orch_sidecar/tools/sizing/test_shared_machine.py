"""A plan for engines whose machine another job slows down for half of the time.

The engine is simulated, and measured as the plugin measures one: its fit leaves the slowest steps
out, and the counts of all its steps do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from orch_sidecar.tools.simulate import run
from orch_sidecar.tools.simulate.compare import capacity, with_slo
from orch_sidecar.tools.simulate.engine import Engine, EngineShape
from orch_sidecar.tools.simulate.fronts import Direct
from orch_sidecar.tools.simulate.run import Run
from orch_sidecar.tools.simulate.traffic import BulkClients, Replay, Workload
from orch_sidecar.tools.sizing.fleet import Demand, of_capabilities
from orch_sidecar.tools.traces import read
from vllm_plugin.contracts.profile import load
from vllm_plugin.state.step_time import StepSamples
from vllm_plugin.state.steps import Prefill

SLOTS, SECONDS, LOAD = 8, 60.0, 1.5
TRUE = EngineShape(SLOTS, 12, 3.4, 0.6, 1000, step_tokens=256, long_prefill_tokens=64)
SLO = {"ttft": 2000.0, "tpot": 200.0}
SLOWER, PERIOD_S, FIT_S = 2.5, 1.0, 1.0


class SharedEngine(Engine):
    """Its steps take SLOWER times as long for periods of PERIOD_S in the mean."""

    measured: Measured | None = None

    def __init__(self, shape: EngineShape, seed: int = 0) -> None:
        super().__init__(shape, seed)
        self._chance = Random(f"machine {seed}")
        self._is_slow, self._changes_at = True, 0.0

    def begin_step(self, now: float) -> float | None:
        seconds = super().begin_step(now)
        if seconds is None:
            return None
        while self._changes_at <= now:
            self._is_slow = not self._is_slow
            self._changes_at += self._chance.expovariate(1 / PERIOD_S)
        seconds *= SLOWER if self._is_slow else 1.0
        if self.measured is not None:
            self.measured.step(seconds, self.decoding, sum(each.chunk for each in self._reading))
        return seconds


class Measured:
    """What the plugin reports of an engine's speed."""

    def __init__(self) -> None:
        self._samples, self._prefill = StepSamples(SLOTS), Prefill()
        self._by_batch: dict[int, list[float]] = {}
        self._busy_s = self._fitted_at = 0.0
        self._fit = self._samples.fit()

    def step(self, seconds: float, decoding: int, prompt_tokens: int) -> None:
        self._busy_s += seconds
        if prompt_tokens:
            good = decoding and self._fit is not None and self._fit.good
            decode_s = self._fit.seconds(decoding) if good and self._fit else 0.0
            self._prefill.record(prompt_tokens, seconds, decode_s)
        else:
            self._samples.record(decoding, seconds)
            entry = self._by_batch.setdefault(decoding, [0, 0.0])
            entry[0] += 1
            entry[1] += seconds
        if self._busy_s - self._fitted_at >= FIT_S:
            self._fitted_at, self._fit = self._busy_s, self._samples.fit() or self._fit

    def entry(self, *, in_all: bool) -> dict[str, Any]:
        """`in_all`: with the counts since the start."""
        assert self._fit is not None
        found: dict[str, Any] = {
            "epoch": "e", "slots_total": SLOTS, "foreign": 0,
            "step_time": self._fit.document(),
            "prefill_tokens_per_s": self._prefill.tokens_per_s(),
        }  # fmt: skip
        if in_all:
            counts = {str(batch): entry for batch, entry in self._by_batch.items()}
            found |= {"steps_by_batch": counts, "prefill": self._prefill.document()}
        return found


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(run, "Engine", SharedEngine)
    yield
    SharedEngine.measured = None


def warmed_up(traffic: Replay) -> Measured:
    """An engine that several clients have used, one, two and so on."""
    found = SharedEngine.measured = Measured()
    lengths = Workload(prompt=traffic.prompt, output=24, bulk_factor=1, spread=0.01)
    for clients in (1, 2, 4, 6, 8, 16):
        Run(TRUE, [], 5.0, Direct, clients, clients=[BulkClients(clients, lengths)]).to_the_end()
    SharedEngine.measured = None
    return found


def shape_of(entry: dict[str, Any]) -> EngineShape:
    model = of_capabilities(entry, 100)
    step_tokens, chunk_tokens = TRUE.step_tokens, TRUE.long_prefill_tokens
    model = replace(model, step_tokens=step_tokens, chunk_tokens=chunk_tokens)
    return model.shape(slots=SLOTS)


@pytest.mark.usefixtures("shared")
def test_plan_counts_the_steps_that_another_job_slows_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = read(Path("tests/traces/azure_llm_2023_conv.csv")).scaled(lengths=1 / 16)
    traffic, rules = Replay(trace), with_slo(load("cloud").admission, SLO)
    arrivals = traffic.arrivals(LOAD * capacity(TRUE, traffic, 0), SECONDS, 0)

    def goodput(engines: int, shape: EngineShape) -> float:
        return 100 * Demand(shape, arrivals, SECONDS, rules, SLO).predict(engines).goodput

    measured = warmed_up(traffic)
    actual = [goodput(engines, TRUE) for engines in (1, 2)]
    monkeypatch.setattr(run, "Engine", Engine)
    planned = [goodput(engines, shape_of(measured.entry(in_all=True))) for engines in (1, 2)]
    by_fit = [goodput(engines, shape_of(measured.entry(in_all=False))) for engines in (1, 2)]
    assert planned == pytest.approx(actual, abs=5)
    assert all(fit > true + 5 for fit, true in zip(by_fit, actual, strict=True))
    assert actual[0] < 65, "without the other job it serves 72 %"
