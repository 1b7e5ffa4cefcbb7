"""Formats a result for the terminal."""

from __future__ import annotations

from orch_sidecar.tools.bench.results.result import (
    Counts,
    FiguresDocument,
    Result,
    SpreadMs,
    Status,
    TraceDocument,
)
from orch_sidecar.tools.facts.labels.figures import PERCENTILES
from orch_sidecar.tools.facts.tables.notes import TRACE_DIGITS, Arrivals
from orch_sidecar.tools.facts.tables.row import Label


def result_text(result: Result) -> str:
    """Returns a few lines: the verdict and its reasons, the engine, the scenario, the figures."""
    lines = [
        f"{result.measurement_type}: {result.status.upper()}",
        *(f"  {reason}" for reason in result.reasons),
        *(f"  too short to publish: {missing}" for missing in result.shortfalls),
        *_engine(result),
        f"{arrivals_text(result)}, prompts: {result.scenario.prompts}, seed {result.scenario.seed}",
        *_counts(result.counts),
    ]
    if result.figures is not None:
        lines += _figures(result.figures, result)
    for name, each in result.classes.items():
        lines += [f"{name}:", *(f"  {line}" for line in _counts(each.counts))]
        if each.figures is not None:
            lines += [f"  {line}" for line in _latencies(each.figures)]
    if result.batches is not None:
        found = result.batches
        lines.append(
            f"engine: {found.steps} decode steps, batch mean {found.mean:.2f}, max {found.largest}"
        )
    if result.prefix_hit_ratio:
        lines.append(
            f"  {result.prefix_hit_ratio:.1%} of the prompt tokens were in its prefix cache"
        )
    client = result.client
    late = "" if client.late_ms is None else f"{client.late_ms.p99:.1f} ms late (p99), "
    lines.append(f"client: {late}{client.cpu_share:.0%} of one core")
    lines += [f"  the client may be the bottleneck: {cause}" for cause in client.bottleneck]
    return "\n".join(lines)


def _engine(result: Result) -> list[str]:
    engine = result.engine
    name = " ".join(part for part in (engine.engine, engine.engine_version) if part)
    gpus = f"{engine.gpu_count} x " if engine.gpu_count else ""
    parts = [f"{engine.model} on {name or 'an unknown engine'}"]
    if engine.precision:
        parts.append(engine.precision)
    if engine.gpu:
        parts.append(f"{gpus}{engine.gpu}")
    if engine.slots_total:
        parts.append(f"profile {engine.profile}, slots: {engine.slots_total}")
    lines = [", ".join(parts)]
    if engine.given:
        lines.append(f"  given by the user, not reported by the engine: {', '.join(engine.given)}")
    return lines


def arrivals_text(result: Result) -> str:
    """Describes how requests arrived."""
    scenario = result.scenario
    if scenario.rate_per_s is not None:
        shape = "" if scenario.burstiness is None else f" of burstiness {scenario.burstiness:g}"
        return f"{scenario.arrivals} arrivals{shape} at {scenario.rate_per_s:.4g}/s"
    if scenario.trace is not None:
        return _trace(scenario.trace)
    name = scenario.arrivals.replace("_", " ")
    closed = scenario.arrivals is Arrivals.CLOSED_LOOP
    return f"{name} of {scenario.clients}" if closed else name


def _trace(trace: TraceDocument) -> str:
    from_s, until_s = trace.window_s
    parts = [f"{trace.requests} requests of the trace {trace.name} ({trace.sha256[:TRACE_DIGITS]})"]
    if from_s or until_s is not None:
        parts.append(f"from {from_s:g} s" + ("" if until_s is None else f" to {until_s:g} s"))
    parts.append(f"times by {trace.time_factor:g}, lengths by {trace.length_factor:g}")
    if trace.bulk_clients:
        parts.append(f"{trace.bulk_clients} clients with bulk requests")
    if trace.bulk_name is not None:
        parts.append(f"{trace.bulk_requests} bulk requests of {trace.bulk_name}")
    return ", ".join(parts)


def _counts(counts: Counts) -> list[str]:
    lines = [
        f"requests: {counts.sent} sent, {counts.answered} answered, {counts.refused} refused, "
        f"{counts.failed} failed, {counts.cut} cut",
        *(f"  {count} x {reason}" for reason, count in counts.reasons.items()),
    ]
    if counts.of_other_length:
        lines.append(f"  {counts.of_other_length} did not have the requested number of tokens")
    if counts.counted_by_events:
        lines.append(f"  {counts.counted_by_events} reported no usage: their events were counted")
    return lines


def _figures(figures: FiguresDocument, result: Result) -> list[str]:
    lines = [
        f"throughput: {figures.tokens_per_s:.2f} tokens/s, {figures.requests_per_s:.2f} requests/s "
        f"over {figures.window_s:.2f} s"
    ]
    # An offline run measures throughput: its latencies only show the queue's length.
    if result.measurement_type is not Label.OFFLINE:
        lines.append(f"tokens/s per stream: p50 {figures.tokens_per_s_per_stream:.2f}")
        lines += [] if result.classes else _latencies(figures)
    if result.goodput is not None and result.status is not Status.INVALID:
        found = result.goodput
        of = "interactive " if result.classes else ""
        lines.append(
            f"goodput: {found.requests_per_s:.2f} requests/s, {found.tokens_per_s:.2f} tokens/s; "
            f"{found.share:.1%} of the sent {of}requests met the SLO"
        )
    return lines


def _latencies(figures: FiguresDocument) -> list[str]:
    named = {
        "latency": figures.latency_ms,
        "TTFT": figures.ttft_ms,
        "TPOT": figures.tpot_ms,
        "gap between events": figures.itl_ms,
    }
    return [
        line
        for name, spread in named.items()
        if spread is not None
        for line in _lines(name, spread)
    ]


def _lines(name: str, found: SpreadMs) -> list[str]:
    """Returns the percentiles, and MLPerf's estimates of those that have enough samples."""
    measured = ", ".join(f"{at} {getattr(found, at):.2f}" for at in PERCENTILES)
    lines = [f"{name}: {measured} ms"]
    if found.early:
        estimated = ", ".join(f"{at} {value:.2f}" for at, value in found.early.items())
        lines.append(f"  by early stopping: {estimated} ms")
    return lines
