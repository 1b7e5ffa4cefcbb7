"""The report of a sweep: throughput and latency by concurrency, and the fit of the step time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from orch_sidecar.tools.bench.report.measures import measures_of
from orch_sidecar.tools.bench.report.run import INTERVALS_TEXT, began, conditions, engine_text
from orch_sidecar.tools.bench.results.result import Status
from orch_sidecar.tools.bench.results.sweep import Curve, Point, Sweep
from orch_sidecar.tools.drawing.chart import Chart, Series, apart, by_size, remarked
from orch_sidecar.tools.drawing.page import Columns, Page, badge
from orch_sidecar.tools.drawing.texts import NONE, counted, number_text, percent

_CLIENTS: Final = "concurrent requests"


def _figure_text(name: str, part: int = 0) -> Callable[..., str]:
    """Returns what writes a figure of a point, or its interval; a dash where it has none."""
    return lambda _, known: known[name].texts[part] if name in known else NONE


_COLUMNS: Final[Columns] = (
    ("clients", lambda point, _: str(point.clients)),
    ("batch, mean", lambda point, _: number_text(point.batch if point.result.batches else None)),
    ("tokens/s", lambda point, _: number_text(point.figures.tokens_per_s)),
    ("95 % interval", _figure_text("throughput", 1)),
    ("TTFT p50, ms", _figure_text("TTFT p50")),
    ("TTFT p95, ms", _figure_text("TTFT p95")),
    ("TPOT p50, ms", _figure_text("TPOT p50")),
    ("within the SLO", _figure_text("within the SLO")),
    ("speed-up", lambda point, _: number_text(point.speed_up)),
    ("efficiency", lambda point, _: number_text(point.efficiency)),
    ("verdict", lambda point, _: point.result.status.value),
)


def sweep_report(sweep: Sweep) -> Page:
    """Returns the page of a sweep. Raises ValueError as `run_report` does."""
    first = sweep.results[0]
    page = Page(sweep_title(sweep))
    text = " · All concurrencies were measured, each of them soundly." if sweep.is_sound else (
        " · Not all concurrencies have sound figures: nothing is derived from those without."
    )  # fmt: skip
    kind = ("sound", "good") if sweep.is_sound else ("not sound", "bad")
    page.text(badge(*kind), text)
    page.list(filter(None, [sweep.ended_by]), "Incomplete", "bad")
    page.text(f"{began(first)} · {len(sweep.results)} runs")
    page.charts(sweep_charts(sweep), "Curves")
    page.section("Points")
    page.columns(_COLUMNS, [(point, measures_of(point.result)) for point in sweep.points])
    page.text(fit_shown(sweep.fit, sweep.step_times)[0])
    base = next((point.clients for point in sweep.points if point.speed_up), None)
    if base is not None:
        page.text(f"Speed-up and efficiency are relative to {counted(base, 'client')}.")
    elif sweep.points:
        page.text("There is no speed-up, as no point is sound.")
    page.remark(INTERVALS_TEXT)
    reasons = (
        f"{counted(point.clients, 'client')}: {why}"
        for point in sweep.points
        for why in point.result.reasons
    )
    page.list([*limits(sweep), *reasons])
    page.section("What was measured, and how")
    page.remark(
        f"Conditions of the run with {counted(first.scenario.clients or 0, 'client')}; the others "
        "differ in their clients, their seeds and their numbers of requests."
    )
    conditions(page, first)
    page.remark(f"Schema {sweep.schema_version}; first result {first.id}.")
    return page


def sweep_title(sweep: Sweep) -> str:
    """Names what was measured: model, label, lengths, engine and hardware."""
    first = sweep.results[0]
    load = f"{first.measurement_type}, closed loops, prompts: {first.scenario.prompts}"
    return f"{first.engine.model_name}: {load}, {engine_text(first)}"


def limits(sweep: Sweep) -> Iterator[str]:
    """Returns what limits the trust in points, with their clients."""
    remarks: dict[str, Callable[[Point], bool]] = {
        "preliminary, too short to be published": lambda p: p.result.status is Status.PRELIMINARY,
        "of unknown batches": lambda p: p.result.status is Status.UNVERIFIED,
        "the client may be the bottleneck": lambda p: bool(p.result.client.bottleneck),
        "not sound, and not counted": lambda p: not p.result.is_sound,
    }
    points = [
        (str(point.clients), [text for text, holds in remarks.items() if holds(point)])
        for point in sweep.points
    ]
    return (each.replace(": 1 clients", ": 1 client") for each in remarked(points, " clients"))


def sweep_charts(sweep: Sweep) -> list[Chart]:
    """Returns throughput, times and goodput by concurrency; those of which a point has a figure.

    Points that are not sound are hollow, and no line goes through them.
    """
    measured = [(point, measures_of(point.result)) for point in sweep.points]

    def series(name: str, key: str, color: int = 0, *, x: str = "clients") -> list[Series]:
        found = [(each, known[key].estimate) for each, known in measured if key in known]
        points = [
            (each.result.is_sound, getattr(each, x), of.value, of.margin) for each, of in found
        ]
        # By color: series differ without colors, too.
        style = Series(name, (), (), "-" if x == "clients" else "", ("o", "s", "^")[color], color)
        return apart(points, style)

    ttft = [*series("p50", "TTFT p50"), *series("p95", "TTFT p95", 1)]
    good = series("within the SLO", "goodput", 2)
    fit_text, tpot = fit_shown(sweep.fit, sweep.step_times)
    tpot += series("p50", "TPOT p50", x="batch")
    # What one user gets against what an accelerator makes.
    accelerators = sweep.results[0].engine.gpu_count
    speeds = (
        (point.result.is_sound, 1000 / ms, point.figures.tokens_per_s / (accelerators or 1), None)
        for point in sweep.points
        if (ms := point.tpot_p50_ms)
    )
    charts = [
        ("Throughput", "; ".join(["With 95 % intervals", *limits(sweep)]), _CLIENTS, "tokens/s",
         series("measured", "throughput"), False),
        ("Time to first token", "With the wait for a slot.", _CLIENTS, "ms", ttft, False),
        ("Time per output token", fit_text, "sequences per step", "ms", tpot, True),
        ("Goodput", "Answers per second, and those of them within the SLO.", _CLIENTS,
         "requests/s", good and [*series("answers", "answers"), *good], True),
        ("Throughput and speed",
         "From the fewest concurrent requests at the right to the most at the left.",
         "tokens/s per user (1 / TPOT p50)",
         f"tokens/s {'per accelerator' if accelerators else 'of the machine'}",
         apart(speeds, Series("measured", (), ())), True),
    ]  # fmt: skip
    return [by_size(*chart) for chart in charts if chart[4]]


def fit_shown(fit: Curve | None, points: Sequence[tuple[float, float]]) -> tuple[str, list[Series]]:
    """Returns the formula of a step's time and how far it is off, or why there is none, and the
    curve between the smallest and the largest batch of the points, if it describes them."""
    if fit is None:
        return "t(b) was not fitted, which needs three different batches.", []
    off = percent(fit.worst_error)
    if fit.worst_error > 0.15:  # one that is further off some point describes nothing
        return f"No curve t0 + c · b^alpha describes the time of a step: the best is {off} off.", []
    power = "b" if fit.alpha == 1 else f"b^{fit.alpha:g}"
    formula = f"{number_text(fit.t0)} + {number_text(fit.c)} · {power}"
    text = f"t(b) = {formula} ms for a step of b sequences, largest deviation {off}."
    batches = [batch for batch, _ in points]
    return text, [fitted(f"fit: {formula}", fit.at, min(batches), max(batches))]


def fitted(name: str, at: Callable[[float], float], first: float, last: float) -> Series:
    """Returns a curve between two batches."""
    xs = [first + (last - first) * step / 60 for step in range(61)]
    return Series(name, xs, [at(x) for x in xs], "--", "", 1)
