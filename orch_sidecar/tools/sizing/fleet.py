"""Models one engine, a running one or that of measured rows, and predicts the goodput of several.

Pure. A running engine's fit of its step time, and its rate of prefill, leave out the slowest steps.
On a machine that is shared these take time, too: a plan is made from the mean of all steps since
the engine's start. What prompts add to a step is no part of that, for the simulator adds it; so the
engine's traffic factor, which includes both, is not used.

Engines are equal, and run in virtual time. A request goes to the engine on which the fewest are
running by then, as routing does where prompts share no prefix; each engine then runs the admission
of the profile and the model of vLLM's scheduler of `orch simulate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final

from orch_sidecar.admission.types import StepTime
from orch_sidecar.engine_state.report import step_time_of
from orch_sidecar.tools.facts.labels.figures import percentile
from orch_sidecar.tools.facts.tables.notes import BATCH_MEAN
from orch_sidecar.tools.facts.tables.row import Row
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.fronts import Admitted, Direct, Outcomes, Sight
from orch_sidecar.tools.simulate.run import Record, Run
from orch_sidecar.tools.simulate.traffic import Arrival
from orch_sidecar.tools.sizing.decision import FEW_STEPS
from orch_sidecar.tools.sizing.engine_model import (
    EngineModel,
    NotEnough,
    Point,
    StepCurve,
    Steps,
    curve_of,
    model_of,
    steps_between,
    through,
)
from vllm_plugin.contracts.profile import INTERACTIVE, AdmissionRules

_TTFT: Final = "ttft_p50_ms"
_TPOT: Final = "tpot_p50_ms"


def of_capabilities(entry: Mapping[str, Any], tokens: int) -> EngineModel:
    """Returns the model of a running engine, from its entry in `/v1/capabilities`.

    `tokens`: mean context of a request, for the memory bound. Raises NotEnough.
    """
    prefill = _prefill_rate(entry)
    if prefill is None:
        raise NotEnough(
            "the engine has not measured its prefill yet: run `orch tune`, or some traffic, and "
            "plan again"
        )
    return model_of(entry, tokens, _curve(entry), prefill)


def _curve(entry: Mapping[str, Any]) -> StepCurve:
    """Returns the time per token by batch: the engine's own fit if that is good, at the level of
    the mean of all its steps; else a fit of all its steps. Both are since its start."""
    fitted, counted = step_time_of(entry), steps_between({}, entry)
    if fitted is None or not fitted.good:
        return curve_of([counted], "run `orch tune`, or some traffic of several concurrencies")
    document = entry["step_time"]
    slower, error = _slower(fitted, counted), float(document.get("error", 0.0))
    largest = Point(
        fitted.largest, document.get("samples", 0), slower * fitted.token_ms(fitted.largest)
    )
    t0_ms, c_ms = (slower * each / fitted.tokens for each in (fitted.t0_ms, fitted.c_ms))
    return StepCurve(t0_ms, c_ms, fitted.alpha, error, (largest,))


def _slower(fitted: StepTime, counted: Steps) -> float:
    """Returns how much longer all decode steps took than by the fit, 1 if they are few."""
    if sum(steps for steps, _ in counted.values()) < FEW_STEPS:
        return 1.0
    by_fit_ms = sum(steps * fitted.ms(batch) for batch, (steps, _) in counted.items())
    return 1000 * sum(seconds for _, seconds in counted.values()) / by_fit_ms


def _prefill_rate(entry: Mapping[str, Any]) -> float | None:
    """Returns prompt tokens per second since the engine's start; None: not measured."""
    recent = entry.get("prefill_tokens_per_s")
    in_all = entry.get("prefill") or {}
    if recent and in_all.get("seconds"):
        return float(in_all["tokens"] / in_all["seconds"])
    return float(recent) if recent else None


def of_facts(
    rows: Iterable[Row],
    prefill_tokens_per_s: float | None = None,
    model_id: str | None = None,
    gpu: str | None = None,
) -> EngineModel:
    """Returns the model of the engine that these rows measured at several batches.

    `prefill_tokens_per_s`: given; None: of the first token at the smallest batch. `model_id`,
    `gpu`: of the rows to use; None: any. Raises NotEnough.
    """
    used = [
        row
        for row in rows
        if row.is_confirmed
        and model_id in (None, row.model_id, row.model_name)
        and gpu in (None, row.gpu)
    ]
    kinds = {(row.model_id, row.engine, row.precision, row.gpu, row.gpu_count) for row in used}
    if len(kinds) != 1:
        shown = "; ".join(", ".join(map(str, kind)) for kind in sorted(kinds)) or "none"
        raise NotEnough(
            f"the table must have rows of one model on one kind of engine, but has: {shown}; "
            "select with --model-id and --gpu"
        )
    prefill = prefill_tokens_per_s or _prefill(used)
    if prefill is None:
        raise NotEnough(
            f"no row has the note {_TTFT}, from which the speed of prefill follows: give "
            "--prefill-rate"
        )
    curve = through(
        (point for row in used if (point := _point(row, prefill)) is not None),
        "the table has rows",
        "measure more with `orch bench sweep --facts`",
    )
    [(model, engine, _, gpu, accelerators)] = kinds
    source = f"{len(curve.points)} rows of {model} on {engine}, {gpu}"
    return EngineModel(source, curve, prefill, accelerators=accelerators)


