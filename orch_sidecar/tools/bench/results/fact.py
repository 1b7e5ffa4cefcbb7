"""Converts a result to a row of a table of facts.

An invalid, incomplete or unbatched result makes no row, and an unverified one is labelled to be
confirmed. Notes have the same names as in rows made of traces or of other tools' results.
"""

from __future__ import annotations

from typing import Final

from orch_sidecar.tools.bench.results.identity import missing_identity
from orch_sidecar.tools.bench.results.result import FiguresDocument, Result, Status, TraceDocument
from orch_sidecar.tools.facts.evidence.measured import LATENCIES
from orch_sidecar.tools.facts.tables.notes import (
    BATCH_MAX,
    BATCH_MEAN,
    BULK_CLIENTS,
    BULK_TRACE,
    CLIENT_BOTTLENECK,
    GIVEN,
    LATENCY_OF,
    PREFIX_HIT_RATIO,
    PRELIMINARY,
    TRACE_DIGITS,
    TRACE_LENGTHS,
    TRACE_TIME,
    TRACE_WINDOW,
    Arrivals,
)
from orch_sidecar.tools.facts.tables.row import Label, Row, format_engine, format_notes
from orch_sidecar.tools.facts.tables.rules import BATCHING
from vllm_plugin.contracts.profile import ServiceClass

NO_FACT: Final = frozenset({Status.INVALID, Status.INCOMPLETE, Status.UNBATCHED})

_Notes = dict[str, str | int | float]


class NoFact(ValueError):
    """The result cannot become a row; the message gives the reasons."""


def row_of(result: Result) -> Row:
    """Returns the row. Raises NoFact, and ValueError for a text that no note can hold."""
    engine, figures = result.engine, result.figures
    if result.status in NO_FACT or figures is None:
        raise NoFact(f"the result is {result.status}: {'; '.join(result.reasons)}")
    missing = missing_identity(engine)
    if figures.input_tokens is None:
        missing.append("the number of prompt tokens is unknown: the responses do not report it")
    if missing:
        raise NoFact("; ".join(missing))
    assert figures.input_tokens is not None
    assert engine.engine is not None
    assert engine.precision is not None
    assert engine.gpu is not None
    assert engine.gpu_count is not None
    label, batch = result.measurement_type, figures.overlap
    if result.status is Status.UNVERIFIED:
        label = Label.TO_BE_CONFIRMED
    elif result.batches is not None:
        batch = max(1, round(result.batches.mean))
    input_tokens = round(figures.input_tokens / figures.requests)
    output_tokens = round(figures.output_tokens / figures.requests)
    notes: _Notes = {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "batching": "unknown" if label is Label.TO_BE_CONFIRMED else BATCHING[label][0],
        **_notes(result, figures),
    }
    return Row(
        model_id=engine.model_id,
        model_name=engine.model_name,
        engine=format_engine(engine.engine, engine.engine_version),
        precision=engine.precision,
        gpu=engine.gpu,
        gpu_count=engine.gpu_count,
        batch=batch,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        throughput_tokens_per_sec=figures.tokens_per_s,
        measurement_type=label,
        scenario_notes=format_notes(notes),
        source_tag=f"orch-bench:{result.id}",
    )


def _notes(result: Result, figures: FiguresDocument) -> _Notes:
    """Returns the notes that not every row has."""
    scenario, engine, counts = result.scenario, result.engine, result.counts
    notes: _Notes = {"tool": "orch bench", "arrivals": scenario.arrivals.value}
    for name, value in (
        ("rate_per_s", scenario.rate_per_s),
        ("burstiness", scenario.burstiness),
        ("at_once", scenario.clients),
    ):
        if value is not None:
            notes[name] = value
    if scenario.trace is not None:
        notes |= _trace_notes(scenario.trace)
    notes |= {"requests": figures.requests, "window_s": round(figures.window_s, 3)}
    notes["seed"] = scenario.seed
    interactive = result.classes.get(ServiceClass.INTERACTIVE)
    if interactive is None:
        notes |= _latency_notes(result.measurement_type, figures)
    else:
        notes[LATENCY_OF] = ServiceClass.INTERACTIVE.value
        if interactive.figures is not None:
            notes |= _latency_notes(result.measurement_type, interactive.figures)
    ended = {"refused": counts.refused, "failed": counts.failed}
    notes |= {name: count for name, count in ended.items() if count}
    if result.goodput is not None:
        notes["goodput_share"] = result.goodput.share
    if result.batches is None:
        notes |= {"claim": result.measurement_type.value, "batch_is": "overlap"}
    else:
        notes |= {BATCH_MEAN: result.batches.mean, BATCH_MAX: result.batches.largest}
    if engine.profile is not None:
        notes["profile"] = engine.profile
    if engine.conditions is not None:
        notes |= engine.conditions
    if result.prefix_hit_ratio is not None:
        notes[PREFIX_HIT_RATIO] = result.prefix_hit_ratio
    if result.shortfalls:
        notes[PRELIMINARY] = "yes"
    if result.client.bottleneck:
        notes[CLIENT_BOTTLENECK] = "yes"
    if counts.counted_by_events:
        notes["counted_by_events"] = counts.counted_by_events
    if engine.model_id != engine.model:
        notes["served_as"] = engine.model
    if engine.given:
        notes[GIVEN] = ",".join(engine.given)
    return notes


def _trace_notes(trace: TraceDocument) -> _Notes:
    """Returns which trace was replayed, which part of it, and beside what."""
    from_s, until_s = trace.window_s
    notes: _Notes = {
        "arrivals": f"{Arrivals.TRACE}:{trace.sha256[:TRACE_DIGITS]}",
        TRACE_WINDOW: f"{from_s:.15g}:{'' if until_s is None else f'{until_s:.15g}'}",
        TRACE_TIME: trace.time_factor,
        TRACE_LENGTHS: trace.length_factor,
    }
    if trace.bulk_clients:
        notes[BULK_CLIENTS] = trace.bulk_clients
    if trace.bulk_sha256 is not None:
        notes[BULK_TRACE] = trace.bulk_sha256[:TRACE_DIGITS]
    return notes


def _latency_notes(label: Label, figures: FiguresDocument) -> dict[str, float]:
    """Returns the latencies; none of an offline run, where they only show the queue's length."""
    if label is Label.OFFLINE:
        return {}
    found = {"ttft": figures.ttft_ms, "tpot": figures.tpot_ms, "latency": figures.latency_ms}
    notes: dict[str, float] = {}
    for name, each in found.items():
        if each is None:
            continue
        notes |= {f"{name}_{at}_ms": round(getattr(each, at), 3) for at in LATENCIES[name]}
        notes |= {
            f"{name}_{at}_early_ms": round(each.early[at], 3)
            for at in LATENCIES[name]
            if at in each.early
        }
    return notes
