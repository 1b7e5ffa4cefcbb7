"""The report of a sweep: throughput and latency by concurrency, and the fit of the step time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from orch_sidecar.tools.bench.drawing.chart import Chart, Look, Series
from orch_sidecar.tools.bench.drawing.page import Page, badge
from orch_sidecar.tools.bench.drawing.scales import linear, number_text
from orch_sidecar.tools.bench.report.intervals import Estimate
from orch_sidecar.tools.bench.report.measures import Measure, measures_of
from orch_sidecar.tools.bench.report.run import INTERVALS_TEXT, began, conditions
from orch_sidecar.tools.bench.results.fit import Curve
from orch_sidecar.tools.bench.results.sweep import FitDocument, Point, Sweep, is_sound

_CURVE_POINTS: Final = 60

Measures = dict[int, dict[str, Measure]]  # by clients, then by name


def sweep_report(sweep: Sweep) -> str:
    """Returns the page of a sweep. Raises ValueError as `run_report` does."""
    first = sweep.results[0]
    page = Page(f"{first.engine.model_name}: sweep over concurrencies")
    sound = is_sound(sweep)
    text = " All concurrencies were measured, each of them soundly." if sound else (
        " Not all concurrencies have sound figures: those without are drawn hollow, and nothing "
        "is derived from them."
    )  # fmt: skip
    page.text(badge("sound" if sound else "not sound", "good" if sound else "bad"), text)
    if not sweep.complete:
        page.note("bad", "Incomplete", [sweep.ended_by])
    page.text(f"{began(first)} · {len(sweep.results)} runs", soft=True)
    measures = {
        clients: {each.name: each for each in measures_of(result)}
        for result in sweep.results
        if (clients := result.scenario.clients) is not None
    }
    page.section("Curves")
    page.charts(list(_charts(sweep, measures)))
    if sweep.fit is not None:
        fit = sweep.fit
        page.text(
            f"Time per token = {_formula(fit)} ms for batches of b sequences; largest deviation "
            f"{100 * fit.worst_error:.1f} %."
        )
    else:
        page.text("The time per token was not fitted, which needs three different batches.")
    page.section("Points")
    page.table(_HEAD, [_row(point, measures.get(point.clients, {})) for point in sweep.points])
    if sweep.base_clients is not None:
        page.text(f"Speed-up and efficiency are relative to {clients_text(sweep.base_clients)}.")
    page.text(INTERVALS_TEXT, soft=True)
    page.list(_remarks(sweep))
    page.section("What was measured, and how")
    page.text(f"Conditions of the run with {clients_text(first.scenario.clients or 0)}; the others "
              "differ in their clients, their seeds and their numbers of requests.")  # fmt: skip
    conditions(page, first)
    page.text(f"Schema {sweep.schema_version}; first result {first.id}.", soft=True)
    return page.html


def clients_text(clients: int) -> str:
    """Formats a number of clients."""
    return "1 client" if clients == 1 else f"{clients} clients"


_HEAD: Final = (
    "clients", "batch, mean", "tokens/s", "95 % interval",
    "TTFT p50, ms", "TTFT p95, ms", "TPOT p50, ms", "within the SLO",
    "speed-up", "efficiency", "verdict",
)  # fmt: skip


def _row(point: Point, measures: dict[str, Measure]) -> tuple[str, ...]:
    throughput, kept = measures.get("throughput"), measures.get("within the SLO")
    return (
        str(point.clients),
        _number(point.batch_mean),
        number_text(point.tokens_per_s),
        "-" if throughput is None else throughput.interval_text,
        _number(point.ttft_p50_ms),
        _number(point.ttft_p95_ms),
        _number(point.tpot_p50_ms),
        "-" if kept is None else kept.value_text,
        _number(point.speed_up),
        _number(point.efficiency),
        point.status.value,
    )


def _remarks(sweep: Sweep) -> Iterator[str]:
    for point in sweep.points:
        for reason in point.reasons:
            yield f"{clients_text(point.clients)}: {reason}"
        if point.client_bottleneck:
            yield f"{clients_text(point.clients)}: the client may be the bottleneck"


def _number(value: float | None) -> str:
    return "-" if value is None else number_text(value)


def _charts(sweep: Sweep, measures: Measures) -> Iterator[Chart]:
    clients = "concurrent requests"

    def measured(name: str, key: str, x: Callable[[Point], float], color: int) -> list[Series]:
        found = [
            (point, each.estimate)
            for point in sorted(sweep.points, key=x)
            if (each := measures.get(point.clients, {}).get(key)) is not None
        ]
        return [
            _dots(text, look, [(x(point), estimate) for point, estimate in chosen], color)
            for text, look, chosen in (
                (name, Look.DOTS, [each for each in found if each[0].is_sound]),
                (
                    f"{name}, not sound",
                    Look.HOLLOW,
                    [each for each in found if not each[0].is_sound],
                ),
            )
            if chosen
        ]

    throughput = measured("measured", "throughput", _clients, 0)
    yield from _chart("Throughput", "Generated tokens per second, with 95 % intervals.", clients,
                      "tokens/s", [*_ideal(sweep), *throughput])  # fmt: skip
    ttft = [*measured("p50", "TTFT p50", _clients, 0), *measured("p95", "TTFT p95", _clients, 1)]
    yield from _chart("Time to first token", "With the wait for a slot.", clients, "ms", ttft)
    tpot = measured("p50", "TPOT p50", lambda point: point.batch, 0)
    yield from _chart("Time per output token", "By the mean batch of the engine's steps.",
                      "sequences per step", "ms", [*_fitted(sweep), *tpot])  # fmt: skip
    good = measured("goodput", "goodput", _clients, 2)
    sent = measured("answers", "answers", _clients, 0)
    if good:
        about = "Answers per second, and those of them within the SLO."
        yield from _chart("Goodput", about, clients, "requests/s", [*sent, *good])


def _chart(
    title: str, about: str, x_label: str, y_label: str, series: Sequence[Series]
) -> Iterator[Chart]:
    """Yields the chart of series from 0, none without series."""
    if series:
        xs = [x for each in series for x in each.xs]
        tops = [top for each in series for top in each.tops]
        x, y = linear(xs, least=0.0), linear(tops, least=0.0)
        yield Chart(title, about, x_label, y_label, x, y, series)


def _dots(name: str, look: Look, points: Sequence[tuple[float, Estimate]], color: int) -> Series:
    return Series(
        name,
        look,
        [x for x, _ in points],
        [estimate.value for _, estimate in points],
        color,
        margins=[estimate.margin for _, estimate in points],
        joined=look is Look.DOTS,
    )


def _ideal(sweep: Sweep) -> Iterator[Series]:
    """Yields what throughput in proportion to the clients would be, up to the largest measured."""
    sound = [point for point in sweep.points if point.is_sound]
    if len(sound) > 1:
        base, most = sound[0], max(point.tokens_per_s for point in sound)
        per_client = base.tokens_per_s / base.clients
        end = min(float(sound[-1].clients), 1.15 * most / per_client)
        xs = [float(base.clients), end]
        yield Series("in proportion", Look.LINE, xs, [per_client * x for x in xs], 3, dashed=True)


def _fitted(sweep: Sweep) -> Iterator[Series]:
    found = sweep.fit
    batches = sorted(p.batch for p in sweep.points if p.is_sound and p.tpot_p50_ms)
    if found is not None:
        name = f"fit: {_formula(found)}"
        yield fitted(name, Curve(found.t0_ms, found.c_ms, found.alpha), batches[0], batches[-1])


def _formula(fit: FitDocument) -> str:
    return f"{number_text(fit.t0_ms)} + {number_text(fit.c_ms)} · b^{fit.alpha:g}"


def fitted(name: str, curve: Curve, first: float, last: float, color: int = 1) -> Series:
    """Returns a fitted curve between two batches."""
    xs = [first + (last - first) * n / _CURVE_POINTS for n in range(_CURVE_POINTS + 1)]
    return Series(name, Look.LINE, xs, [curve.at(x) for x in xs], color, dashed=True)


def _clients(point: Point) -> float:
    return float(point.clients)
