"""The text and the report of `orch bench decode`: decode steps on a device.

The four lines CONFIG, GPU time, TTFT and E2E have the format of the reference program of
"Throughput, Latency & Batching Policy", so that its parsers work here too. "GPU" stands for any
device: the line DEVICE names it. Its `work` is as given, or the multiply-adds of a sequence in a
step, 0 if a formula replaces the device.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from orch_sidecar.tools.bench.decode.result import (
    LARGE_BATCH,
    Config,
    DecodeResult,
    DeviceInfo,
    Point,
    Run,
    Sweep,
)
from orch_sidecar.tools.bench.report.figures import bars_by_batch
from orch_sidecar.tools.bench.report.sweep import fitted, formula_text
from orch_sidecar.tools.drawing.chart import Chart, Series, Style, by_size
from orch_sidecar.tools.drawing.page import Card, Page
from orch_sidecar.tools.drawing.texts import aligned, number_text, percent

_NO_LABEL: Final = (
    "These are decode steps of a device without an engine: they measure a kernel and no service, "
    "earn no measurement_type, and make no row of a table."
)
# Of the CPUs: what an idle machine's own services do not reach.
_BUSY_SHARE: Final = 0.25
_HEAD: Final = (
    "b", "steps", "tokens/s", "step ms", "p95", "max", "speed-up", "efficiency", "gap ms p50",
    "p95", "max",
)  # fmt: skip


def text_of(found: DecodeResult) -> str:
    """Returns the lines for a terminal."""
    lines = []
    if found.device is not None:
        lines.append(_device_line(found.device))
        if found.device.in_cache:
            lines.append("NOTE the weights fit in the cache: steps are faster than from memory")
    for run in found.runs:
        size = 0 if found.device is None else found.device.shape.multiply_adds
        work = found.config.work or size
        lines += [*_run_lines(found.config, run, work), *_overload(found.config, run)]
    lines += (_window_line(found.runs[0], later) for later in found.runs[1:])
    if found.sweep is not None:
        lines += [*aligned(_HEAD, _rows(found.sweep), texts=0), _sweep_line(found.sweep)]
        lines.append(_fit_line(found.sweep))
    return "\n".join(lines)


def _device_line(ran: DeviceInfo) -> str:
    shape, threads = ran.shape, f" threads={ran.threads}" if ran.threads is not None else ""
    cache = "unknown" if ran.cache_bytes is None else f"{ran.cache_bytes / 1e6:.1f} MB"
    return (
        f"DEVICE {ran.kind} ({ran.name}) torch={ran.torch}{threads} dtype={ran.dtype} "
        f"layers={shape.layers} hidden={shape.hidden} heads={shape.heads}/{shape.kv_heads} "
        f"context={shape.context} weights={ran.weight_bytes / 1e6:.1f} MB cache={cache} "
        f"kv={ran.kv_bytes_per_sequence / 1e6:.2f} MB/sequence"
    )


def _run_lines(config: Config, run: Run, work: int) -> list[str]:
    ttft, e2e = run.ttft_ms, run.e2e_ms
    lines = [
        f"CONFIG nreq={config.nreq} lambda={config.rate_per_s:.1f}/s tokens={config.tokens} "
        f"Bmax={config.bmax} window_ms={run.window_ms:.2f} work={work}",
        f"GPU time: {run.device_ms:.3f} ms  | tokens: {run.tokens}  | "
        f"tokens/sec (GPU): {run.tokens_per_s_device:.2f}",
        f"TTFT mean={ttft.mean:.3f} ms  p95={ttft.p95:.3f} ms",
        f"E2E  mean={e2e.mean:.3f} ms  p95={e2e.p95:.3f} ms",
        f"STEPS {run.steps} of {run.tokens / run.steps:.2f} sequences  | "
        f"tokens/sec (with admission): {run.tokens_per_s:.2f}",
    ]
    gaps = {"between steps": run.gap_ms, f"at b>={LARGE_BATCH}": run.gap_large_ms}
    lines += [
        f"GAPS {which} median={gap.p50:.3f} ms  p95={gap.p95:.3f} ms  max={gap.most:.3f} ms"
        for which, gap in gaps.items()
        if gap is not None
    ]
    return lines


def _overload(config: Config, run: Run) -> list[str]:
    """Says that requests arrive faster than full steps serve them; empty if they do not."""
    wanted, most = config.rate_per_s * config.tokens, run.full_tokens_per_s(config.bmax)
    if most is None or wanted < most:
        return []
    return [
        f"OVERLOADED {config.rate_per_s:g} requests/s of {config.tokens} tokens need {wanted:.0f} "
        f"tokens/s, steps of {config.bmax} generate {most:.0f}: the queue grows until the last "
        f"arrival, and TTFT and E2E tell its length; --rate {0.8 * most / config.tokens:.3g} is "
        "kept up with"
    ]


def busy_line(load: float, cpus: int) -> str:
    """Says that other programs use the CPUs that steps run on; empty if they hardly do.

    `load`: runnable threads before the run, as a mean of the last minute.
    """
    if load < _BUSY_SHARE * cpus:
        return ""
    return (
        f"BUSY other programs keep {load:.1f} threads running on {cpus} CPUs: steps take longer "
        "than on an idle machine, and differently long"
    )


def _window_line(first: Run, last: Run) -> str:
    """Compares the p95 TTFT of two windows on the same arrivals."""
    change = 100 * (last.ttft_ms.p95 / first.ttft_ms.p95 - 1)
    return (
        f"WINDOW {first.window_ms:g} -> {last.window_ms:g} ms: "
        f"p95 TTFT {first.ttft_ms.p95:.3f} -> {last.ttft_ms.p95:.3f} ms ({change:+.1f} %)"
    )


def _rows(sweep: Sweep) -> list[list[str]]:
    return [_cells(point) for point in sweep.points]


def _cells(point: Point) -> list[str]:
    step, gap = point.step_ms, point.gap_ms
    return [
        str(point.batch),
        str(point.steps),
        number_text(point.tokens_per_s),
        *map(number_text, (step.p50, step.p95, step.most)),
        f"{point.speed_up:.2f}",
        percent(point.efficiency, 0),
        *(("-",) * 3 if gap is None else map(number_text, (gap.p50, gap.p95, gap.most))),
    ]


def _sweep_line(sweep: Sweep) -> str:
    first, last = sweep.points[0], sweep.points[-1]
    return (
        f"b {first.batch} -> {last.batch}: {last.speed_up:.2f} times the tokens/s, "
        f"{'more' if sweep.monotonic else 'not more'} with each b"
    )


def _fit_line(sweep: Sweep) -> str:
    if sweep.fit is None:
        return "t(b): not fitted, which needs three different batches"
    off = percent(sweep.fit.worst_error)
    return f"t(b) = {formula_text(sweep.fit)} ms, largest deviation {off}"


def decode_report(found: DecodeResult) -> Page:
    """Returns the page of a result."""
    name = "a formula" if found.device is None else found.device.name
    page = Page(f"Decode steps on {name}")
    page.note("warn", "No measurement of a service", [_NO_LABEL])
    if found.device is not None and found.device.in_cache:
        text = "The weights fit in the processor's cache: steps are faster than from memory."
        page.note("warn", "Small model", [text])
    if found.sweep is not None:
        _sweep(page, found.sweep)
    for run in found.runs:
        _run(page, run)
    page.section("What was measured, and how")
    facts = {"Schedule": asdict(found.config)} if found.runs else {}
    if found.device is not None:
        facts["Device"] = asdict(found.device)
    if found.formula is not None:
        facts["Formula"] = {"time of a step": f"{formula_text(found.formula)} ms"}
    page.facts(facts)
    page.remark(f"Schema {found.schema}.")
    return page


def _sweep(page: Page, sweep: Sweep) -> None:
    points = sweep.points
    first, last = points[0], points[-1]
    page.cards(
        [
            Card("tokens/s", number_text(last.tokens_per_s), "", f"at a batch of {last.batch}"),
            Card("speed-up", f"{last.speed_up:.2f}", "", f"batch {first.batch} to {last.batch}"),
            Card("step, p50", number_text(last.step_ms.p50), "ms", f"at a batch of {last.batch}"),
        ]
    )
    page.section("By batch")
    batches = [float(point.batch) for point in points]
    rates = [point.tokens_per_s for point in points]
    times = [
        Series("p95", batches, [point.step_ms.p95 for point in points], Style("", "s", 2)),
        Series("p50", batches, [point.step_ms.p50 for point in points], Style("")),
    ]
    about = f"Median and 95th percentile. {_fit_line(sweep)}."
    if sweep.fit is not None:
        times.append(fitted("fit", sweep.fit.at, batches[0], batches[-1]))
    throughput = [Series("tokens/s", batches, rates)]
    page.charts(
        [
            _chart("Throughput", "Tokens/s of the median step.", "tokens/s", throughput),
            _chart("Time of a step", about, "ms", times),
        ]
    )
    page.table(_HEAD, _rows(sweep), texts=0)


def _run(page: Page, run: Run) -> None:
    page.section(f"Admission window of {run.window_ms:g} ms")
    times = {"TTFT p95": run.ttft_ms, "end to end p95": run.e2e_ms}
    page.cards(
        [
            Card("tokens/s, device", number_text(run.tokens_per_s_device)),
            Card("tokens/s, with admission", number_text(run.tokens_per_s)),
            *(
                Card(name, number_text(each.p95), "ms", f"p50 {number_text(each.p50)}")
                for name, each in times.items()
            ),
            Card("batch, mean", number_text(run.tokens / run.steps), "", f"{run.steps} steps"),
        ]
    )
    batches = sorted(run.step_ms)
    counts = {batch: float(run.step_ms[batch].steps) for batch in batches}
    medians = [run.step_ms[batch].p50 for batch in batches]
    page.charts(
        [
            bars_by_batch("Steps by batch", "How many steps had each batch.", "steps", counts),
            _chart("Time of a step", "Median, by batch.", "ms",
                   [Series("p50", [float(batch) for batch in batches], medians, Style(""))]),
        ]
    )  # fmt: skip


def _chart(title: str, about: str, y_label: str, series: list[Series]) -> Chart:
    return by_size(title, about, "sequences in the step", y_label, series, linear=True)
