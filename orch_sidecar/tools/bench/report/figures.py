"""The charts of one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final

from orch_sidecar.tools.bench.report.measures import (
    Times,
    edges_of,
    of_share,
    percentiles_of,
    served,
    spread,
    tokens,
)
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.drawing.chart import (
    Axis,
    Chart,
    Look,
    Marked,
    Series,
)
from orch_sidecar.tools.drawing.texts import number_text, percent
from orch_sidecar.tools.facts.labels.figures import percentile
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.observation import States
from orch_sidecar.tools.facts.labels.snapshot import InvalidSnapshot, parse_snapshot

_MARKED: Final = ("p50", "p95", "p99")
_MOST_TIMES: Final = 80
# Times that span more than this are easier to read on a logarithmic axis.
_WIDE: Final = 30.0
# A bin of the time with fewer requests than this would show single requests, not the run.
_LEAST_IN_BIN: Final = 2


def distribution(runs: Sequence[Times]) -> Chart:
    """Returns the share of the requests up to each time, of one run with its percentiles, or of
    runs side by side; with the bound of the SLO.

    The axis is logarithmic where times differ widely. It begins at a thousandth of the largest
    then: what is shorter lies at its edge.
    """
    values = [value for times in runs for value in times.values]
    bounds = sorted({times.bound_ms for times in runs if times.bound_ms is not None})
    least, most = min([*values, *bounds]), max([*values, *bounds])
    axis = Axis("ms", low=0.0 if least < most / 2 else 0.95 * least, high=1.02 * most or 1.0)
    if least > 0 and most > _WIDE * least:
        axis = Axis("ms", log=True, low=max(least, most / 1000), high=most)
    names = ("a", "b") if len(runs) > 1 else ("",)
    series = [
        Series(name, times.values, (), line, "", number, look=Look.SHARES)
        for number, (name, times, line) in enumerate(zip(names, runs, ("-", "--"), strict=False))
    ]
    marks = [
        Marked(f"{at} {number_text(value)}", value)
        for at, p in percentiles_of(len(values)).items()
        if len(runs) == 1 and at in _MARKED and (value := percentile(values, p)) is not None
    ]
    marks += [Marked(f"SLO {number_text(bound)}", bound, is_bound=True) for bound in bounds]
    about = [
        f"{f'{name}: ' * bool(name)}{_range_text(t)}" for name, t in zip(names, runs, strict=True)
    ]
    y = Axis("share of the requests", high=1.0)
    return Chart(runs[0].title, " ".join(about), axis, y, series, marks)


def _range_text(times: Times) -> str:
    values, bound = times.values, times.bound_ms
    text = f"{len(values)} requests, {number_text(min(values))} to {number_text(max(values))} ms."
    kept = None if bound is None else of_share([value <= bound for value in values])
    return text if kept is None else f"{text} {percent(kept.value)} of them within the SLO."


def over_time(result: Result) -> Iterator[Chart]:
    """Yields tokens per second, then batch and queue, over the time of the run, if it has any."""
    answers = list(served(result.calls))
    edges = edges_of(answers, min(_MOST_TIMES, max(10, len(answers) // _LEAST_IN_BIN)))
    if not edges:
        return
    width_s = edges[1] - edges[0]
    rates = [amount / width_s for amount in spread(tokens(answers), edges)]
    mean = fmean(rates)
    time = Axis("seconds since the start of the run", low=edges[0], high=edges[-1])
    yield Chart(
        "Throughput",
        f"Generated tokens per second, in parts of {number_text(width_s)} s. The tokens of an "
        "answer count as evenly spread.",
        time,
        Axis("tokens/s"),
        [Series("tokens/s", edges, rates, look=Look.BARS)],
        [Marked(f"mean {number_text(mean)}", mean, horizontal=True)],
    )
    waits = [
        Interval(each.sent_s, each.sent_s + each.queue_ms / 1000)
        for each in result.calls
        if each.sent_s is not None and each.queue_ms is not None
    ]
    slots = result.engine.slots_total
    yield Chart(
        "Batch and queue",
        "Answers between their first and last token, by the client's times. Waiting: for a slot, "
        f"as the sidecar reported of {len(waits)} requests.",
        time,
        Axis("requests, mean of each part"),
        [
            _open("answers in generation", [each.generation for each in answers], edges, "-"),
            _open("requests that wait", waits, edges, "--"),
        ],
        [Marked(f"{slots} slots", float(slots), horizontal=True)] if slots else [],
    )


def _open(name: str, intervals: Sequence[Interval], edges: Sequence[float], line: str) -> Series:
    """Returns how many intervals are open in each part, in the mean."""
    seconds = spread([(each, each.end - each.start) for each in intervals], edges)
    middles = [(start + end) / 2 for start, end in pairwise(edges)]
    means = [each / (edges[1] - edges[0]) for each in seconds]
    return Series(name, middles, means, line, marker="", color=int(line != "-"))


def steps_by_batch(result: Result) -> Iterator[Chart]:
    """Yields the share of the engine's decode steps at each batch, as it counted them."""
    if len(result.capabilities) != 2:
        return
    try:
        states = States(*(parse_snapshot(each, result.engine.pool) for each in result.capabilities))
    except InvalidSnapshot:
        return  # of another engine, or a result without documents: its verdict has the reason
    steps = states.steps_by_batch
    total = sum(steps.values())
    if total <= 0 or min(steps.values()) < 0:
        return  # the engine was restarted meanwhile
    mean = sum(batch * count for batch, count in steps.items()) / total
    shares = {batch: 100 * count / total for batch, count in steps.items()}
    about = f"{total} steps that the engine counted; {number_text(mean)} sequences in the mean."
    marked = Marked(f"mean {number_text(mean)}", mean)
    yield bars_by_batch("Decode steps by batch", about, "% of the steps", shares, marked)


def bars_by_batch(
    title: str, about: str, label: str, amounts: dict[int, float], *marked: Marked
) -> Chart:
    """Returns a chart with a bar for each batch, from the smallest to the largest that occurs."""
    batches = range(min(amounts), max(amounts) + 1)
    edges = [batch - 0.5 for batch in (*batches, batches.stop)]
    x = Axis("sequences in the step", low=edges[0], high=edges[-1], whole=True)
    ys = [amounts.get(batch, 0.0) for batch in batches]
    return Chart(title, about, x, Axis(label), [Series("steps", edges, ys, look=Look.BARS)], marked)
