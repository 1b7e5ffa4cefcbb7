"""The fields and notes of a row that must agree: what a row contradicts by itself.

Pure. The engine's work is judged before a row is made (`facts.labels`), by the same rules about
the load; a row must not state anything else than what was judged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import PERCENTILES, TIMES, Arrivals, RowNotes, time_note
from orch_sidecar.tools.facts.tables.publication import MIN_QUERIES, least_samples, shortfalls
from orch_sidecar.tools.facts.tables.row import (
    BENCH,
    COLUMNS,
    MEANINGS,
    PROFILE_LABELS,
    TRACES,
    Label,
    Row,
    label_in,
    run_of,
)

_UNSCHEDULED: Final = (names.Loop.CLOSED, names.Loop.AT_ONCE)
# Notes of rows whose batching is known.
_CONFIRMED_NOTES: Final = (names.BATCH_MEAN, names.BATCH_MAX)
# The precisions of a model that is not quantized, as vLLM loads it.
_PRECISIONS: Final = ("BF16", "FP16", "FP32")
# The figures of an import without details are the tool's own, which it accepts within this share.
_TOOLS_TOLERANCE: Final = 0.001

# A note or a column, whether it violates a rule, and the rule.
Rule = tuple[str, object, str]


def contradictions(row: Row) -> Iterator[tuple[str, str | None, str]]:
    """Yields the contradictions of a row whose fields are valid individually.

    Each with the column at which it is reported, the note in it that is wrong, None for the whole
    column, and the rule. Rules for a note do not apply without it; those without a name are about
    notes that are missing.
    """
    notes = row.notes
    for name, violated, rule in (each for rules in _RULES for each in rules(row, notes)):
        if violated and name in {"", *notes}:
            yield "scenario_notes", notes.pair(name), rule
        elif violated and name in COLUMNS:
            yield name, None, rule


def load_rules(
    label: Label, arrivals: str | None, at_once: int | None, at_least: int = 2
) -> Iterator[Rule]:
    """Yields what a load must be to earn a label, whatever the engine did.

    An engine decodes one sequence at a time under any load if requests queue in front of it.
    `at_once`: the limit of concurrent requests, None without one. `at_least`: the requests at once
    that an offline run needs, where that is known: as many as the engine has slots, or all of them.
    """
    if label not in MEANINGS:
        return
    allowed, why = MEANINGS[label].arrivals, f"for {label}"
    yield "arrivals", arrivals not in allowed, f"must be {' or '.join(allowed)} {why}"
    yield _alone("at_once", at_once, label is Label.SINGLE_STREAM, why)
    few = label is Label.OFFLINE and 1 < (at_once or 1) < at_least
    yield "at_once", few, f"must be at least {at_least} {why}: so many this engine can batch"


def _alone(name: str, found: int | None, alone: bool, why: str) -> Rule:
    """Returns the rule that a number is 1, or that it is not."""
    violated = found is not None and (found == 1) is not alone
    return name, violated, f"must be {'1' if alone else 'above 1'} {why}"


def _label(row: Row, notes: RowNotes) -> Iterator[Rule]:
    """Compares the label with batching, profile and batch, and the label or the one that is claimed
    with the load."""
    claims = ("none", *Label)
    yield "claim", notes.get("claim") not in claims, f"must be one of {', '.join(claims)}"
    if (label := row.stated_label) is None:
        return
    yield from load_rules(label, notes.arrivals, notes.count("at_once"))
    scheduled = label is Label.BATCHED_ONLINE
    yield "rate_per_s", not scheduled, f"must be absent for {label}: there is no schedule"
    if row.is_confirmed:
        batching, largest = MEANINGS[label].batching, notes.count(names.BATCH_MAX)
        yield "batching", notes["batching"] != batching, f"must be {batching} for {label}"
        named = PROFILE_LABELS.get(profile := notes.get("profile", ""), label)
        yield "profile", named is not label, f"must not be {profile} for {label}: it is {named}"
        name, alone = names.BATCH_MAX if largest else "batch", label is Label.SINGLE_STREAM
        yield _alone(name, largest or row.batch, alone, f"for {label}")


def _absent(row: Row, notes: RowNotes) -> Iterator[Rule]:
    """Yields the notes that must not be there, by the label or by other notes."""
    arrivals, served_as = notes.get("arrivals"), notes.get("served_as")
    labelled, arrived = f" for {row.measurement_type}", f" with arrivals={arrivals}"
    rules = (
        (("claim", "batch_is"), row.is_confirmed, labelled),
        (_CONFIRMED_NOTES, not row.is_confirmed, labelled),
        (("burstiness",), arrivals not in (None, Arrivals.GAMMA), arrived),
        (("rate_per_s",), notes.loop in _UNSCHEDULED, arrived),
        (names.REPLAYED, notes.arrivals != Arrivals.TRACE, arrived),
        (("acceptance_length",), notes.get("speculative") == "none", " with speculative=none"),
        (("served_as",), served_as == row.model_id, ": it equals model_id"),
    )
    for each, wrong, why in rules:
        yield from ((name, wrong, f"must be absent{why}") for name in each)


def _batch(row: Row, notes: RowNotes) -> Iterator[Rule]:
    """Compares the column `batch` and the clients with the notes that limit them."""
    batch, mean, largest = row.batch, notes.rounded(names.BATCH_MEAN), notes.count(names.BATCH_MAX)
    if notes.loop is names.Loop.CLOSED:
        alone, why = notes.arrivals is Arrivals.ONE_BY_ONE, f"with {notes.pair('arrivals')}"
        yield _alone("at_once", notes.count("at_once"), alone, why)
    if mean is not None:
        noted = notes.pair(names.BATCH_MEAN)
        rounded = max(1, round(mean.least)) <= batch <= max(1, round(mean.most))
        yield "batch", not rounded, f"must be {noted}, rounded, and at least 1"
        yield names.BATCH_MAX, (largest or mean.most) < mean.least, f"must be at least {noted}"
    if notes.get("batch_is") == "overlap":
        # By a schedule, an answer that was not streamed may count from before it was sent.
        for name in ("requests", "at_once")[: 1 + (notes.loop in _UNSCHEDULED)]:
            most = notes.count(name) or batch
            yield "batch", batch > most, f"must be at most {notes.pair(name)}"


def _window(row: Row, notes: RowNotes) -> Iterator[Rule]:
    """Compares what the run lacks for publication, and the throughput, with requests and window.

    A length that was rounded to the minimum may have been on either side of it.

    The column `output_tokens` is the rounded mean per request: the sum is a whole number between
    requests * (mean - 1/2) and requests * (mean + 1/2), and the throughput is the sum over the
    window. Nothing else is tolerated but the rounding of the window and of the throughput.
    """
    requests, window = notes.count("requests"), notes.rounded("window_s")
    if requests is None or window is None:
        return
    if (label := row.measurement_type) in MIN_QUERIES:
        name, missing = names.PRELIMINARY, shortfalls(label, requests, window.most)
        absent = f"the note {name}=yes is missing: {'; '.join(missing)}"
        yield "", missing and name not in notes, absent
        enough = f"{requests} queries in {notes['window_s']} s are the minimum or more"
        unneeded = not shortfalls(label, requests, window.least)
        yield name, unneeded, f"must be absent: {enough}"
    if window.most > 0:
        tokens, share = row.output_tokens, _TOOLS_TOLERANCE if "window_is" in notes else 0.0
        least = max(1, -(-requests * (2 * tokens - 1) // 2))
        most = requests * (2 * tokens + 1) // 2
        lowest = least / window.most * (1 - share)
        highest = most / window.least * (1 + share) if window.least > 0 else math.inf
        found = names.THROUGHPUT.before_rounding(row.throughput_tokens_per_sec)
        yield (
            "throughput_tokens_per_sec",
            lowest > found.most or found.least > highest,
            f"must be {lowest:.6g} to {highest:.6g}: {requests} requests with {tokens} generated "
            f"tokens each (rounded) in {notes['window_s']} s",
        )


def _times(row: Row, notes: RowNotes) -> Iterator[Rule]:
    """Compares times with each other, and with the window, which contains each request from its
    arrival to its end. `facts.labels.figures` defines the percentiles.

    All are rounded in the same way, which keeps their order. An upper bound with a confidence of
    99 % is never below the percentile of the sample. A row has the TTFT of streams, all of whose
    answers have one, before their end.

    The decoding of a request, and so its TPOT, is a part of its latency. In a closed loop no more
    requests are in flight than clients: the sum of their latencies is at most the window of each.
    With n requests, the percentile p interpolates between two of their n values in ascending order,
    so at least `n - ceil((n - 1) p / 100)` of these values are as large as it or larger.
    """
    window, requests = notes.rounded("window_s"), notes.count("requests")
    clients = 1 if notes.arrivals is Arrivals.ONE_BY_ONE else notes.count("at_once")
    ordered = [(time_note("ttft", at), time_note("latency", at), "") for at in PERCENTILES]
    for name in TIMES:
        stated = [note for at in PERCENTILES if (note := time_note(name, at)) in notes]
        ordered += [(lower, upper, "") for lower, upper in pairwise(stated)]
        if requests == 1 and stated:
            ordered.append((stated[-1], stated[0], ": percentiles of one request are equal"))
        for at in PERCENTILES:
            note, early = time_note(name, at), time_note(name, at, early=True)
            least, took = least_samples(at), notes.rounded(note)
            why = f"with requests={requests}: at least {least} are needed"
            yield early, (requests or least) < least, f"must be absent {why}"
            ordered.append((note, early, ""))
            if window is None or took is None:
                continue
            longer = took.least / 1000 > window.most
            yield note, longer, f"must be at most {notes.pair('window_s')}"
            closed = name == "latency" and notes.loop is names.Loop.CLOSED and not longer
            if closed and clients and requests:
                as_long = requests - -(-(requests - 1) * at // 100)
                too_long = as_long * took.least / 1000 > clients * window.most
                answers = f"{as_long} of {requests} requests took at least this"
                why = f"{answers}, at most {clients} at once, in {notes['window_s']} s"
                yield note, too_long, f"is too long: {why}"
    for lower, upper, why in ordered:
        if lower in notes and upper in notes:
            less = float(notes[upper]) < float(notes[lower])
            yield upper, less, f"must be at least {notes.pair(lower)}{why}"


def _engine(row: Row, notes: RowNotes) -> Iterator[Rule]:
    """Compares the notes about the engine's configuration with each other, and with the columns.

    Each rank of an engine has an accelerator of its own. On CPUs the ranks share the machine, and
    `gpu_count` is 0. A number that the user declared is compared, too: it is as wrong.
    """
    for name in ("input_tokens", "output_tokens"):
        value = str(getattr(row, name))
        yield name, notes[name] != value, f"must equal the column {name}, {value}"
    hits = notes.get("prefix_caching") == "off" and notes.number(names.PREFIX_HIT_RATIO)
    yield names.PREFIX_HIT_RATIO, hits, "must be 0 with prefix_caching=off"
    given = notes.given
    wrong = len({*given} & {*COLUMNS}) < len(given)
    yield names.GIVEN, wrong, "must be names of columns, each once, separated by commas: engine,gpu"
    drafts = notes.get("speculative", "").partition(":")[2]
    most = 1 + int(drafts) if drafts else math.inf  # one token, and the drafts
    more = (notes.number("acceptance_length") or 0) > most
    yield "acceptance_length", more, f"must be at most {most} with {notes.pair('speculative')}"
    # An engine reports the method of a quantized model as its precision. A precision that the user
    # declared may have any name.
    method, precision, gpu, count = notes.get("quantization"), row.precision, row.gpu, row.gpu_count
    expected = _PRECISIONS if method == "none" else (str(method).upper(),)
    other = "precision" not in given and precision not in expected
    yield "quantization", other, f"must have the precision {' or '.join(expected)}, not {precision}"
    on_cpu = gpu == "CPU" or gpu.startswith("CPU ")
    yield "gpu_count", on_cpu and count, f"must be 0: gpu is {gpu}"
    rule = f"must be at least 1: gpu is {gpu}, without one it is CPU (<model of the processor>)"
    yield "gpu_count", not on_cpu and not count, rule
    parallel = [name for name in ("tensor_parallel", "pipeline_parallel") if name in notes]
    ranks = math.prod(int(notes[name]) for name in parallel)
    if count and ranks > count:
        rule = f"must be at most gpu_count, {count}: each rank has an accelerator of its own"
        yield parallel[0], True, f"times the other parallel ranks, {ranks}, {rule}"


def _run(row: Row, notes: RowNotes) -> Iterator[Rule]:
    """Compares what names the run with the label, and with the notes that each row of a run has."""
    tag, label, scenario = row.source_tag, row.measurement_type, notes.get("scenario", "")
    stated = label if row.is_confirmed else notes.get("claim")
    is_labelled = f"the row {'is labelled' if row.is_confirmed else 'claims'} {stated}"
    tagged, traced = label_in(tag), label_in(scenario)
    wrong = tagged not in (None, stated or tagged)
    yield "source_tag", wrong, f"names a run of {tagged}, but {is_labelled}"
    wrong = row.is_confirmed and traced not in (None, label)
    yield "scenario", wrong, f"names a run of {traced}, but {is_labelled}"
    # The tag of a traced scenario ends with its id.
    ends = re.sub(r"#[0-9]+\Z", "", tag).endswith(f"/{scenario}")
    wrong = "scenario" in notes and tag.startswith(TRACES) and not ends
    yield "source_tag", wrong, f"must end with the note scenario={scenario}"
    wrong = (notes.get("tool") == "orch bench") != tag.startswith(BENCH)
    rule = f"contradicts the source tag {tag}: those of orch bench begin with {BENCH}"
    yield "tool", wrong, rule
    # Without them nothing could be compared with the figures of a run; a mean needs its maximum.
    needed = ["requests", "window_s"] if run_of(tag) is not None else []
    if row.is_confirmed and (needed or not notes.keys().isdisjoint(_CONFIRMED_NOTES)):
        needed += _CONFIRMED_NOTES
    missing = [each for each in needed if each not in notes]
    yield "", missing, f"the notes {', '.join(missing)} are missing, which each row of a run has"


_RULES: Final = (_batch, _label, _absent, _window, _times, _engine, _run)
