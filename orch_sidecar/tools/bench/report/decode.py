"""The report of `orch bench decode`: decode steps on a device.

The four lines CONFIG, GPU time, TTFT and E2E have the format of the reference program of
"Throughput, Latency & Batching Policy", so that its parsers work here too; "GPU" is any device, and
`work` is as given, or the multiply-adds of a sequence in a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from orch_sidecar.tools.bench.decode.device import Device
from orch_sidecar.tools.bench.decode.result import Config, DecodeResult, Point, Run
from orch_sidecar.tools.bench.report.sweep import fit_shown
from orch_sidecar.tools.drawing.chart import Chart, Series, bars_by_batch, by_size
from orch_sidecar.tools.drawing.page import Columns, Page
from orch_sidecar.tools.drawing.texts import number_text, percent
from orch_sidecar.tools.facts.tables.notes import time_note

_NO_LABEL: Final = (
    "These are decode steps of a device without an engine: they measure a kernel and no service, "
    "earn no measurement_type, and make no row of a table."
)
_COLUMNS: Final[Columns] = (
    ("b", lambda point: str(point.batch)),
    ("steps", lambda point: str(point.steps)),
    ("tokens/s", lambda point: number_text(point.tokens_per_s)),
    ("step ms", lambda point: number_text(point.step_ms.p50)),
    ("p95", lambda point: number_text(point.step_ms.p95)),
    ("max", lambda point: number_text(point.step_ms.most)),
    ("speed-up", lambda point: f"{point.speed_up:.2f}"),
    ("efficiency", lambda point: percent(point.efficiency, 0)),
    ("gap ms p50", lambda point: number_text(point.gap_ms.p50 if point.gap_ms else None)),
    ("p95", lambda point: number_text(point.gap_ms.p95 if point.gap_ms else None)),
    ("max", lambda point: number_text(point.gap_ms.most if point.gap_ms else None)),
)


def decode_report(found: DecodeResult) -> Page:
    """Returns the page of a result."""
    page = Page(f"Decode steps on {found.device.name}")
    page.list([_NO_LABEL], "No measurement of a service", "warn")
    _say_device(page, found.device)
    work = found.config.work or found.device.shape.multiply_adds
    for run in found.runs:
        page.section(f"Admission window of {run.window_ms:g} ms")
        _say_run(page, found.config, run, work)
        page.charts(_charts(run.points))
    for later in found.runs[1:]:  # on the same arrivals
        windows = [found.runs[0], later]
        before, after = (each.requests.latency_ms[time_note("ttft", 95)] for each in windows)
        page.text(
            f"WINDOW {windows[0].window_ms:g} -> {later.window_ms:g} ms: "
            f"p95 TTFT {before:.3f} -> {after:.3f} ms ({percent(after / before - 1, sign=True)})"
        )
    if found.points:
        page.section("By batch")
        page.columns(_COLUMNS, zip(found.points), texts=0)
        times = [(point.batch, point.step_ms.p50) for point in found.points]
        text, curve = fit_shown(found.fit, times)
        page.text(text)
        page.charts(_charts(found.points, text if found.fit else "", *curve))
    page.section("What was measured, and how")
    facts = {"Schedule": asdict(found.config)} if found.runs else {}
    page.facts(facts | {"Device": asdict(found.device)})
    page.remark(f"Schema {found.schema_version}.")
    return page


def _say_device(page: Page, ran: Device) -> None:
    shape, threads = ran.shape, f" threads={ran.threads}" if ran.threads is not None else ""
    cache = "unknown" if ran.cache_bytes is None else f"{ran.cache_bytes / 1e6:.1f} MB"
    page.text(
        f"DEVICE {ran.kind} ({ran.name}) torch={ran.torch}{threads} dtype={ran.dtype} "
        f"layers={shape.layers} hidden={shape.hidden} heads={shape.heads}/{shape.kv_heads} "
        f"context={shape.context} weights={ran.weight_bytes / 1e6:.1f} MB cache={cache} "
        f"kv={ran.kv_bytes_per_sequence / 1e6:.2f} MB/sequence"
    )
    if ran.cache_bytes is not None and ran.weight_bytes <= ran.cache_bytes:
        page.text(
            "NOTE the weights fit in the processor's cache: steps are faster than from memory"
        )
    busy, cpus = ran.busy_threads or 0.0, ran.cpus or 1
    if busy >= 0.25 * cpus:  # an idle machine's own services do not reach that
        page.text(
            f"BUSY other programs keep {busy:.1f} threads running on {cpus} CPUs: steps take "
            "longer than on an idle machine, and differently long"
        )


def _say_run(page: Page, config: Config, run: Run, work: int) -> None:
    steps, totals = sum(point.steps for point in run.points), run.requests
    page.text(
        f"CONFIG nreq={config.nreq} lambda={config.rate_per_s:.1f}/s tokens={config.tokens} "
        f"Bmax={config.bmax} window_ms={run.window_ms:.2f} work={work}"
    )
    page.text(
        f"GPU time: {run.device_ms:.3f} ms  | tokens: {totals.output_tokens}  | "
        f"tokens/sec (GPU): {run.tokens_per_s_device:.2f}"
    )
    for name, time in (("TTFT", "ttft"), ("E2E ", "latency")):
        if (found := totals.times_s[time]) is not None:
            page.text(f"{name} mean={1000 * found.mean:.3f} ms  p95={1000 * found.p95:.3f} ms")
    page.text(
        f"STEPS {steps} of {totals.output_tokens / steps:.2f} sequences  | "
        f"tokens/sec (with admission): {totals.tokens_per_s:.2f}"
    )
    if (gap := run.gap_ms) is not None:
        shown = f"median={gap.p50:.3f} ms  p95={gap.p95:.3f} ms  max={gap.most:.3f} ms"
        page.text(f"GAPS between steps {shown}")
    # Whether requests arrive faster than full steps serve them; unknown if no step was full.
    wanted, full = config.rate_per_s * config.tokens, run.points[-1]
    if full.batch == config.bmax and wanted >= full.tokens_per_s:
        page.text(
            f"OVERLOADED {config.rate_per_s:g} requests/s of {config.tokens} tokens need "
            f"{wanted:.0f} tokens/s, steps of {config.bmax} generate {full.tokens_per_s:.0f}: "
            "the queue grows until the last arrival, and TTFT and E2E tell its length; "
            f"--rate {0.8 * full.tokens_per_s / config.tokens:.3g} is kept up with"
        )


def _charts(points: Sequence[Point], fit_text: str = "", *curve: Series) -> Iterator[Chart]:
    """Yields tokens/s, how many steps there were, and how long they took, by batch."""
    batches = [float(point.batch) for point in points]
    rates = [Series("tokens/s", batches, [point.tokens_per_s for point in points])]
    label, about = "sequences in the step", "Of the median step."
    yield by_size("Throughput", about, label, "tokens/s", rates, linear=True)
    counts = {point.batch: float(point.steps) for point in points}
    if len(set(counts.values())) > 1:
        yield bars_by_batch("Steps by batch", "How many steps had each batch.", "steps", counts)
    times = [
        Series("p95", batches, [point.step_ms.p95 for point in points], "", "s", 2),
        Series("p50", batches, [point.step_ms.p50 for point in points], ""),
        *curve,
    ]
    about = f"Median and 95th percentile. {fit_text}".rstrip()
    yield by_size("Time of a step", about, label, "ms", times, linear=True)
