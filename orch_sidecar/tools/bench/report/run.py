"""The report of one run: what was measured and how, and its figures with their pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from orch_sidecar.tools.bench.drawing.page import Card, Page, badge
from orch_sidecar.tools.bench.drawing.scales import number_text
from orch_sidecar.tools.bench.report.conditions import CLIENT, ENGINE, LOAD, conditions_of
from orch_sidecar.tools.bench.report.figures import (
    batch_and_queue,
    distribution,
    goodput_by_rate,
    steps_by_batch,
    throughput_over_time,
)
from orch_sidecar.tools.bench.report.intervals import SECTIONS
from orch_sidecar.tools.bench.report.measures import SHARE, Measure, measures_of, times_of
from orch_sidecar.tools.bench.report.requests import TimedRequest, by_class, requests_of
from orch_sidecar.tools.bench.results.result import Result, Status
from orch_sidecar.tools.bench.results.text import arrivals_text
from orch_sidecar.tools.facts.labels.figures import PERCENTILES
from orch_sidecar.tools.facts.tables.row import Label

LABELS: Final = {
    Label.SINGLE_STREAM: "one request at a time on an engine with one slot: what one user gets",
    Label.BATCHED_ONLINE: "many requests merged into each decode step, at an acceptable latency",
    Label.OFFLINE: "everything at once, in batches as large as possible: throughput only",
}

KINDS: Final = {
    Status.VALID: ("good", "The engine did what the label states, long enough to be published."),
    Status.PRELIMINARY: ("warn", "The label is earned, but the run is too short to be published."),
    Status.UNVERIFIED: ("warn", "The endpoint does not report what its engine did."),
    Status.UNBATCHED: ("warn", "One client of a sweep: sound, but it makes no row of a table."),
    Status.INVALID: ("bad", "The run was not what its label states: its figures do not hold."),
    Status.INCOMPLETE: ("bad", "The run ended early: its figures are of a part of it."),
}

_CARDS: Final = (
    "throughput", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "latency p95", "within the SLO",
)  # fmt: skip

INTERVALS_TEXT: Final = (
    f"Intervals cover 95 %. They follow from {SECTIONS} consecutive sections of the run, so they "
    "allow for requests that wait for each other, and not for what another run, another day or "
    "another machine would change. A dash: the run is too short for one. Drifts: the sections "
    "follow a trend, as while a queue grows; a longer run has another figure."
)


def run_report(result: Result) -> str:
    """Returns the page of a run. Raises ValueError for a result whose calls are not requests."""
    requests, measures = requests_of(result), measures_of(result)
    page = Page(f"{result.engine.model_name}: {result.measurement_type.value.replace('_', ' ')}")
    verdict(page, result)
    page.cards(_cards(result, measures))
    page.section("What was measured, and how")
    conditions(page, result)
    if measures:
        page.section("Figures")
        _figures(page, result, measures)
    for name, members in by_class(requests).items():
        _distributions(page, result, name, members)
    over_time = [*throughput_over_time(requests), *batch_and_queue(result, requests)]
    if over_time:
        page.section("Over time")
        page.charts(over_time)
    more = [*steps_by_batch(result), *goodput_by_rate(result)]
    if more:
        page.section("Batches" if not result.trials else "Batches, and the search for the rate")
        page.charts(more)
    page.section("Requests")
    _outcomes(page, result)
    page.text(f"Result {result.id}, schema {result.schema_version}.", soft=True)
    return page.html


def verdict(page: Page, result: Result) -> None:
    """Appends the verdict with its reasons, and what was measured in one line."""
    kind, meaning = KINDS[result.status]
    engine = result.engine
    parts = [
        " ".join(part for part in (engine.engine, engine.engine_version) if part),
        engine.precision,
        f"{engine.gpu_count} x {engine.gpu}" if engine.gpu_count else engine.gpu,
        f"profile {engine.profile}, {engine.slots_total} slots" if engine.profile else None,
        arrivals_text(result),
        began(result),
    ]
    page.text(badge(result.status.value, kind), f" {meaning}")
    page.text(" · ".join(part for part in parts if part), soft=True)
    if result.reasons:
        page.note("bad" if kind == "bad" else "warn", "Why", result.reasons)
    if result.shortfalls:
        page.note("warn", "What it lacks to be published", result.shortfalls)
    if result.client.bottleneck:
        page.note("warn", "The client may have limited the figures", result.client.bottleneck)


def began(result: Result) -> str:
    """Formats when a run began, to the second."""
    return f"{result.began_at[:19].replace('T', ' ')} UTC"


def conditions(page: Page, result: Result) -> None:
    """Appends the meaning of the label and all conditions."""
    label = result.measurement_type
    page.text(f"{label.value}: {LABELS.get(label, '')}.")
    found = conditions_of(result)
    page.facts(
        {
            group: [
                (each.title, each.text or "unknown")
                for each in found
                if each.group == group and (each.text or group != LOAD)
            ]
            for group in (LOAD, ENGINE, CLIENT)
        }
    )
    signed = result.evidence.signed is not None
    missing = f": {result.evidence.missing}" if result.evidence.missing else ""
    page.text("Evidence: ", "signed by the engine" if signed else f"none{missing}", ".")


def _cards(result: Result, measures: Sequence[Measure]) -> Iterator[Card]:
    found: dict[str, Measure] = {}
    for each in measures:
        found.setdefault(each.name, each)  # of the interactive class, where there are two
    for name in _CARDS:
        if name in found:
            each = found[name]
            unit = "" if each.unit == SHARE else each.unit
            known = each.estimate.margin is not None
            yield Card(each.title, each.value_text, unit, each.interval_text if known else "")
    if result.batches is not None:
        found_steps = result.batches
        more = f"largest {found_steps.largest}, {found_steps.steps} steps"
        yield Card("batch, mean", number_text(found_steps.mean), "", more)


def _figures(page: Page, result: Result, measures: Sequence[Measure]) -> None:
    early = _early(result)
    rows = [
        (
            each.title_and_unit,
            each.value_text,
            each.interval_text,
            number_text(early[each.title]) if each.title in early else "-",
        )
        for each in measures
    ]
    page.table(("figure", "measured", "95 % interval", "by early stopping"), rows)
    page.text(INTERVALS_TEXT, soft=True)
    page.text(
        "By early stopping: MLPerf's estimate, which the true percentile does not exceed with a "
        "confidence of 99 %.",
        soft=True,
    )


def _early(result: Result) -> dict[str, float]:
    """Returns MLPerf's estimates by the titles of the figures that they are of."""
    groups = {name: each.figures for name, each in result.classes.items()}
    found = {}
    for name, figures in (groups or {"": result.figures}).items():
        if figures is None or result.measurement_type is Label.OFFLINE:
            continue
        spreads = {
            "TTFT": figures.ttft_ms,
            "TPOT": figures.tpot_ms,
            "latency": figures.latency_ms,
            "wait": figures.queue_ms,
        }
        for kind, spread in spreads.items():
            for at in PERCENTILES if spread is not None else ():
                if spread is not None and at in spread.early:
                    found[f"{name} {kind} {at}".strip()] = spread.early[at]
    return found


def _distributions(page: Page, result: Result, name: str, members: Sequence[TimedRequest]) -> None:
    charts = [distribution(times) for times in times_of(result, members, name)]
    if charts:
        page.section(f"Distributions, {name} requests" if name else "Distributions")
        page.charts(charts)


def _outcomes(page: Page, result: Result) -> None:
    groups = {name: each.counts for name, each in result.classes.items()} or {"all": result.counts}
    head = ("requests", "sent", "answered", "refused", "failed", "cut")
    page.table(
        head,
        [
            (name, *(str(n) for n in (c.sent, c.answered, c.refused, c.failed, c.cut)))
            for name, c in groups.items()
        ],
    )
    counts = result.counts
    lines = [f"{count} x {reason}" for reason, count in counts.reasons.items()]
    if counts.of_other_length:
        lines.append(f"{counts.of_other_length} did not have the requested number of tokens")
    if counts.counted_by_events:
        lines.append(f"{counts.counted_by_events} reported no usage: their events were counted")
    page.list(lines)
