"""The parameters of one engine: of a running one, or of measured rows of `tps_model_gpu.csv`.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orch_sidecar.engine_state.report import step_time_of
from orch_sidecar.tools.bench.results.fit import Fit, fit
from orch_sidecar.tools.facts.tables.notes import BATCH_MEAN
from orch_sidecar.tools.facts.tables.row import Label, Row, parse_notes
from orch_sidecar.tools.tune.memory import MemoryBound, memory_bound
from orch_sidecar.tools.tune.steps import NotEnough, Point, StepCurve, curve_of, steps_between

_TTFT: Final = "ttft_p50_ms"
_TPOT: Final = "tpot_p50_ms"


class NoEngine(ValueError):
    """No engine follows from what is given; the message says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One engine. `source`: of these values, in words. `memory`: None where it is unknown.

    `step_tokens`, `chunk_tokens`: of the engine as it runs; None: those of the profile.
    """

    source: str
    curve: StepCurve
    prefill_tokens_per_s: float
    memory: MemoryBound | None = None
    kv_tokens: int | None = None
    step_tokens: int | None = None
    chunk_tokens: int | None = None


def of_capabilities(entry: Mapping[str, Any], tokens: int) -> EngineModel:
    """Returns the model of a running engine, from its entry in `/v1/capabilities`.

    `tokens`: mean context of a request, for the memory bound. Raises NoEngine.
    """
    prefill = entry.get("prefill_tokens_per_s")
    if not prefill:
        raise NoEngine(
            "the engine has not measured its prefill yet: run `orch tune`, or some traffic, and "
            "plan again"
        )
    features = entry.get("features", {})
    return EngineModel(
        f"{entry.get('gpu') or 'an engine'}, as its /v1/capabilities reports",
        _curve(entry),
        float(prefill),
        memory_bound(entry, tokens),
        entry.get("kv_tokens_total") or None,
        features.get("max_num_batched_tokens") or None,
        features.get("long_prefill_token_threshold") or None,
    )


def _curve(entry: Mapping[str, Any]) -> StepCurve:
    """Returns the time per token by batch: the engine's own fit if that is good, else a fit of all
    its steps since its start."""
    fitted = step_time_of(entry)
    if fitted is None or not fitted.good:
        try:
            return curve_of([steps_between({}, entry)])
        except NotEnough as error:
            raise NoEngine(
                f"{error}, run `orch tune`, or some traffic of several concurrencies"
            ) from error
    document = entry["step_time"]
    largest = Point(fitted.largest, document.get("samples", 0), fitted.token_ms(fitted.largest))
    t0_ms, c_ms = fitted.t0_ms / fitted.tokens, fitted.c_ms / fitted.tokens
    return StepCurve((largest,), Fit(t0_ms, c_ms, fitted.alpha, float(document.get("error", 0.0))))


def of_facts(rows: Sequence[Row], prefill_tokens_per_s: float | None) -> EngineModel:
    """Returns the model of the engine that these rows measured at several batches.

    `prefill_tokens_per_s`: given; None: of the first token at the smallest batch. Raises NoEngine.
    """
    used = [row for row in rows if row.measurement_type is not Label.TO_BE_CONFIRMED]
    kinds = {(row.model_id, row.engine, row.precision, row.gpu, row.gpu_count) for row in used}
    if len(kinds) != 1:
        shown = "; ".join(", ".join(map(str, kind)) for kind in sorted(kinds)) or "none"
        raise NoEngine(
            f"the table must have rows of one model on one kind of engine, but has: {shown}; "
            "select with --model-id and --gpu"
        )
    prefill = prefill_tokens_per_s or _prefill(used)
    if prefill is None:
        raise NoEngine(
            f"no row has the note {_TTFT}, from which the speed of prefill follows: give "
            "--prefill-rate"
        )
    points = [point for row in used if (point := _point(row, prefill)) is not None]
    found = fit([(point.batch, point.ms) for point in points]) if points else None
    if found is None:
        batches = ", ".join(str(point.batch) for point in sorted(points, key=_batch)) or "none"
        raise NoEngine(
            f"the curve of the step time needs rows of three different batches; the table has: "
            f"{batches}. Measure more with `orch bench sweep --facts`"
        )
    [(model, engine, _, gpu, _)] = kinds
    curve = StepCurve(tuple(sorted(points, key=_batch)), found)
    return EngineModel(f"{len(points)} rows of {model} on {engine}, {gpu}", curve, prefill)


def select(rows: Iterable[Row], model_id: str | None, gpu: str | None) -> list[Row]:
    """Returns the rows of a model and an accelerator; None: of any."""
    return [
        row
        for row in rows
        if model_id in (None, row.model_id, row.model_name) and gpu in (None, row.gpu)
    ]


def _batch(point: Point) -> int:
    return point.batch


def _point(row: Row, prefill_tokens_per_s: float) -> Point | None:
    """Returns the time of a decode step: that between two tokens without the prompts in between."""
    notes = parse_notes(row.scenario_notes)
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
        if (first_ms := float(parse_notes(row.scenario_notes).get(_TTFT, 0))) > 0
    ]
    return min(found)[1] if found else None
