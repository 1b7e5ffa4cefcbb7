"""`orch tune`: slots and step size of an engine, from one warm run on it.

It measures closed loops of growing size, then a few rates.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, sqrt
from pathlib import Path
from typing import Any, Final

import uvloop
import yaml

from orch_sidecar.api.headers import X_ORCH_CLASS
from orch_sidecar.tools.arguments import (
    TextParser,
    Unavailable,
    add_lengths,
    add_plot,
    add_profile,
    add_seed,
    add_slo,
    positive,
    run_command,
    slo_of,
)
from orch_sidecar.tools.bench.cli import add_endpoint, plan_of
from orch_sidecar.tools.bench.load.capabilities import engine_at
from orch_sidecar.tools.bench.load.driver import cancelled_by_signals
from orch_sidecar.tools.bench.load.endpoint import Capabilities, EndpointError
from orch_sidecar.tools.bench.load.scenario import Plan
from orch_sidecar.tools.bench.report.sweep import fitted
from orch_sidecar.tools.bench.results.result import Result, Trial
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.bench.runs.series import RateSearch, run_sweep, try_rates
from orch_sidecar.tools.drawing.chart import Chart, Marked, Series, by_size
from orch_sidecar.tools.drawing.picture import drawn, require
from orch_sidecar.tools.drawing.texts import aligned, counted
from orch_sidecar.tools.facts.labels.snapshot import parse_snapshot
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.simulate.traffic import Traffic, Workload
from orch_sidecar.tools.sizing.decision import Decision, bounds, decide
from orch_sidecar.tools.sizing.engine_model import (
    EngineModel,
    FullSlots,
    MemoryBound,
    StepCurve,
    curve_of,
    model_of,
    steps_between,
)
from orch_sidecar.tools.terminal import print_error
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.profile import ProfileError

# Bulk requests, so that no SLO of the profile in force limits the batch that is to be measured.
_SWEEP_CLASS: Final = "bulk"
# The SLOs of a profile are of the 95th percentile; a share of fewer requests is no share. A rate
# that meets them and one a quarter above it that does not are enough.
RATES: Final[Mapping[str, Any]] = {
    "kept_share": 0.95, "requests": 40, "factor": 1.25, "precision": 0.25, "most_trials": 5,
    "longest": inf,
}  # fmt: skip
# Of the rate at which all slots are always full: below it queues stay short.
_FIRST_SHARE: Final = 0.8
# Of a normal distribution, two-sided 95 %.
_Z: Final = 1.96
# Trials have other prompts than the closed loops before them.
_SEEDS_APART: Final = 100


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was measured and decided. `rate`: None without an SLO."""

    sweep: Sweep
    model: EngineModel
    full: FullSlots
    decision: Decision
    rate: RateSearch | None


async def tune(plan: Plan, traffic: Traffic) -> Tuning:
    """Measures and decides. `traffic`: like that of the plan, whose scenario has the length of each
    concurrency and trial.

    Raises what `measure` of bench raises, and NotEnough where no curve can be drawn.
    """
    found = await engine_at(plan.endpoint)
    scenario, slots = plan.scenario, found.snapshot.slots_total
    sizes = [2**power for power in range(slots.bit_length()) if 2**power < slots] + [slots]
    seconds = scenario.least_seconds
    print_error(
        f"{len(sizes)} concurrencies from 1 to {slots}, {seconds:g} s each, then up to 5 rates"
    )
    sweep = await run_sweep(_closed(plan), sizes)
    if sweep.ended_by:
        raise EndpointError(f"the closed loops ended early {sweep.ended_by}")
    curve = curve_of(steps_between(*_entries(each)) for each in sweep.results)
    entry = _entries(sweep.results[-1])[1]
    prefill = entry.get("prefill_tokens_per_s") or None
    model = model_of(entry, round(traffic.prompt + traffic.output), curve, prefill)
    full = FullSlots(model.shape(), traffic)
    full.measured(_times_per_token(sweep))
    decision = decide(model, full, scenario.slo_ms.get("tpot"), slots)
    rate = None
    if scenario.slo_ms:
        usable = min(decision.slots, slots)
        rate = RateSearch(_FIRST_SHARE * full.at(usable).requests_per_s, seconds, **RATES)
        apart = replace(scenario, seed=scenario.seed + _SEEDS_APART)
        try:
            await try_rates(replace(plan, scenario=apart), rate)
        except Unavailable as error:  # the slots are decided
            why = f"the search for a rate ended early: {error}"
            decision = replace(decision, doubts=(*decision.doubts, why))
    return Tuning(sweep, model, full, decision, rate)


def _closed(plan: Plan) -> Plan:
    """Returns the plan of the closed loops, whose answers need not keep the SLO."""
    endpoint = plan.endpoint.adding({X_ORCH_CLASS: _SWEEP_CLASS})
    scenario = replace(plan.scenario, arrivals=Arrivals.CLOSED_LOOP, rate_per_s=None, slo_ms={})
    return replace(plan, endpoint=endpoint, scenario=scenario)


