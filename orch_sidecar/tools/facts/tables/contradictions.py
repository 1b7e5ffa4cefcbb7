"""The fields and notes of a row that must agree: what a row contradicts by itself.

Pure. The engine's work is judged before a row is made (`facts.labels`), by the same rules about
the load; a row must not state anything else than what was judged. Each rule yields what breaks it,
a note or a column, and what that must be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Final

from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.forms import THROUGHPUT
from orch_sidecar.tools.facts.tables.notes import PERCENTILES, TIMES, Arrivals, RowNotes, time_note
from orch_sidecar.tools.facts.tables.publication import MIN_QUERIES, least_samples, shortfalls
from orch_sidecar.tools.facts.tables.row import (
    BENCH,
    MEANINGS,
    PROFILE_LABELS,
    TRACES,
    Label,
    Row,
    label_in,
    run_of,
)

_UNSCHEDULED: Final = (names.Loop.CLOSED, names.Loop.AT_ONCE)
# Notes of rows whose batching is known, and of those to be confirmed.
_CONFIRMED_NOTES: Final = (names.BATCH_MEAN, names.BATCH_MAX)
_CLAIM_NOTES: Final = ("claim", "batch_is")
# The precisions of a model that is not quantized, as vLLM loads it.
_PRECISIONS: Final = ("BF16", "FP16", "FP32")
# The figures of an import without details are the tool's own, which it accepts within this share.
_TOOLS_OWN: Final = "window_is"
_TOOLS_TOLERANCE: Final = 0.001

# A note or a column, and the rule that it violates.
Finding = tuple[str, str]


def contradictions(row: Row) -> Iterator[tuple[str, str | None, str]]:
    """Yields the contradictions of a row whose fields are valid individually.

    Each with the column at which it is reported, the note in it that is wrong, None for the whole
    column, and the rule.
    """
    notes = row.notes
    for rules in _RULES:
        for name, rule in rules(row, notes):
            if hasattr(row, name) and name not in notes:
                yield name, None, rule
            else:
                yield "scenario_notes", notes.pair(name), rule


def load_contradictions(
    label: Label,
    arrivals: str | None,
    at_once: int | None,
    *,
    scheduled: bool = False,
    at_least: int = 2,
) -> Iterator[Finding]:
    """Yields what of a load cannot have earned a label, whatever the engine did.

    An engine decodes one sequence at a time under any load if requests queue in front of it.
    `at_once`: the limit of concurrent requests, None without one. `scheduled`: whether there was a
    rate. `at_least`: the requests at once that an offline run needs, where that is known: as many
    as the engine has slots, or all of them.
    """
    if label not in MEANINGS:
        return
    allowed, single = MEANINGS[label].arrivals, label is Label.SINGLE_STREAM
    if arrivals is not None and arrivals not in allowed:
        yield "arrivals", f"must be {' or '.join(allowed)} for {label}"
    if at_once is not None and (at_once == 1) is not single:
        yield "at_once", f"must be {'1' if single else 'above 1'} for {label}"
    elif label is Label.OFFLINE and at_once is not None and at_once < at_least:
        yield "at_once", f"must be at least {at_least} for {label}: so many this engine can batch"
    if scheduled and label is not Label.BATCHED_ONLINE:
        yield "rate_per_s", f"must be absent for {label}: there is no schedule"


def _lengths(row: Row, notes: RowNotes) -> Iterator[Finding]:
    for name in ("input_tokens", "output_tokens"):
        if notes[name] != str(value := getattr(row, name)):
            yield name, f"must equal the column {name}, {value}"


def _label(row: Row, notes: RowNotes) -> Iterator[Finding]:
    """Compares the label with batching, profile and batch, and the label or the one that is claimed
    with the load."""
    label, largest = row.measurement_type, notes.count(names.BATCH_MAX)
    if row.is_confirmed:
        meaning, single = MEANINGS[label], label is Label.SINGLE_STREAM
        if notes["batching"] != meaning.batching:
            yield "batching", f"must be {meaning.batching} for {label}"
        if (named := PROFILE_LABELS.get(notes.get("profile", ""), label)) is not label:
            yield "profile", f"must not be {notes['profile']} for {label}: it is {named}"
        if ((largest or row.batch) == 1) is not single:
            name = names.BATCH_MAX if largest else "batch"
            yield name, f"must be {'1' if single else 'above 1'} for {label}"
    elif (claim := notes.get("claim")) in set(MEANINGS):
        label = Label(claim)
    at_once, scheduled = notes.count("at_once"), "rate_per_s" in notes
    yield from load_contradictions(label, notes.arrivals, at_once, scheduled=scheduled)


def _absent(row: Row, notes: RowNotes) -> Iterator[Finding]:
    """Yields the notes that must not be there, by the label or by other notes."""
    arrivals, requests = notes.get("arrivals"), notes.count("requests")
    labelled, arrived = f" for {row.measurement_type}", f" with arrivals={arrivals}"
    rules = [
        (_CLAIM_NOTES, row.is_confirmed, labelled),
        (_CONFIRMED_NOTES, not row.is_confirmed, labelled),
        (("burstiness",), arrivals not in (None, Arrivals.GAMMA), arrived),
        (("rate_per_s",), notes.loop in _UNSCHEDULED, arrived),
        (names.REPLAYED, notes.arrivals != Arrivals.TRACE, arrived),
        (("acceptance_length",), notes.get("speculative") == "none", " with speculative=none"),
        (("served_as",), notes.get("served_as") == row.model_id, ": it equals model_id"),
    ]
    for at in PERCENTILES:
        early, least = (
            tuple(time_note(name, at, early=True) for name in TIMES),
            least_samples(at),
        )
        few = requests is not None and requests < least
        rules.append((early, few, f" with requests={requests}: at least {least} are needed"))
    for each, wrong, why in rules:
        yield from ((name, f"must be absent{why}") for name in each if wrong and name in notes)


def _batch(row: Row, notes: RowNotes) -> Iterator[Finding]:
    """Compares the column `batch` and the clients with the notes that limit them."""
    batch, mean, largest = row.batch, notes.rounded(names.BATCH_MEAN), notes.count(names.BATCH_MAX)
    arrivals, at_once, stated = notes.arrivals, notes.count("at_once"), notes.pair("arrivals")
    if arrivals == Arrivals.ONE_BY_ONE and at_once not in (None, 1):
        yield "at_once", f"must be 1 with {stated}"
    if arrivals == Arrivals.CLOSED_LOOP and at_once == 1:
        yield "at_once", f"must be above 1 with {stated}"
    if mean is not None and not max(1, round(mean.least)) <= batch <= max(1, round(mean.most)):
        yield "batch", f"must be {notes.pair(names.BATCH_MEAN)}, rounded, and at least 1"
    if mean is not None and largest is not None and largest < mean.least:
        yield names.BATCH_MAX, f"must be at least {notes.pair(names.BATCH_MEAN)}"
    if notes.get("batch_is") == "overlap":
        # By a schedule, an answer that was not streamed may count from before it was sent.
        limits = ("requests", "at_once")[: 1 + (notes.loop in _UNSCHEDULED)]
        for name in limits:
            if batch > (notes.count(name) or batch):
                yield "batch", f"must be at most {notes.pair(name)}"


def _length(row: Row, notes: RowNotes) -> Iterator[Finding]:
    """Compares the note `preliminary` with the length of the run.

    A length that was rounded to the minimum may have been on either side of it.
    """
    requests, window, name = notes.count("requests"), notes.rounded("window_s"), names.PRELIMINARY
    label = row.measurement_type
    if label not in MIN_QUERIES or requests is None or window is None:
        return
    missing = shortfalls(label, requests, window.most)
    if missing and name not in notes:
        yield name, f"the note {name}=yes is missing: {'; '.join(missing)}"
    if name in notes and not shortfalls(label, requests, window.least):
        enough = f"{requests} queries in {notes['window_s']} s are the minimum or more"
        yield name, f"must be absent: {enough}"


def _throughput(row: Row, notes: RowNotes) -> Iterator[Finding]:
    """Compares the throughput with the tokens, requests and window.

    The column `output_tokens` is the rounded mean per request: the sum is a whole number between
    requests * (mean - 1/2) and requests * (mean + 1/2), and the throughput is the sum over the
    window. Nothing else is tolerated but the rounding of the window and of the throughput.
    """
    requests, window, tokens = notes.count("requests"), notes.rounded("window_s"), row.output_tokens
    if requests is None or window is None or window.most == 0:
        return
    least = max(1, -(-requests * (2 * tokens - 1) // 2))
    most = requests * (2 * tokens + 1) // 2
    share = _TOOLS_TOLERANCE if _TOOLS_OWN in notes else 0.0
    lowest = least / window.most * (1 - share)
    highest = most / window.least * (1 + share) if window.least > 0 else math.inf
    found = THROUGHPUT.before_rounding(row.throughput_tokens_per_sec)
    if lowest > found.most or found.least > highest:
        yield (
            "throughput_tokens_per_sec",
            f"must be {lowest:.6g} to {highest:.6g}: {requests} requests with {tokens} generated "
            f"tokens each (rounded) in {notes['window_s']} s",
        )


def _percentiles(row: Row, notes: RowNotes) -> Iterator[Finding]:
    """Yields the percentiles that cannot be those of one run. `facts.labels.figures` defines them.

    All are rounded in the same way, which keeps their order. An upper bound with a confidence of
    99 % is never below the percentile of the sample. A row has the TTFT of streams, all of whose
    answers have one, before their end.
    """
    stated = [[note for at in PERCENTILES if (note := time_note(name, at)) in notes]
              for name in TIMES]  # fmt: skip
    for first, second in (pair for each in stated for pair in combinations(each, 2)):
        if notes.get("requests") == "1" and float(notes[second]) > float(notes[first]):
            yield second, f"must equal {notes.pair(first)}, since requests=1"
            break
    ordered = [pair for each in stated for pair in pairwise(each)]
    for at in PERCENTILES:
        ordered += [(time_note(name, at), time_note(name, at, early=True)) for name in TIMES]
        ordered.append((time_note("ttft", at), time_note("latency", at)))
    for lower, upper in ordered:
        if lower in notes and upper in notes and float(notes[upper]) < float(notes[lower]):
            yield upper, f"must be at least {notes.pair(lower)}"


def _times(row: Row, notes: RowNotes) -> Iterator[Finding]:
    """Compares times with the window, which contains each request from its arrival to its end.

    The decoding of a request, and so its TPOT, is a part of its latency. In a closed loop no more
    requests are in flight than clients: the sum of their latencies is at most the window of each.
    With n requests, the percentile p interpolates between two of their n values in ascending order,
    so at least `n - ceil((n - 1) p / 100)` of these values are as large as it or larger.
    """
    window, requests = notes.rounded("window_s"), notes.count("requests")
    loops = {Arrivals.ONE_BY_ONE.value: 1, Arrivals.CLOSED_LOOP.value: notes.count("at_once")}
    clients = loops.get(notes.arrivals or "")
    stated = ((name, at, time_note(name, at)) for name in TIMES for at in PERCENTILES)
    for name, at, note in stated:
        if window is None or (took_ms := notes.rounded(note)) is None:
            continue
        took_s = took_ms.least / 1000
        if took_s > window.most:
            yield note, f"must be at most {notes.pair('window_s')}"
        elif name == "latency" and clients is not None and requests is not None:
            as_long = requests - -(-(requests - 1) * at // 100)
            if as_long * took_s > clients * window.most:
                yield (
                    note,
                    f"is too long: {as_long} of {requests} requests took at least this, at most "
                    f"{clients} at once, in {notes['window_s']} s",
                )


def _engine(row: Row, notes: RowNotes) -> Iterator[Finding]:
    """Compares the notes about the engine's configuration with each other, and with the columns."""
    if notes.get("prefix_caching") == "off" and float(notes.get(names.PREFIX_HIT_RATIO, 0)) > 0:
        yield names.PREFIX_HIT_RATIO, "must be 0 with prefix_caching=off"
    drafts = notes.get("speculative", "").partition(":")[2]
    most = 1 + int(drafts) if drafts else math.inf  # one token, and the drafts
    if float(notes.get("acceptance_length", 0)) > most:
        yield "acceptance_length", f"must be at most {most} with {notes.pair('speculative')}"
    # An engine reports the method of a quantized model as its precision. A precision that the user
    # declared may have any name.
    method, precision = notes.get("quantization"), row.precision
    expected = _PRECISIONS if method == "none" else (str(method).upper(),)
    if method is not None and "precision" not in notes.given and precision not in expected:
        yield "quantization", f"must have the precision {' or '.join(expected)}, not {precision}"


