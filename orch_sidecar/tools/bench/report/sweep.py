"""The report of a sweep: throughput and latency by concurrency, and the fit of the step time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from orch_sidecar.tools.bench.report.measures import Measure, measures_of
from orch_sidecar.tools.bench.report.run import INTERVALS_TEXT, began, conditions, engine_text
from orch_sidecar.tools.bench.results.result import Status
from orch_sidecar.tools.bench.results.sweep import Curve, Point, Sweep
from orch_sidecar.tools.drawing.chart import Axis, Chart, Series, Style, apart, by_size
from orch_sidecar.tools.drawing.page import Page, badge
from orch_sidecar.tools.drawing.texts import counted, number_text

_CURVE_POINTS: Final = 60
# A curve that is further off some point describes nothing, and is not drawn.
POOR_FIT: Final = 0.15
_MARKERS: Final = ("o", "s", "^")  # by color: series differ without colors, too
_CLIENTS: Final = "concurrent requests"

Measured = Sequence[tuple[Point, Mapping[str, Measure]]]  # the figures of each by name
_X = Callable[[Point], float]
_by_clients: _X = attrgetter("clients")
_by_batch: _X = attrgetter("batch")


_HEAD: Final = (
    "clients", "batch, mean", "tokens/s", "95 % interval",
    "TTFT p50, ms", "TTFT p95, ms", "TPOT p50, ms", "within the SLO",
    "speed-up", "efficiency", "verdict",
)  # fmt: skip


def sweep_report(sweep: Sweep) -> Page:
    """Returns the page of a sweep. Raises ValueError as `run_report` does."""
    first = sweep.results[0]
    page = Page(sweep_title(sweep))
    text = " · All concurrencies were measured, each of them soundly." if sweep.is_sound else (
        " · Not all concurrencies have sound figures: nothing is derived from those without."
    )  # fmt: skip
    kind = ("sound", "good") if sweep.is_sound else ("not sound", "bad")
    page.text(badge(*kind), text)
    if sweep.ended_by:
        page.note("bad", "Incomplete", [sweep.ended_by])
    page.text(f"{began(first)} · {len(sweep.results)} runs")
    measured = _measured(sweep)
    page.section("Curves")
    page.charts(sweep_charts(sweep))
    page.section("Points")
    page.table(_HEAD, [_row(point, measures) for point, measures in measured])
    page.text(_fit_text(sweep))
    base = next((point.clients for point, _ in measured if point.result.is_sound), None)
    if base is not None:
        page.text(f"Speed-up and efficiency are relative to {counted(base, 'client')}.")
    elif measured:
        page.text("There is no speed-up, as no point is sound.")
    page.remark(INTERVALS_TEXT)
    page.list([*limits(sweep), *_reasons(sweep)])
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
    return f"{first.engine.model_name}: {load}, {engine_text(first.engine)}"


def limits(sweep: Sweep) -> Iterator[str]:
    """Yields what limits the trust in points, with their clients."""
    remarks: dict[str, Callable[[Point], bool]] = {
        "preliminary, too short to be published": lambda p: p.result.status is Status.PRELIMINARY,
        "of unknown batches": lambda p: p.result.status is Status.UNVERIFIED,
        "the client may be the bottleneck": lambda p: bool(p.result.client.bottleneck),
        "not sound, and not counted": lambda p: not p.result.is_sound,
    }
    points = sweep.points
    for text, holds in remarks.items():
        found = [str(point.clients) for point in points if holds(point)]
        if found:
            which = "all" if len(found) == len(points) else f"{', '.join(found)} clients"
            yield f"{text}: {'1 client' if which == '1 clients' else which}"


def _measured(sweep: Sweep) -> Measured:
    return [
        (point, {each.name: each for each in measures_of(point.result)}) for point in sweep.points
    ]


def _row(point: Point, measures: Mapping[str, Measure]) -> tuple[str, ...]:
    def measured(name: str) -> str:
        return measures[name].value_text if name in measures else number_text(None)

    throughput = measures.get("throughput")
    return (
        str(point.clients),
        number_text(None if point.result.batches is None else point.batch),
        number_text(point.figures.tokens_per_s),
        number_text(None) if throughput is None else throughput.interval_text,
        *map(measured, ("TTFT p50", "TTFT p95", "TPOT p50", "within the SLO")),
        number_text(point.speed_up),
        number_text(point.efficiency),
        point.result.status.value,
    )


def _reasons(sweep: Sweep) -> Iterator[str]:
    return (
        f"{counted(point.clients, 'client')}: {why}"
        for point in sweep.points
        for why in point.result.reasons
    )


def series_of(
    measured: Measured, name: str, key: str, color: int = 0, x: _X = _by_clients
) -> list[Series]:
    """Returns a figure with its intervals by concurrency, or by another `x`.

    Points that are not sound are hollow, and no line goes through them.
    """
    found = [(point, known[key].estimate) for point, known in measured if key in known]
    found.sort(key=lambda each: x(each[0]))
    style = Style("" if x is _by_batch else "-", _MARKERS[color], color)
    return apart(
        name, ((p.result.is_sound, x(p), est.value, est.margin) for p, est in found), style
    )


def curves_by_clients(sweeps: Mapping[str, Sweep]) -> Iterator[Chart]:
    """Yields the curves of several sweeps, by their names, in one chart for each figure."""
    measured = {name: _measured(sweep) for name, sweep in sweeps.items()}
    for title, unit, key in (
        ("Throughput", "tokens/s", "throughput"),
        ("Time to first token, p50", "ms", "TTFT p50"),
        ("Time per output token, p50", "ms", "TPOT p50"),
    ):
        series = [
            each
            for number, name in enumerate(sweeps)
            for each in series_of(measured[name], name, key, number)
        ]
        if series:
            yield by_size(title, "With 95 % intervals.", _CLIENTS, unit, series, linear=False)


def sweep_charts(sweep: Sweep) -> list[Chart]:
    """Returns throughput, times and goodput by concurrency; those of which a point has a figure."""
    measured = partial(series_of, _measured(sweep))
    throughput = measured("measured", "throughput")
    ttft = [*measured("p50", "TTFT p50"), *measured("p95", "TTFT p95", 1)]
    tpot = measured("p50", "TPOT p50", x=_by_batch)
    good = measured("within the SLO", "goodput", 2)
    charts = [
        ("Throughput", "; ".join(["With 95 % intervals", *limits(sweep)]), _CLIENTS, "tokens/s",
         [*_in_proportion(sweep), *throughput], False),
        ("Time to first token", "With the wait for a slot.", _CLIENTS, "ms", ttft, False),
        ("Time per output token", _fit_text(sweep), "sequences per step", "ms",
         [*_fitted(sweep), *tpot], True),
        ("Goodput", "Answers per second, and those of them within the SLO.", _CLIENTS,
         "requests/s", good and [*measured("answers", "answers"), *good], True),
    ]  # fmt: skip
    by_sizes = [
        by_size(title, about, x, y, series, linear=linear)
        for title, about, x, y, series, linear in charts
        if series
    ]
    return [*by_sizes, *_pareto(sweep)]


def _pareto(sweep: Sweep) -> Iterator[Chart]:
    """Yields what one user gets against what an accelerator makes, along the concurrencies."""
    accelerators = sweep.results[0].engine.gpu_count
    found = (
        (point.result.is_sound, 1000 / ms, point.figures.tokens_per_s / (accelerators or 1), None)
        for point in sweep.points
        if (ms := point.tpot_p50_ms)
    )
    if series := apart("measured", found, Style()):
        about = "From the fewest concurrent requests at the right to the most at the left."
        whole = f"tokens/s {'per accelerator' if accelerators else 'of the machine'}"
        user = Axis("tokens/s per user (1 / TPOT p50)")
        yield Chart("Throughput and speed", about, user, Axis(whole), series)


def _in_proportion(sweep: Sweep) -> Iterator[Series]:
    """Yields what throughput in proportion to the clients would be, up to the largest measured."""
    sound = [point for point in sweep.points if point.result.is_sound]
    if len(sound) > 1:
        base, last = sound[0], sound[-1]
        tokens_per_s = base.figures.tokens_per_s
        ys = [tokens_per_s, tokens_per_s * last.clients / base.clients]
        yield Series("in proportion", [base.clients, last.clients], ys, Style(":", "", 3))


def _fit_text(sweep: Sweep) -> str:
    """Returns the curve and how far it is off, or why there is none."""
    if sweep.fit is None:
        return "The time per token was not fitted, which needs three different batches."
    off = f"{100 * sweep.fit.worst_error:.1f} %"
    if sweep.fit.worst_error > POOR_FIT:
        return f"No curve t0 + c · b^alpha describes the time per token: the best is {off} off."
    return (
        f"Time per token = {formula_text(sweep.fit)} ms for b sequences; largest deviation {off}."
    )


def formula_text(curve: Curve) -> str:
    """Formats the time of a step of b sequences, in the curve's unit."""
    power = "b" if curve.alpha == 1 else f"b^{curve.alpha:g}"
    return f"{number_text(curve.t0)} + {number_text(curve.c)} · {power}"


def _fitted(sweep: Sweep) -> Iterator[Series]:
    fit = sweep.fit
    if fit is not None and fit.worst_error <= POOR_FIT:
        batches = sorted(p.batch for p in sweep.points if p.result.is_sound and p.tpot_p50_ms)
        yield fitted(f"fit: {formula_text(fit)}", fit.at, batches[0], batches[-1])


def fitted(name: str, at: Callable[[float], float], first: float, last: float) -> Series:
    """Returns a curve between two batches."""
    xs: Sequence[float] = [
        first + (last - first) * n / _CURVE_POINTS for n in range(_CURVE_POINTS + 1)
    ]
    return Series(name, xs, [at(x) for x in xs], Style("--", "", 1))
