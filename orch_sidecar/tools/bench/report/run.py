"""The reports of one run, and of two side by side: verdict, conditions, and figures with pictures.

A reader knows all conditions by their names, and two runs can be compared by them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from orch_sidecar.tools.bench.report import measures
from orch_sidecar.tools.bench.results.result import FATES, KEPT_SHARE, Result, Status
from orch_sidecar.tools.drawing.chart import Axis, Chart, Marked, Series, bars_by_batch
from orch_sidecar.tools.drawing.page import Page, badge
from orch_sidecar.tools.drawing.texts import number_text, percent, value_text
from orch_sidecar.tools.facts.labels.figures import percentile
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.recorded import answers
from orch_sidecar.tools.facts.tables.row import Label


def conditions_of(result: Result) -> dict[str, dict[str, Any]]:
    """Returns all conditions by groups and names."""
    load: dict[str, Any] = {"verdict": result.status, "prefix_hit_ratio": result.prefix_hit_ratio}
    load |= result.model_dump(include={"scenario"})["scenario"]
    load["trace"] = result.scenario.trace
    load["salted_cache"] = "yes" if load.pop("cache_salt") else "no"  # each run has its own
    engine = result.engine.model_dump(exclude={"epoch", "conditions"})
    engine |= {"given": result.engine.given or "nothing: all was reported"}
    engine |= result.engine.conditions or {}
    health = result.client.bottleneck or "no bottleneck"
    return {
        "Load": {name: value for name, value in load.items() if value not in (None, {})},
        "Engine": engine,
        "Client": {"endpoint": result.endpoint, **result.client.host, "health": health},
    }


def engine_text(result: Result) -> str:
    """Describes the engine, its hardware and its slots in one line."""
    engine = result.engine
    parts = [
        engine.engine or "an unknown engine",
        engine.precision,
        f"{engine.gpu_count} x {engine.gpu}" if engine.gpu and engine.gpu_count else engine.gpu,
        f"profile {engine.profile}, slots: {engine.slots_total}" if engine.slots_total else None,
    ]
    return ", ".join(filter(None, parts))


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

INTERVALS_TEXT: Final = (
    f"Intervals cover 95 %. They follow from {measures.SECTIONS} consecutive sections of the run, "
    "so they allow for requests that wait for each other, and not for what another run, another "
    "day or another machine would change. A dash: the run is too short for one. Drifts: the "
    "sections follow a trend, as while a queue grows; a longer run has another figure. A "
    "percentile is missing where no request can be beyond it."
)


def run_report(result: Result) -> Page:
    """Returns the page of a run. Raises ValueError for a result whose calls are not requests."""
    page = Page(f"{result.engine.model_name}: {result.measurement_type.value.replace('_', ' ')}")
    verdict(page, result)
    page.section("Figures")
    _figures(page, result)
    page.section("What was measured, and how")
    conditions(page, result)
    page.charts(map(distribution, measures.times_of(result).values()), "Distributions")
    page.charts(over_time(result), "Over time")
    page.charts(steps_by_batch(result), "Batches")
    if result.trials:
        page.section("The search for the rate")
        page.text(f"A rate is met if {KEPT_SHARE:.0%} of its requests are within the SLO.")
        rows = (
            (number_text(each.rate_per_s), percent(each.share), "yes" if each.kept else "no")
            for each in result.trials
        )
        page.table(("requests/s", "within the SLO", "met"), rows)
    if (theirs := result.loadgen) is not None:
        page.section("By MLCommons' loadgen")
        pairs = (  # of the same moments
            (name, number_text(other), number_text(own), f"{own / other - 1:+.2%}")
            for name, (other, own) in theirs.figures.items()
        )
        none = "Not compared: a request was not answered, and loadgen knows no failures."
        page.table(("", "loadgen", "orch bench", "difference"), pairs, otherwise=none)
        valid = "VALID" if theirs.valid else "INVALID, as the logs say why"
        page.text(f"Its own verdict: {valid}. Its logs: {theirs.folder}")
    page.section("Requests")
    _outcomes(page, result)
    page.remark(f"Result {result.id}, schema {result.schema_version}.")
    return page


def verdict(page: Page, result: Result, letter: str = "") -> None:
    """Appends the verdict with its reasons, and what was measured in one line.

    `letter`: names the run where there are two.
    """
    kind, meaning = KINDS[result.status]
    name = f"{letter}: {result.engine.model_name}, " if letter else ""
    page.text(name, badge(f"{result.measurement_type}: {result.status}", kind), f" · {meaning}")
    load = f"{result.scenario.text}, prompts: {result.scenario.prompts}"
    page.text(f"{engine_text(result)} · {load} · {began(result)}")
    page.list(result.reasons, "Why", kind)
    if not letter:
        page.list(result.shortfalls, "What it lacks to be published", "warn")
    page.list(result.engine.given, "Given by the user, not reported by the engine", "warn")
    page.list(result.client.bottleneck, "The client may be the bottleneck", "warn")


def began(result: Result) -> str:
    """Formats when a run began, to the second."""
    return f"{result.began_at[:19].replace('T', ' ')} UTC"


def conditions(page: Page, result: Result) -> None:
    """Appends the meaning of the label and all conditions."""
    page.remark(f"{result.measurement_type}: {LABELS.get(result.measurement_type, '')}.")
    page.facts(conditions_of(result))
    signed, missing = result.evidence.signed, result.evidence.missing
    none = f"none: {missing}" if missing else "none"
    page.remark(f"Evidence: {none if signed is None else 'signed by the engine'}.")


def _figures(page: Page, result: Result) -> None:
    rows = [
        (each.name_and_unit, *each.texts, number_text(each.early))
        for each in measures.measures_of(result).values()
    ]
    if rows:
        page.table(("figure", "measured", "95 % interval", "by early stopping"), rows)
        page.remark(INTERVALS_TEXT)
        page.remark(
            "By early stopping: MLPerf's estimate, which the true percentile does not exceed with "
            "a confidence of 99 %."
        )
    lines = []
    if result.scenario.trace is not None and result.scenario.trace.has_bulk:
        lines.append("all but throughput and answers are of interactive requests")
    if (gap := result.gaps_s) is not None:
        p50, p99 = 1000 * gap.p50, 1000 * gap.p99
        lines.append(f"gap between events: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    if (found := result.batches) is not None:
        lines.append(
            f"decode steps of the engine: batch mean {found.mean:.2f}, largest {found.largest}, "
            f"{found.steps} steps"
        )
    if share := result.prefix_hit_ratio:
        lines.append(f"{share:.1%} of the prompt tokens were in its prefix cache")
    page.list(lines)


def _outcomes(page: Page, result: Result) -> None:
    sent = Counter(call.service_class for call in result.calls if call.sent_s is not None)
    fates = Counter((call.service_class, call.fate) for call in result.calls)
    rows = [
        (of or "all", str(sent[of]), *(str(fates[of, fate]) for fate in FATES))
        for of in sorted({call.service_class for call in result.calls}, key=str, reverse=True)
    ]
    page.table(("requests", "sent", *FATES), rows)
    counts, client = result.counts, result.client
    lines = [f"{count} x {reason}" for reason, count in counts.reasons.items()]
    if counts.of_other_length:
        lines.append(f"{counts.of_other_length} did not have the requested number of tokens")
    if counts.counted_by_events:
        lines.append(f"{counts.counted_by_events} reported no usage: their events were counted")
    late = "" if client.late_s is None else f"{1000 * client.late_s.p99:.1f} ms late (p99), "
    lines.append(f"client: {late}{client.cpu_share:.0%} of one core")
    page.list(lines)


def distribution(*runs: measures.Times) -> Chart:
    """Returns the share of the requests up to each time, of one run with its percentiles, or of
    runs side by side; with the bound of the SLO.

    The axis is logarithmic where times differ so widely that this is easier to read. It begins at a
    thousandth of the largest then: what is shorter lies at its edge.
    """
    values = [value for times in runs for value in times.values]
    bounds = sorted({times.bound_ms for times in runs if times.bound_ms is not None})
    least, most = min([*values, *bounds]), max([*values, *bounds])
    axis = Axis("ms", low=0.0 if least < most / 2 else 0.95 * least, high=1.02 * most or 1.0)
    if least > 0 and most > 30 * least:
        axis = Axis("ms", log=True, low=max(least, most / 1000), high=most)
    marks = [
        Marked(f"{at} {number_text(value)}", value)
        for at, p in measures.percentiles_of(len(values)).items()
        if len(runs) == 1 and p in (50, 95, 99) and (value := percentile(values, p)) is not None
    ]
    marks += [Marked(f"SLO {number_text(bound)}", bound, is_bound=True) for bound in bounds]
    series, about = [], []
    for number, times in enumerate(runs):
        name = "ab"[number] if len(runs) > 1 else ""
        series.append(Series(name, times.values, (), "--" if number else "-", "", number))
        shortest, longest = number_text(min(times.values)), number_text(max(times.values))
        which = f"{name}: " if name else ""
        about.append(f"{which}{len(times.values)} requests, {shortest} to {longest} ms.")
        if times.bound_ms is not None:
            kept = fmean(value <= times.bound_ms for value in times.values)
            about.append(f"{percent(kept)} of them within the SLO.")
    y = Axis("share of the requests", high=1.0)
    return Chart(runs[0].title, " ".join(about), axis, y, series, marks)


def over_time(result: Result) -> Iterator[Chart]:
    """Yields tokens per second, then batch and queue, over the time of the run, if it has any."""
    made = answers(result.calls)
    # Parts with less than two requests would show these, not the run.
    edges = measures.edges_of(made, min(80, max(10, len(made) // 2)))
    if not edges:
        return
    width_s = edges[1] - edges[0]

    def means(amounts: Iterable[measures.Amount]) -> list[float]:
        return [amount / width_s for amount in measures.spread(amounts, edges)]

    def opened(name: str, intervals: Sequence[Interval], line: str) -> Series:
        middles = [(start + end) / 2 for start, end in pairwise(edges)]
        seconds = means((each, each.end - each.start) for each in intervals)
        return Series(name, middles, seconds, line, marker="", color=int(line != "-"))

    rates = means(measures.tokens(made))
    mean = fmean(rates)
    time = Axis("seconds since the start of the run", low=edges[0], high=edges[-1])
    yield Chart(
        "Throughput",
        f"Generated tokens per second, in parts of {number_text(width_s)} s. The tokens of an "
        "answer count as evenly spread.",
        time,
        Axis("tokens/s"),
        [Series("tokens/s", edges, rates)],
        [Marked(f"mean {number_text(mean)}", mean, horizontal=True)],
    )
    waits = [
        Interval(each.sent_s, each.sent_s + each.queue_ms / 1000)
        for each in result.calls
        if each.sent_s is not None and each.queue_ms is not None
    ]
    slots = result.engine.slots_total
    running = [each.generation for each in made]
    yield Chart(
        "Batch and queue",
        "Answers between their first and last token, by the client's times. Waiting: for a slot, "
        f"as the sidecar reported of {len(waits)} requests.",
        time,
        Axis("requests, mean of each part"),
        [opened("answers in generation", running, "-"), opened("requests that wait", waits, "--")],
        [Marked(f"{slots} slots", float(slots), horizontal=True)] if slots else [],
    )


def steps_by_batch(result: Result) -> Iterator[Chart]:
    """Yields the share of the engine's decode steps at each batch, as it counted them."""
    found = result.batches
    if found is None or not found.ran:
        return
    mean = number_text(found.mean)
    shares = {batch: 100 * count / found.steps for batch, count in found.ran.items()}
    about = f"{found.steps} steps that the engine counted; {mean} sequences in the mean."
    marked = Marked(f"mean {mean}", found.mean)
    yield bars_by_batch("Decode steps by batch", about, "% of the steps", shares, marked)