def _point(row: Row, prefill_tokens_per_s: float) -> Point | None:
    """Returns the time of a decode step: that between two tokens without the prompts in between."""
    notes = row.notes
    try:
        batch = float(notes.get(BATCH_MEAN, row.batch))
        between_ms = float(notes.get(_TPOT, 1000 * batch / row.throughput_tokens_per_sec))
    except (ValueError, ZeroDivisionError):
        return None
    prompts_per_step = batch / max(1, row.output_tokens)
    own_ms = between_ms - 1000 * prompts_per_step * row.input_tokens / prefill_tokens_per_s
    return Point(max(1, round(batch)), 1, own_ms) if own_ms > 0 else None


def _prefill(rows: Sequence[Row]) -> float | None:
    found = [
        (row.batch, 1000 * row.input_tokens / first_ms)
        for row in rows
        if (first_ms := float(row.notes.get(_TTFT, 0))) > 0
    ]
    return min(found)[1] if found else None


@dataclass(frozen=True, slots=True)
class Prediction:
    """What `engines` would do with the traffic. `goodput`: the share of all interactive requests
    that are served within the SLO, which generate `good_tokens_per_s`; `refused`: that are
    rejected. `occupancy`: of the slots."""

    engines: int
    requests: int
    goodput: float
    goodput_per_s: float
    refused: float
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    tokens_per_s: float
    good_tokens_per_s: float
    occupancy: float


@dataclass(frozen=True, slots=True)
class Demand:
    """Traffic for engines of one shape, and how it is to be served.

    `seconds`: of the arrivals. `slo_ms`: by the names of the times.
    """

    shape: EngineShape
    arrivals: Sequence[Arrival]
    seconds: float
    rules: AdmissionRules
    slo_ms: Mapping[str, float]

    def grow(self, most: int, target: float) -> Iterator[Prediction]:
        """Predicts one engine, two and so on, until one more than `target` needs, or `most`."""
        enough = False
        for engines in range(1, most + 1):
            found = self.predict(engines)
            yield found
            if enough:
                return
            enough = found.goodput >= target

    def predict(self, engines: int) -> Prediction:
        """Runs the traffic through that many engines."""
        records: list[Record] = []
        tokens, busy_s, seconds = 0, 0.0, self.seconds
        for number, own in enumerate(self.spread(engines)):
            if own:

                def front(outcomes: Outcomes, seed: int = number) -> Direct:
                    return Admitted(self.rules, Sight(), outcomes, seed)

                course = Run(self.shape, own, seconds, front, number).to_the_end()
                records += course.records
                tokens += course.tokens
                busy_s += course.busy_s
        asked = [each for each in records if each.arrival.service_class is INTERACTIVE] or records
        served = [done for each in asked if (done := each.completed) is not None]
        kept = [each for each in served if each.meets(self.slo_ms)]
        first = [1000 * each.ttft_s for each in served if each.ttft_s is not None]
        each_ms = [1000 * each.tpot_s for each in served if each.tpot_s is not None]
        return Prediction(
            engines=engines,
            requests=len(asked),
            goodput=len(kept) / len(asked) if asked else 1.0,
            goodput_per_s=len(kept) / seconds,
            refused=1 - len(served) / len(asked) if asked else 0.0,
            ttft_p95_ms=percentile(first, 95),
            tpot_p95_ms=percentile(each_ms, 95),
            tokens_per_s=tokens / seconds,
            good_tokens_per_s=sum(each.output_tokens for each in kept) / seconds,
            occupancy=busy_s / (seconds * self.shape.slots * engines),
        )

    def spread(self, engines: int) -> list[list[Arrival]]:
        """Returns the arrivals of each engine."""
        shape = self.shape
        found: list[list[Arrival]] = [[] for _ in range(engines)]
        running: list[list[float]] = [[] for _ in range(engines)]  # heaps of expected ends
        for arrival in self.arrivals:
            for ends in running:
                while ends and ends[0] <= arrival.at:
                    heappop(ends)
            least = min(range(engines), key=lambda at: (len(running[at]), len(found[at])))
            found[least].append(arrival)
            batch = min(shape.slots, len(running[least]) + 1)
            waits = max(1.0, (len(running[least]) + 1) / shape.slots)
            own_s = arrival.output * shape.step_ms(batch) / 1000
            own_s += arrival.prompt / shape.prefill_tokens_per_s
            heappush(running[least], arrival.at + waits * own_s)
        return found
