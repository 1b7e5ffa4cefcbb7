"""The charts of one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from orch_sidecar.tools.bench.drawing.chart import Chart, Look, Marked, Series
from orch_sidecar.tools.bench.drawing.scales import Scale, exact, linear, number_text, of_times
from orch_sidecar.tools.bench.report.intervals import of_share
from orch_sidecar.tools.bench.report.measures import Times
from orch_sidecar.tools.bench.report.requests import TimedRequest
from orch_sidecar.tools.bench.report.timeline import Bins, bins_of, generating, tokens, waiting
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.runs.rate_search import KEPT_SHARE
from orch_sidecar.tools.facts.labels.figures import percentile
from orch_sidecar.tools.facts.labels.snapshot import InvalidSnapshot, parse_snapshot

_MARKED: Final = (50.0, 95.0, 99.0)
_BARS: Final = 40
_MOST_TIMES: Final = 80
# A bin of the time with fewer requests than this would show single requests, not the run.
_LEAST_IN_BIN: Final = 2
_SECONDS: Final = "seconds since the start of the run"


def distribution(times: Times) -> Chart:
    """Returns a histogram of times, with percentiles and the bound of the SLO."""
    values = times.values
    bound = [] if times.bound_ms is None else [times.bound_ms]
    scale = of_times([*values, *bound])
    edges = _edges(scale)
    marks = [
        Marked(f"p{p:g} {number_text(at)}", at)
        for p in _MARKED
        if (at := percentile(values, p)) is not None
    ]
    within = ""
    if times.bound_ms is not None:
        marks.append(Marked(f"SLO {number_text(times.bound_ms)}", times.bound_ms, is_bound=True))
        kept = of_share([value <= times.bound_ms for value in values])
        within = f" {100 * kept.value:.1f} % of them within the SLO." if kept else ""
    counts = _counts(values, edges)
    shorter = "; what is shorter is in the first bar" if min(values) < scale.low else ""
    return Chart(
        title=times.title,
        about=f"{len(values)} requests, {number_text(min(values))} to {number_text(max(values))} ms"
        f"{', logarithmic' if scale.logarithmic else ''}{shorter}.{within}",
        x_label="ms",
        y_label="requests",
        x=scale,
        y=linear(counts, least=0.0),
        series=[Series(times.name, Look.BARS, edges, counts)],
        marked=marks,
    )


def throughput_over_time(requests: Sequence[TimedRequest]) -> Iterator[Chart]:
    """Yields generated tokens per second over the time of the run, if it has any."""
    bins = _bins(requests)
    if bins is None:
        return
    rates = [amount / bins.width_s for amount in bins.spread(tokens(requests))]
    mean = sum(rates) / len(rates)
    yield Chart(
        title="Throughput",
        about=f"Generated tokens per second, in parts of {number_text(bins.width_s)} s; "
        f"{number_text(mean)} in the mean. The tokens of an answer count as evenly spread.",
        x_label=_SECONDS,
        y_label="tokens/s",
        x=exact(bins.begin_s, bins.end_s),
        y=linear(rates, least=0.0),
        series=[Series("tokens/s", Look.STEPS, bins.edges, rates)],
        marked=[Marked(f"mean {number_text(mean)}", mean, horizontal=True)],
    )


def batch_and_queue(result: Result, requests: Sequence[TimedRequest]) -> Iterator[Chart]:
    """Yields the answers in generation and the requests that wait, over the time of the run."""
    bins = _bins(requests)
    if bins is None:
        return
    running, queued = bins.mean(generating(requests)), bins.mean(waiting(requests))
    marks = []
    slots = result.engine.slots_total
    if slots:
        marks.append(Marked(f"{slots} slots", float(slots), horizontal=True))
    reported = any(each.queue_ms is not None for each in requests)
    about = "Answers between their first and last token, by the client's times."
    series = [Series("answers in generation", Look.STEPS, bins.edges, running)]
    if reported:
        about += " Waiting: for a slot, as the sidecar reported of each answer."
        series.append(Series("requests that wait", Look.STEPS, bins.edges, queued, 1, dashed=True))
    else:
        about += " No wait is known: none was reported."
    highest = [*running, *queued, float(slots or 0)]
    yield Chart(
        title="Batch and queue",
        about=about,
        x_label=_SECONDS,
        y_label="requests, mean of each part",
        x=exact(bins.begin_s, bins.end_s),
        y=linear(highest, least=0.0),
        series=series,
        marked=marks,
    )


def steps_by_batch(result: Result) -> Iterator[Chart]:
    """Yields the share of the engine's decode steps at each batch, as it counted them."""
    if len(result.capabilities) != 2:
        return
    try:
        before, after = (
            parse_snapshot(each, result.engine.pool).steps_by_batch for each in result.capabilities
        )
    except InvalidSnapshot:
        return  # of another engine, or a result without documents: its verdict has the reason
    steps = {batch: count - before.get(batch, (0, 0.0))[0] for batch, (count, _) in after.items()}
    total = sum(steps.values())
    if total <= 0 or min(steps.values()) < 0:
        return  # the engine was restarted meanwhile
    largest = max(batch for batch, count in steps.items() if count)
    shares = [100 * steps.get(batch, 0) / total for batch in range(1, largest + 1)]
    mean = sum(batch * count for batch, count in steps.items()) / total
    yield Chart(
        title="Decode steps by batch",
        about=f"{total} steps that the engine counted; {number_text(mean)} sequences in the mean.",
        x_label="sequences in the step",
        y_label="% of the steps",
        x=linear([0.5, largest + 0.5], least=0.0) if largest > 20 else _whole(largest),
        y=linear(shares, least=0.0),
        series=[Series("steps", Look.BARS, [n + 0.5 for n in range(largest + 1)], shares)],
        marked=[Marked(f"mean {number_text(mean)}", mean)],
    )


