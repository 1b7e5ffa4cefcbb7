"""The prediction for several engines, and the command that prints it.

A plan for engines whose machine another job slows down for half of the time. The engine is
simulated, and measured as the plugin measures one: its fit leaves the slowest steps out, and the
counts of all its steps do not.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from orch_sidecar import cli
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.simulate import run
from orch_sidecar.tools.simulate.compare import capacity, with_slo
from orch_sidecar.tools.simulate.engine import Engine, EngineShape
from orch_sidecar.tools.simulate.fronts import Direct
from orch_sidecar.tools.simulate.run import Run
from orch_sidecar.tools.simulate.traffic import Arrival, BulkClients, Replay, Workload
from orch_sidecar.tools.sizing.fleet import Demand, of_capabilities
from orch_sidecar.tools.sizing.plan import needed, plan_text
from orch_sidecar.tools.traces import read
from tests.orch_sidecar.tools.sizing.rows import BATCHES, row
from vllm_plugin.contracts.profile import ServiceClass, load
from vllm_plugin.state.engine_speed import EngineSpeed, SchedulerReport

SHAPE = EngineShape(slots=8, t0_ms=10.0, c_ms=1.0, alpha=1.0)
SLO = {"ttft": 1000.0, "tpot": 60.0}
RULES = with_slo(load("cloud").admission, SLO)
SECONDS = 60.0
CONVERSATION = Path("tests/traces/azure_llm_2023_conv.csv")


def traffic(rate: float) -> list[Arrival]:
    return Workload(bulk_share=0.0, prompt=64, output=50).arrivals(rate, SECONDS, 1)


def demand(rate: float) -> Demand:
    return Demand(SHAPE, traffic(rate), SECONDS, RULES, SLO)


def test_rules_have_the_slo_of_the_plan() -> None:
    assert RULES.interactive is not None
    assert (RULES.interactive.ttft_p95_ms, RULES.interactive.tpot_p95_ms) == (1000.0, 60.0)
    assert with_slo(load("offline").admission, SLO).interactive is None


def test_every_request_goes_to_one_engine_and_the_load_is_even() -> None:
    arrivals = traffic(20.0)
    parts = demand(20.0).spread(3)
    assert sorted((each for part in parts for each in part), key=lambda each: each.at) == arrivals
    sizes = [len(part) for part in parts]
    assert max(sizes) < 1.15 * min(sizes)


def test_goodput_grows_with_the_engines_until_all_are_served() -> None:
    # One engine serves about 8.5 requests per second: 8 slots, 50 tokens of 18 ms.
    found = list(demand(20.0).grow(8, 0.98))
    shares = [each.goodput for each in found]
    assert shares == sorted(shares)
    assert shares[0] < 0.6
    enough = needed(found, 0.98)
    assert enough in (3, 4)
    assert len(found) == enough + 1
    for each in found:
        assert each.goodput + each.refused <= 1 + 1e-9
        assert each.requests == len(traffic(20.0))
    assert found[0].occupancy > 0.8 > found[-1].occupancy


def test_slow_steps_miss_the_slo_of_the_time_per_token() -> None:
    slow = EngineShape(slots=8, t0_ms=70.0, c_ms=1.0, alpha=1.0)
    arrivals = [Arrival(float(at), ServiceClass.INTERACTIVE, 8, 20, 20) for at in range(0, 60, 5)]
    for tpot_ms, goodput in ((60.0, 0.0), (90.0, 1.0)):
        slo_ms = {"ttft": 5000.0, "tpot": tpot_ms}
        assert Demand(slow, arrivals, SECONDS, RULES, slo_ms).predict(1).goodput == goodput


def test_text_names_what_is_not_enough() -> None:
    found = list(demand(20.0).grow(1, 0.98))
    assert needed(found, 0.98) is None
    assert "not enough: 1 engines serve" in plan_text(found, 0.98)


def test_money_is_that_of_whole_engines_over_the_tokens_within_the_slo() -> None:
    found = list(demand(5.0).grow(2, 0.98))
    assert found[0].goodput == 1.0
    tokens = sum(each.output for each in traffic(5.0))
    assert found[0].good_tokens_per_s == pytest.approx(tokens / SECONDS)
    head, one, two, *_ = (line.split() for line in plan_text(found, 0.98, 3.6).splitlines())
    assert head[-5:] == ["hour", "1M", "out", "in", "SLO"]
    assert [float(line[-2]) for line in (one, two)] == [3.6, 7.2]
    assert float(one[-1]) == pytest.approx(1000 / found[0].good_tokens_per_s, rel=1e-3)
    assert float(two[-1]) == pytest.approx(2 * float(one[-1]), rel=0.01)


def test_command_plans_a_trace_from_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out, image = (tmp_path / name for name in ("facts.csv", "plan.json", "plan.png"))
    files.append(table, [row(batch) for batch in BATCHES])
    words = ["plan", "--trace", str(CONVERSATION), "--trace-window", "0:30", "--fact", str(table)]
    words += ["--slo-ttft-ms", "2000", "--slo-tpot-ms", "40", "--time-factor", "1/8"]
    memory = ["--kv-gib", "4", "--kv-bytes-per-token", "131072"]
    cli.main([*words, *memory, "--json", str(out), "--plot", str(image), "--per-hour", "2.5"])
    text = capsys.readouterr().out
    assert "KV cache of 32768 tokens" in text
    assert "enough for 95% within the SLO" in text
    plan = json.loads(out.read_text())
    assert any(each["goodput"] >= 0.95 for each in plan["predictions"])
    assert plan["engine_hour"] == 2.5
    assert image.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--kv-gib", "4"])
    assert ended.value.code == 2
    assert "--kv-gib 4: give --kv-bytes-per-token, too" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--most", "1", "--time-factor", "1/400"])
    assert ended.value.code == 1
    assert "not enough" in capsys.readouterr().out


SLOTS, SHARED_S, LOAD = 8, 60.0, 1.5
TRUE = EngineShape(SLOTS, 12, 3.4, 0.6, 1000, step_tokens=256, long_prefill_tokens=64)
SHARED_SLO = {"ttft": 2000.0, "tpot": 200.0}
SLOWER, PERIOD_S = 2.5, 1.0


class SharedEngine(Engine):
    """Its steps take SLOWER times as long for periods of PERIOD_S in the mean."""

    measured: EngineSpeed | None = None

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
            self._report(self.measured, seconds, sum(each.chunk for each in self._reading))
        return seconds

    def _report(self, measured: EngineSpeed, seconds: float, prompt_tokens: int) -> None:
        """As the scheduler does, on a clock that stands still between two runs."""
        decoding, batch = self.decoding, self.decoding + len(self._reading)
        at_s = measured.steps.busy_s + seconds
        measured.record(
            SchedulerReport(
                at_s, batch, 0, 0.0, 0, batch, not prompt_tokens, seconds, prompt_tokens, decoding
            ),
            batch,
        )


def warmed_up(traffic: Replay) -> EngineSpeed:
    """An engine that several clients have used, one, two and so on."""
    found = EngineSpeed(SLOTS)
    lengths = Workload(prompt=traffic.prompt, output=24, bulk_factor=1, spread=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedEngine, "measured", found)
        for clients in (1, 2, 4, 6, 8, 16):
            closed = BulkClients(clients, lengths)
            Run(TRUE, [], 5.0, Direct, clients, clients=[closed]).to_the_end()
    return found


def shape_of(measured: EngineSpeed, *left_out: str) -> EngineShape:
    """The engine of a plan, from what is reported of its speed, but for these fields."""
    entry = {"epoch": "e", "slots_total": SLOTS, "foreign": 0} | measured.document()
    model = of_capabilities({name: entry[name] for name in entry if name not in left_out}, 100)
    step_tokens, chunk_tokens = TRUE.step_tokens, TRUE.long_prefill_tokens
    model = replace(model, step_tokens=step_tokens, chunk_tokens=chunk_tokens)
    return model.shape(slots=SLOTS)


def test_plan_counts_the_steps_that_another_job_slows_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = read(CONVERSATION).scaled(lengths=1 / 16)
    traffic, rules = Replay(trace), with_slo(load("cloud").admission, SHARED_SLO)
    arrivals = traffic.arrivals(LOAD * capacity(TRUE, traffic, 0), SHARED_S, 0)

    def goodput(engines: int, shape: EngineShape) -> float:
        return 100 * Demand(shape, arrivals, SHARED_S, rules, SHARED_SLO).predict(engines).goodput

    monkeypatch.setattr(run, "Engine", SharedEngine)
    measured = warmed_up(traffic)
    actual = [goodput(engines, TRUE) for engines in (1, 2)]
    monkeypatch.setattr(run, "Engine", Engine)
    planned = [goodput(engines, shape_of(measured)) for engines in (1, 2)]
    fitted = shape_of(measured, "steps_by_batch", "prefill")
    by_fit = [goodput(engines, fitted) for engines in (1, 2)]
    assert planned == pytest.approx(actual, abs=5)
    assert all(fit > true + 5 for fit, true in zip(by_fit, actual, strict=True))
    assert actual[0] < 65, "without the other job it serves 72 %"
