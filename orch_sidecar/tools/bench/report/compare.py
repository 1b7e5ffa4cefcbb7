"""The report of two results side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from orch_sidecar.tools.bench.drawing.chart import Chart, Look, Marked, Series
from orch_sidecar.tools.bench.drawing.page import Page, badge, colored
from orch_sidecar.tools.bench.drawing.scales import linear, of_times
from orch_sidecar.tools.bench.report.comparison import Compared, Comparison, comparison_of
from orch_sidecar.tools.bench.report.conditions import CLIENT, ENGINE, LOAD, conditions_of
from orch_sidecar.tools.bench.report.measures import Times, times_of
from orch_sidecar.tools.bench.report.requests import by_class, requests_of
from orch_sidecar.tools.bench.report.run import INTERVALS_TEXT, KINDS, began
from orch_sidecar.tools.bench.report.sweep import clients_text
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.bench.results.text import arrivals_text

# Points of a cumulative distribution: more are not visible.
_MOST_POINTS: Final = 200


def compare_report(before: Result, after: Result) -> str:
    """Returns the page of two results. Raises ValueError as `run_report` does."""
    found = comparison_of(before, after)
    page = Page(_title(before, after))
    for letter, result in _lettered(before, after):
        kind, _ = KINDS[result.status]
        name = f" {letter}: {result.engine.model_name}, {result.measurement_type.value}, "
        page.text(
            badge(result.status.value, kind), name, f"{arrivals_text(result)}, {began(result)}"
        )
        if result.reasons:
            page.note(kind, f"Why {letter} is {result.status.value}", result.reasons)
    _objections(page, found)
    page.section("Figures")
    _table(page, found.figures)
    page.text(INTERVALS_TEXT, soft=True)
    page.text(
        "A change is shown only where its interval does not contain 0. Two runs of the same system "
        "may differ by more than that: repeat both, in turns, before you decide on a small change.",
        soft=True,
    )
    charts = list(_charts(before, after))
    if charts:
        page.section("Distributions")
        page.charts(charts)
    _conditions(page, found)
    page.text(f"a: result {before.id}. b: result {after.id}.", soft=True)
    return page.html


def compare_sweeps_report(before: Sweep, after: Sweep) -> str:
    """Returns the page of two sweeps: the concurrencies that both have. Raises ValueError."""
    pairs = pairs_of(before, after)
    first, second = before.results[0], after.results[0]
    page = Page(_title(first, second))
    page.text(f"Two sweeps, of {began(first)} and {began(second)}.", soft=True)
    compared = {clients: comparison_of(one, other) for clients, (one, other) in pairs.items()}
    _objections(page, next(iter(compared.values())))
    page.section("Curves")
    page.charts(list(_sweep_charts(before, after)))
    for clients, found in compared.items():
        page.section(clients_text(clients))
        _table(page, found.figures)
    page.text(INTERVALS_TEXT, soft=True)
    _conditions(page, next(iter(compared.values())))
    return page.html


def pairs_of(before: Sweep, after: Sweep) -> dict[int, tuple[Result, Result]]:
    """Returns the results of both sweeps by the clients that both have. Raises ValueError."""
    second = {each.scenario.clients: each for each in after.results}
    pairs = {
        clients: (each, second[clients])
        for each in before.results
        if (clients := each.scenario.clients) is not None and clients in second
    }
    if not pairs:
        raise ValueError("the sweeps have no concurrency in common: there is nothing to compare")
    return pairs


def _title(before: Result, after: Result) -> str:
    names = dict.fromkeys([before.engine.model_name, after.engine.model_name])
    return f"{' and '.join(names)}: two runs compared"


def _lettered(before: Result, after: Result) -> Iterator[tuple[str, Result]]:
    yield from (("a", before), ("b", after))


def _objections(page: Page, found: Comparison) -> None:
    if found.objections:
        page.note("warn", "The runs differ in what may be the reason of a change", found.objections)


def _table(page: Page, figures: Sequence[Compared]) -> None:
    if not figures:
        page.text("There is no figure that both have.")
        return
    page.table(
        ("figure", "a (95 % interval)", "b (95 % interval)", "b against a", "b is"),
        [
            (
                each.before.title_and_unit,
                each.before.text,
                each.after.text,
                each.change_text,
                colored(each.verdict, {"better": "good", "worse": "bad"}.get(each.verdict, "")),
            )
            for each in figures
        ],
    )


def _conditions(page: Page, found: Comparison) -> None:
    page.section("What differs in their conditions")
    if not found.differing:
        page.text("Nothing that the results record.")
    else:
        page.table(
            ("condition", "a", "b", "what that means"),
            [
                (one.title, one.text or "unknown", other.text or "unknown", one.why)
                for one, other in found.differing
            ],
            texts=4,
        )
    page.section("What is the same")
    changed = {(one.group, one.name) for one, _ in found.differing}
    page.facts(
        {
            group: [
                (each.title, each.text)
                for each in conditions_of(found.before)
                if each.group == group and each.text and (group, each.name) not in changed
            ]
            for group in (LOAD, ENGINE, CLIENT)
        }
    )


def _charts(before: Result, after: Result) -> Iterator[Chart]:
    """Yields both distributions of each time, as the share of the requests up to it."""
    first, second = (by_class(requests_of(result)) for result in (before, after))
    for name in (name for name in first if name in second):
        others = {each.name: each for each in times_of(after, second[name], name)}
        for each in times_of(before, first[name], name):
            if (other := others.get(each.name)) is not None:
                yield _cumulative(each, other, name)


def _cumulative(before: Times, after: Times, of: str) -> Chart:
    bounds = {each.bound_ms for each in (before, after) if each.bound_ms is not None}
    values = [*before.values, *after.values, *bounds]
    marks = [Marked("SLO", bound, is_bound=True) for bound in sorted(bounds)]
    return Chart(
        title=f"{before.title}, {of} requests" if of else before.title,
        about=f"Share of the requests up to each time; {len(before.values)} requests in a, "
        f"{len(after.values)} in b.",
        x_label="ms",
        y_label="% of the requests",
        x=of_times(values),
        y=linear([0.0, 100.0]),
        series=[_share("a", before.values, 0), _share("b", after.values, 1, dashed=True)],
        marked=marks,
    )


def _share(name: str, values: Sequence[float], color: int, *, dashed: bool = False) -> Series:
    """Returns the cumulative distribution of values: steps where they are few."""
    ordered, count = sorted(values), len(values)
    every = max(1, count // _MOST_POINTS)
    at = [*range(0, count - 1, every), count - 1]
    xs, ys = [ordered[0]], [0.0]
    for number in at:
        xs += [ordered[number]] * 2
        ys += [ys[-1], 100 * (number + 1) / count]
    return Series(name, Look.LINE, xs, ys, color, dashed)


def _sweep_charts(before: Sweep, after: Sweep) -> Iterator[Chart]:
    for title, unit, name in (
        ("Throughput", "tokens/s", "tokens_per_s"),
        ("Time to first token, p50", "ms", "ttft_p50_ms"),
        ("Time per output token, p50", "ms", "tpot_p50_ms"),
    ):
        series = []
        for number, (letter, sweep) in enumerate((("a", before), ("b", after))):
            points = [(float(p.clients), getattr(p, name)) for p in sweep.points if p.is_sound]
            known = [(x, y) for x, y in points if y is not None]
            if known:
                xs, ys = map(list, zip(*known, strict=True))
                line = Series(letter, Look.LINE, xs, ys, number, dashed=bool(number))
                series += [line, Series(f"{letter}, measured", Look.DOTS, xs, ys, number)]
        if series:
            x = linear([x for each in series for x in each.xs], least=0.0)
            y = linear([y for each in series for y in each.ys], least=0.0)
            about = "Sound points of both sweeps."
            yield Chart(title, about, "concurrent requests", unit, x, y, series)