def goodput_by_rate(result: Result) -> Iterator[Chart]:
    """Yields the share of requests within the SLO at each rate that a search has tried."""
    trials = sorted(result.trials, key=lambda trial: trial.rate_per_s)
    if not trials:
        return
    rates = [trial.rate_per_s for trial in trials]
    good = [trial.rate_per_s * trial.share for trial in trials]
    kept = [trial for trial in trials if trial.kept]
    best = max((trial.rate_per_s for trial in kept), default=None)
    marks = [] if best is None else [Marked(f"largest {number_text(best)}/s", best)]
    about = (
        f"Each of the {len(trials)} trials of the search. A rate is met if {KEPT_SHARE:.0%} of its "
        "requests are within the SLO; hollow: it was not."
    )
    met = [(trial.rate_per_s, trial.rate_per_s * trial.share) for trial in kept]
    missed = [
        (trial.rate_per_s, trial.rate_per_s * trial.share) for trial in trials if not trial.kept
    ]
    series = [Series("all within the SLO", Look.LINE, rates, rates, 2, dashed=True)]
    series.append(Series("goodput", Look.LINE, rates, good))
    for name, look, points in (
        ("met", Look.DOTS, met),
        ("not met", Look.HOLLOW, missed),
    ):
        if points:
            series.append(Series(name, look, [x for x, _ in points], [y for _, y in points]))
    yield Chart(
        title="Goodput by rate",
        about=about,
        x_label="requests sent per second",
        y_label="requests within the SLO per second",
        x=linear(rates, least=0.0),
        y=linear([*rates, *good], least=0.0),
        series=series,
        marked=marks,
    )


def _edges(scale: Scale) -> list[float]:
    """Returns the edges of bars that look equally wide on the scale."""
    shares = [number / _BARS for number in range(_BARS + 1)]
    if scale.logarithmic:
        return [scale.low * (scale.high / scale.low) ** share for share in shares]
    return [scale.low + (scale.high - scale.low) * share for share in shares]


def _counts(values: Sequence[float], edges: Sequence[float]) -> list[float]:
    counts, upper = [0.0] * (len(edges) - 1), 0
    for value in sorted(values):
        while upper < len(counts) - 1 and value >= edges[upper + 1]:
            upper += 1
        counts[upper] += 1
    return counts


def _bins(requests: Sequence[TimedRequest]) -> Bins | None:
    completed = [made for each in requests if (made := each.completed) is not None]
    count = min(_MOST_TIMES, max(10, len(completed) // _LEAST_IN_BIN))
    return bins_of(completed, count)


def _whole(largest: int) -> Scale:
    """Returns a scale with a tick for each batch."""
    return Scale(0.5, largest + 0.5, tuple(float(batch) for batch in range(1, largest + 1)))
