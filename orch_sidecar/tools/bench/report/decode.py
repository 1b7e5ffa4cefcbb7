"""The report of `orch bench decode`: decode steps on a device, by its result file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from orch_sidecar.tools.bench.decode.figures import Sweep
from orch_sidecar.tools.bench.decode.report import SCHEMA
from orch_sidecar.tools.bench.report.figures import bars_by_batch
from orch_sidecar.tools.bench.report.sweep import fitted, formula_text
from orch_sidecar.tools.bench.results.fit import Curve
from orch_sidecar.tools.drawing.chart import Chart, Series, Style, by_size
from orch_sidecar.tools.drawing.page import Card, Page
from orch_sidecar.tools.drawing.texts import number_text
from orch_sidecar.tools.facts.labels.figures import Spread

_NO_LABEL: Final = (
    "These are decode steps of a device without an engine: they measure a kernel and no service, "
    "earn no measurement_type, and make no row of a table."
)


# A batch beyond this is a damaged file.
_MOST_BATCH: Final = 100_000


@dataclass(frozen=True, slots=True)
class _Steps(Spread):
    """The times of the steps of one batch."""

    steps: int


class _Run(BaseModel):
    window_ms: float
    tokens: int
    tokens_per_s_device: float
    tokens_per_s: float
    ttft_ms: Spread
    e2e_ms: Spread
    steps: int
    step_ms: Annotated[dict[int, _Steps], Field(min_length=1)]


class DecodeResult(BaseModel):
    """The file, as far as the report uses it."""

    model_config = ConfigDict(allow_inf_nan=False)

    schema_version: Literal["orch.bench.decode/1"] = Field(alias="schema")
    config: dict[str, Any]
    device: dict[str, Any] | None
    formula: Curve | None
    runs: list[_Run]
    sweep: Sweep | None


def decode_report(document: Mapping[str, Any]) -> Page:
    """Returns the page of a result file. Raises ValueError where it is none."""
    found = DecodeResult.model_validate(document)
    points = found.sweep.points if found.sweep is not None else ()
    batches = [*(point.batch for point in points), *(b for run in found.runs for b in run.step_ms)]
    if not all(1 <= batch <= _MOST_BATCH for batch in batches):
        raise ValueError(f"a batch is {max(batches)}: it must be from 1 to {_MOST_BATCH}")
    device = found.device or {}
    page = Page(f"Decode steps on {device.get('name') or 'a formula'}")
    page.note("warn", "No measurement of a service", [_NO_LABEL])
    if device.get("cache_bytes") and device["weight_bytes"] <= device["cache_bytes"]:
        text = "The weights fit in the processor's cache: steps are faster than from memory."
        page.note("warn", "Small model", [text])
    if found.sweep is not None and points:
        _sweep(page, found.sweep)
    for run in found.runs:
        _run(page, run)
    page.section("What was measured, and how")
    page.facts(_facts(found))
    page.remark(f"Schema {SCHEMA}.")
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
    about = "Median and 95th percentile."
    if sweep.fit is not None:
        times.append(
            fitted(f"fit: {formula_text(sweep.fit)}", sweep.fit.at, batches[0], batches[-1])
        )
        about += (
            f" Largest deviation of a median from the fit: {100 * sweep.fit.worst_error:.1f} %."
        )
    throughput = [Series("tokens/s", batches, rates)]
    page.charts(
        [
            _chart("Throughput", "Tokens/s of the median step.", "tokens/s", throughput),
            _chart("Time of a step", about, "ms", times),
        ]
    )
    page.table(
        _HEAD,
        [
            (
                str(point.batch),
                str(point.steps),
                number_text(point.tokens_per_s),
                number_text(point.step_ms.p50),
                number_text(point.step_ms.p95),
                number_text(point.step_ms.most),
                f"{point.speed_up:.2f}",
                f"{100 * point.efficiency:.0f} %",
                "-" if point.gap_ms is None else number_text(point.gap_ms.p50),
            )
            for point in points
        ],
    )


_HEAD: Final = (
    "batch", "steps", "tokens/s", "step p50 ms", "p95", "max", "speed-up", "efficiency",
    "gap p50 ms",
)  # fmt: skip


def _run(page: Page, run: _Run) -> None:
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


def _facts(found: DecodeResult) -> dict[str, list[tuple[str, str]]]:
    """Returns the options of the schedule, if one ran, and the device or the formula."""
    groups = {}
    if found.runs:
        groups["Schedule"] = [(_words(name), str(value)) for name, value in found.config.items()]
    if found.device is not None:
        groups["Device"] = [(_words(name), _value(each)) for name, each in found.device.items()]
    if found.formula is not None:
        text = f"{formula_text(found.formula)} ms"
        groups["Formula"] = [("time of a step", text)]
    return groups


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(str(key))} {each}" for key, each in value.items())
    return "unknown" if value is None else str(value)