def differing(before: Result, after: Result) -> Iterator[tuple[str, str, str]]:
    """Yields the names of the conditions in which two results differ, and both texts."""
    pairs = zip(conditions_of(before).values(), conditions_of(after).values(), strict=True)
    for first, second in pairs:
        for name in first | second:
            a, b = (value_text(name, each.get(name)) or "unknown" for each in (first, second))
            if a != b:
                yield name.replace("_", " "), a, b


def compare_report(before: Result, after: Result) -> Page:
    """Returns the page of two results. Raises ValueError as `run_report` does."""
    names = dict.fromkeys([before.engine.model_name, after.engine.model_name])
    page = Page(f"{' and '.join(names)}: two runs compared")
    verdict(page, before, "a")
    verdict(page, after, "b")
    page.section("What differs in their conditions")
    same = "Nothing that the results record."
    page.table(("condition", "a", "b"), differing(before, after), texts=3, otherwise=same)
    page.section("Figures")
    second = measures.measures_of(after)
    rows = [
        (a.name_and_unit, a.text, b.text, a.change_text(b), a.verdict(b))
        for name, a in measures.measures_of(before).items()
        if (b := second.get(name)) is not None
    ]
    none = "There is no figure that both have."
    head = ("figure", "a (95 % interval)", "b (95 % interval)", "b against a", "b is")
    page.table(head, rows, kinds={"better": "good", "worse": "bad"}, otherwise=none)
    page.remark(INTERVALS_TEXT)
    page.remark(
        "A change is shown only where its interval does not contain 0. Two runs of the same system "
        "may differ by more than that: repeat both, in turns, before you decide on a small change."
    )
    times, others = measures.times_of(before), measures.times_of(after)
    both = (distribution(each, others[name]) for name, each in times.items() if name in others)
    page.charts(both, "Distributions")
    page.section("All conditions of a")
    conditions(page, before)
    page.remark(f"a: result {before.id}. b: result {after.id}.")
    return page