def _times_per_token(sweep: Sweep) -> Iterator[tuple[int, float]]:
    """Yields the 95th percentile of each concurrency, milliseconds. One request alone waits for
    no prompt of another."""
    for result in sweep.results:
        clients, figures = result.scenario.clients, result.figures
        tpot = None if figures is None else figures.times_s["tpot"]
        if clients and clients > 1 and tpot is not None:
            yield clients, 1000 * tpot.p95


def _entries(result: Result) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the pool's entries before and after a run."""
    states = ((each, parse_snapshot(each, result.engine.pool)) for each in result.capabilities)
    found = [Capabilities(*each).entry for each in states]
    if len(found) < 2:
        raise EndpointError(
            f"the engine's state after a run is missing: {'; '.join(result.reasons) or 'unknown'}"
        )
    return found[0], found[-1]


_HEAD: Final = ("batch", "steps", "ms/step", "fit ms", "tokens/s")


def curve_text(curve: StepCurve) -> str:
    """Returns a table of the measured batches, and the curve through them."""
    rows = [
        (
            str(point.batch),
            str(point.steps),
            f"{point.ms:.2f}",
            f"{curve.at(point.batch):.2f}",
            f"{point.tokens_per_s:.1f}",
        )
        for point in curve.points
    ]
    formula = (
        f"t(b) = {curve.t0:.2f} + {curve.c:.3f} * b^{curve.alpha:.2f} ms, off by at most "
        f"{curve.worst_error:.0%} at {len(curve.points)} batches, {curve.steps} steps"
    )
    return "\n".join([*aligned(_HEAD, rows, texts=0), formula])


def decision_text(
    decision: Decision, full: FullSlots, memory: MemoryBound | None, rate: RateSearch | None
) -> str:
    """Returns the decision, what it follows from, and how sure it is."""
    slots = decision.slots
    lines = [
        f"slots worth having: {slots}, limited by {decision.binds.value}",
        f"  all in use, with prompts: {full.tokens_per_s(slots):.0f} tokens/s, "
        f"{full.tpot_p95_ms(slots):.1f} ms per token (95th percentile)",
    ]
    lines += bounds(decision, memory, "not reported by the engine")
    tokens = decision.step_tokens
    lines.append(
        "max_num_batched_tokens: "
        + ("unknown, the engine has not measured its prefill" if tokens is None else str(tokens))
    )
    if rate is not None:
        lines += _rate_lines(rate)
    if decision.doubts:
        lines.append("how sure: NOT SURE")
        lines += [f"  {doubt}" for doubt in decision.doubts]
    else:
        lines.append("how sure: no doubt is known; the slots are good to a factor of two")
    return "\n".join(lines)


def kept_interval(trial: Trial) -> tuple[float, float]:
    """Returns Wilson's 95 % interval of the share of requests that would meet the SLO."""
    n, p = max(1, trial.requests), trial.share
    middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * sqrt(p * (1 - p) / n + _Z**2 / (4 * n * n)) / (1 + _Z**2 / n)
    return middle - half, middle + half


def _rate_lines(rate: RateSearch) -> list[str]:
    best, missed = rate.best, rate.missed
    if best is None:
        tried = f"{missed.rate_per_s:.3g}/s" if missed is not None else "none"
        return [f"largest rate that keeps the SLO: below {tried}, the lowest that was tried"]
    low, high = kept_interval(best)
    line = (
        f"largest rate that keeps the SLO: {best.rate_per_s:.3g}/s ({best.share:.0%} of "
        f"{best.requests} requests; {low:.0%} to {high:.0%} with 95 % confidence)"
    )
    if missed is None:
        return [line, "  no rate that was tried missed it: the largest may be higher"]
    return [line, f"  {missed.rate_per_s:.3g}/s does not ({missed.share:.0%})"]


def charts_of(curve: StepCurve, decision: Decision, tpot_slo_ms: float | None) -> list[Chart]:
    """Returns the time of a step, and the tokens per second, by batch."""
    slots, last = decision.slots, float(max(curve.largest, decision.slots))
    batches = [float(point.batch) for point in curve.points]
    off = f"The curve is off by at most {curve.worst_error:.0%}."
    times = [
        Series("measured", batches, [point.ms for point in curve.points], ""),
        fitted("t0 + c b^alpha", curve.at, 1.0, last),
    ]
    throughput = [
        Series("measured", batches, [point.tokens_per_s for point in curve.points], ""),
        fitted("fit", curve.tokens_per_s, 1.0, last),
        Series(
            counted(slots, "slot"), [float(slots)], [curve.tokens_per_s(slots)], "", "s", 2, True
        ),
    ]
    slo = () if tpot_slo_ms is None else (Marked("SLO", tpot_slo_ms, True, horizontal=True),)
    label = "sequences per step"
    return [
        by_size("Decode step", off, label, "ms", times, True, *slo),
        by_size("Throughput", off, label, "tokens/s", throughput, linear=False),
    ]