def _accelerators(row: Row, notes: RowNotes) -> Iterator[Finding]:
    """Compares the number of accelerators with their name, and with the ranks.

    Each rank of an engine has an accelerator of its own. On CPUs the ranks share the machine, and
    `gpu_count` is 0. A number that the user declared is compared, too: it is as wrong.
    """
    gpu, count = row.gpu, row.gpu_count
    on_cpu = gpu == "CPU" or gpu.startswith("CPU ")
    if on_cpu and count:
        yield "gpu_count", f"must be 0: gpu is {gpu}"
    if not on_cpu and not count:
        rule = f"must be at least 1: gpu is {gpu}, without one it is CPU (<model of the processor>)"
        yield "gpu_count", rule
    parallel = [name for name in ("tensor_parallel", "pipeline_parallel") if name in notes]
    ranks = math.prod(int(notes[name]) for name in parallel)
    if count and ranks > count:
        rule = f"must be at most gpu_count, {count}: each rank has an accelerator of its own"
        yield parallel[0], f"times the other parallel ranks, {ranks}, {rule}"


def _run(row: Row, notes: RowNotes) -> Iterator[Finding]:
    """Compares what names the run with the label, and with the notes that each row of a run has."""
    tag, label = row.source_tag, row.measurement_type
    stated = label if row.is_confirmed else notes.get("claim")
    is_labelled = f"the row {'is labelled' if row.is_confirmed else 'claims'} {stated}"
    if (tagged := label_in(tag)) is not None and tagged != (stated or tagged):
        yield "source_tag", f"names a run of {tagged}, but {is_labelled}"
    scenario, tool = notes.get("scenario"), notes.get("tool")
    if row.is_confirmed and (tagged := label_in(scenario or "")) not in (None, label):
        yield "scenario", f"names a run of {tagged}, but {is_labelled}"
    # The tag of a traced scenario ends with its id.
    ends = re.sub(r"#[0-9]+\Z", "", tag).endswith(f"/{scenario}")
    if scenario is not None and tag.startswith(TRACES) and not ends:
        yield "source_tag", f"must end with the note scenario={scenario}"
    if tool is not None and (tool == "orch bench") != tag.startswith(BENCH):
        rule = f"contradicts the source tag {tag}: those of orch bench begin with {BENCH}"
        yield "tool", rule
    # Without them nothing could be compared with the figures of a run; a mean needs its maximum.
    needed = ["requests", "window_s"] if run_of(tag) is not None else []
    if row.is_confirmed and (needed or not notes.keys().isdisjoint(_CONFIRMED_NOTES)):
        needed += _CONFIRMED_NOTES
    if missing := [each for each in needed if each not in notes]:
        yield "", f"the notes {', '.join(missing)} are missing, which each row of a run has"


_RULES: Final = (
    *(_lengths, _batch, _label, _absent, _length, _percentiles, _times, _engine, _throughput),
    *(_accelerators, _run),
)
