"""A result as a fact, if it is one.

Pure. What is invalid or was not brought to its end is none; what nobody vouches for is to be
confirmed.
"""

from __future__ import annotations

from orch_sidecar.bench.result import Result, SpreadMs, Status
from orch_sidecar.facts.row import Label, Row, notes_text

NO_FACT = frozenset({Status.INVALID, Status.INCOMPLETE})


class NoFact(ValueError):
    """A result of which no row can be made; the message says why."""


def row_of(result: Result) -> Row:
    """The row. Raises NoFact."""
    engine, figures = result.engine, result.figures
    if result.status in NO_FACT or figures is None:
        raise NoFact(f"the result is {result.status}: {'; '.join(result.reasons) or 'stopped'}")
    unknown = [
        name
        for name in ("engine", "precision", "gpu", "gpu_count")
        if getattr(engine, name) is None
    ]
    if unknown:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in unknown)
        raise NoFact(f"the endpoint does not say what it runs on: give {flags}")
    assert engine.engine is not None
    assert engine.precision is not None
    assert engine.gpu is not None
    assert engine.gpu_count is not None
    label, batch = result.measurement_type, 0 if result.batches is None else result.batches.largest
    if result.status is Status.UNVERIFIED:
        label, batch = Label.TO_BE_CONFIRMED, result.scenario.clients or 1
    answered = result.counts.answered
    return Row(
        model_id=engine.model,
        model_name=engine.model.rpartition("/")[2],
        engine=" ".join(part for part in (engine.engine, engine.engine_version) if part),
        precision=engine.precision,
        gpu=engine.gpu,
        gpu_count=engine.gpu_count,
        batch=batch,
        input_tokens=round(figures.input_tokens / answered),
        output_tokens=round(figures.output_tokens / answered),
        throughput_tokens_per_sec=figures.tokens_per_s,
        measurement_type=label,
        scenario_notes=_notes(result),
        source_tag=f"orch-bench:{result.id}",
    )


def _notes(result: Result) -> str:
    figures, counts, scenario = result.figures, result.counts, result.scenario
    assert figures is not None
    batching = "off" if result.measurement_type is Label.SINGLE_STREAM else "on"
    notes: dict[str, str | int | float] = {
        "input_tokens": round(figures.input_tokens / counts.answered),
        "output_tokens": round(figures.output_tokens / counts.answered),
        "batching": "unknown" if result.status is Status.UNVERIFIED else batching,
        "status": result.status,
        "arrivals": scenario.arrivals.value,
    }
    if scenario.clients is not None:
        notes["clients"] = scenario.clients
    if scenario.rate_per_s is not None:
        notes["rate_per_s"] = scenario.rate_per_s
    notes |= {"requests": counts.answered, "window_s": figures.window_s, "seed": scenario.seed}
    if result.batches is not None:
        notes["batch_mean"] = result.batches.mean
    for name, found in (("ttft", figures.ttft_ms), ("tpot", figures.tpot_ms)):
        notes |= _of(name, found)
    notes |= _of("latency", figures.latency_ms)
    for name, count in (("refused", counts.refused), ("failed", counts.failed)):
        if count:
            notes[name] = count
    if result.goodput is not None:
        notes["goodput_share"] = result.goodput.share
    if result.engine.given:
        notes["given"] = ",".join(result.engine.given)
    if result.client.bottleneck:
        notes["client_bottleneck"] = "yes"
    return notes_text(notes)


def _of(name: str, found: SpreadMs | None) -> dict[str, float]:
    if found is None:
        return {}
    return {f"{name}_p50_ms": found.p50, f"{name}_p95_ms": found.p95}