_DESCRIPTION: Final = """Finds the slots and the step size worth having, from one warm run.

Measures the time of a decode step by its batch with closed loops of 1, 2, 4, ... clients up to the
engine's slots; simulates from it what the engine does with more or fewer slots, all in use, prompts
included; and then, if an SLO is given, tries a few rates around the one that follows.
Needs an engine with the plugin (directly, or behind a sidecar), with as many slots as may be worth
having, and no other traffic. Writes a profile and shows the curve."""

_EPILOG: Final = """examples:
  orch tune --slo-ttft-ms 500 --slo-tpot-ms 50
  orch tune --url http://127.0.0.1:8000 --slo-tpot-ms 100 --input-tokens 1024 --output tuned.yaml

exit codes: 0 decided, 1 not measurable, 2 bad usage"""

_STEP: Final = "max_num_batched_tokens"
_CHUNK: Final = "long_prefill_token_threshold"
# So many prompts share a step, as in the shipped profiles.
_PROMPTS_PER_STEP: Final = 8
_LEAST_CHUNK: Final = 64


def main(arguments: list[str]) -> None:
    """Runs the command; exits with its code if that is not 0."""
    options = parser().parse_args(arguments)

    def work() -> int:
        profiles.load(options.profile)
        files.check_writable(options.output)
        require()
        uvloop.run(_tune(options))
        return 0

    run_command("orch tune", work)


async def _tune(options: argparse.Namespace) -> None:
    with cancelled_by_signals():
        plan = await plan_of(options)
        traffic = Workload(0.0, options.input_tokens, options.output_tokens, spread=0.0)
        found = await tune(plan, traffic)
    await asyncio.to_thread(_report, found, options)


def _report(found: Tuning, options: argparse.Namespace) -> None:
    model, decision = found.model, found.decision
    print(curve_text(model.curve))
    print(decision_text(decision, found.full, model.memory, found.rate))
    source = (
        f"By `orch tune` on {found.sweep.results[0].engine.model_name}: {options.input_tokens} "
        f"tokens in, {options.output_tokens} out, run {found.sweep.results[0].id}."
    )
    text = tuned_profile(options.profile, decision, slo_of(options), source)
    files.write(options.output, text)
    profiles.load(str(options.output.resolve()))
    print(f"profile: {options.output}")
    charts = charts_of(model.curve, decision, options.slo_tpot_ms)
    files.write(options.plot, drawn(options.plot.suffix, source, charts))
    print(f"plot: {options.plot}")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    found = TextParser(prog="orch tune", description=_DESCRIPTION, epilog=_EPILOG)
    # What the scenario and the plan of a bench follow from, and this command has no options for.
    found.set_defaults(
        label=Label.BATCHED_ONLINE, arrivals=Arrivals.POISSON, rate=1.0, requests=1,
        prompts=None, no_ignore_eos=False, facts=None, loadgen=False,
    )  # fmt: skip
    add_endpoint(found)
    add_slo(found, "ttft", "tpot")
    add_lengths(found, 256, 64)
    add = found.add_argument
    text = "of each concurrency and each rate, at least; default: %(default)g"
    add("--seconds", dest="duration", type=positive, default=10.0, metavar="SECONDS", help=text)
    add_seed(found)
    add_profile(found, "to change")
    add("--output", type=Path, default=Path("tuned.yaml"), help="profile; default: %(default)s")
    add_plot(found, Path("tuned.png"))
    return found


def tuned_profile(base: str, decision: Decision, slo_ms: Mapping[str, float], source: str) -> str:
    """Returns the text of the profile. `base`: name or path. `source`: of the values, one line.

    Raises ProfileError if `base` cannot be used, or does not batch.
    """
    read = profiles.load(base)
    if not read.batching:
        raise ProfileError(f"profile {read.name!r}: it does not batch, so there is nothing to tune")
    is_path = "/" in base or base.endswith((".yaml", ".yml"))
    path = Path(base) if is_path else profiles.directory() / f"{base}.yaml"
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    engine = document["engine"]
    _set(engine, profiles.SLOTS_ARGUMENT, max(2, decision.slots))
    if decision.step_tokens is not None:
        _set(engine, _STEP, decision.step_tokens)
        _set(engine, _CHUNK, max(_LEAST_CHUNK, decision.step_tokens // _PROMPTS_PER_STEP))
    interactive = document["admission"].get("interactive")
    if interactive is not None:
        interactive |= {f"{time}_p95_ms": bound for time, bound in slo_ms.items()}
    head = f"# {source}\n# Engine and sidecar read the same file: give it to both (--profile).\n"
    return head + yaml.safe_dump(document, sort_keys=False)


def _set(engine: dict[str, Any], name: str, value: int) -> None:
    """Sets the default of an argument, at least its minimum; one that is fixed stays fixed."""
    rule = engine.get(name, {})
    if "fixed" in rule:
        return
    least = rule.get("minimum")
    engine[name] = {**rule, "default": value if least is None else max(value, least)}
