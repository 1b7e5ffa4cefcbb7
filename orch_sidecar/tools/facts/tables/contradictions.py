"""The fields and notes of a row that must agree: what a row contradicts by itself.

Pure. The engine's work is judged before a row is made (`facts.labels`), by the same rules about
the load; a row must not state anything else than what was judged. Each rule yields what breaks it,
a note or a column, and what that must be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final

from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.forms import (
    MEAN,
    TIME_MS,
    TOKENS_PER_S,
    WINDOW_S,
    Rounded,
    before_rounding,
)
from orch_sidecar.tools.facts.tables.notes import BATCH_MAX, BATCH_MEAN, Arrivals, arrivals_of
from orch_sidecar.tools.facts.tables.publication import MIN_QUERIES, least_samples, shortfalls
from orch_sidecar.tools.facts.tables.row import (
    BATCHING,
    BENCH,
    PERCENTILES,
    TIMES,
    TRACES,
    Label,
    early_note,
    label_in,
    parse_notes,
    run_of,
    time_note,
)

# Requests arrive by a schedule in all others.
_UNSCHEDULED: Final = (Arrivals.ONE_BY_ONE, Arrivals.CLOSED_LOOP, Arrivals.AT_ONCE)
_ARRIVALS: Final[Mapping[Label, tuple[Arrivals, ...]]] = {
    Label.SINGLE_STREAM: (Arrivals.ONE_BY_ONE,),
    Label.BATCHED_ONLINE: tuple(each for each in Arrivals if each is not Arrivals.ONE_BY_ONE),
    Label.OFFLINE: (Arrivals.AT_ONCE, Arrivals.CLOSED_LOOP),
}
# The profiles that this project ships; others may have any label.
PROFILE_LABELS: Final = {
    "home": Label.SINGLE_STREAM,
    "cloud": Label.BATCHED_ONLINE,
    "offline": Label.OFFLINE,
}
# Notes of rows whose batching is known, and of those to be confirmed.
_CONFIRMED_NOTES: Final = (BATCH_MEAN, BATCH_MAX)
_CLAIM_NOTES: Final = ("claim", "batch_is")
# The precisions of a model that is not quantized, as vLLM loads it.
_PRECISIONS: Final = ("BF16", "FP16", "FP32")
# The figures of an import without details are the tool's own, which it accepts within this share.
_TOOLS_OWN: Final = "window_is"
_TOOLS_TOLERANCE: Final = 0.001

# A note or a column, and the rule that it violates.
Finding = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Stated:
    """A row whose fields are valid individually: its columns, its label, its notes."""

    columns: Mapping[str, str]
    label: Label
    notes: Mapping[str, str]

    def noted(self, name: str) -> str:
        return f"{name}={self.notes[name]}" if name in self.notes else ""

    def count(self, name: str) -> int | None:
        return int(self.notes[name]) if name in self.notes else None

    @property
    def window(self) -> Rounded | None:
        stated = self.notes.get("window_s")
        return None if stated is None else before_rounding(stated, WINDOW_S)

    @property
    def clients(self) -> int | None:
        """The clients of a closed loop, None where their number is unknown."""
        arrivals = self.notes.get("arrivals")
        if arrivals == Arrivals.ONE_BY_ONE:
            return 1
        return self.count("at_once") if arrivals == Arrivals.CLOSED_LOOP else None


def contradictions(columns: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yields the contradictions of a row whose fields are valid individually.

    Each with the column at which it is reported, what that column or a note in it states, and the
    rule.
    """
    notes = parse_notes(columns["scenario_notes"])
    row = _Stated(columns, Label(columns["measurement_type"]), notes)
    for rules in _RULES:
        for name, rule in rules(row):
            if name in columns and name not in notes:
                yield name, columns[name], rule
            else:
                yield "scenario_notes", row.noted(name), rule


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
    allowed, single = _ARRIVALS[label], label is Label.SINGLE_STREAM
    if arrivals is not None and arrivals not in allowed:
        yield "arrivals", f"must be {' or '.join(allowed)}"
    if at_once is not None and (at_once == 1) is not single:
        yield "at_once", f"must be {'1' if single else 'above 1'}"
    elif label is Label.OFFLINE and at_once is not None and at_once < at_least:
        yield "at_once", f"must be at least {at_least}, which this engine can batch,"
    if scheduled and label is not Label.BATCHED_ONLINE:
        yield "rate_per_s", "must be absent, as there is no schedule,"


def load_contradiction(
    label: Label, arrivals: Arrivals, at_once: int | None, *, at_least: int = 2
) -> str | None:
    """Returns why a load cannot have earned a label, in words; None if it can."""
    stated = {"arrivals": arrivals, "at_once": at_once}
    if label not in _ARRIVALS:
        return None
    found = load_contradictions(label, arrivals, at_once, at_least=at_least)
    texts = [f"{name}={stated[name]} {rule.rstrip(',')}" for name, rule in found]
    return f"{label} needs another load: {'; '.join(texts)}" if texts else None


def _lengths(row: _Stated) -> Iterator[Finding]:
    for name in ("input_tokens", "output_tokens"):
        if row.notes[name] != row.columns[name]:
            yield name, f"must equal the column {name}, {row.columns[name]}"


def _label(row: _Stated) -> Iterator[Finding]:
    """Compares the label, or the one that is claimed, with batching, profile and load."""
    label, notes, stated = row.label, row.notes, f"in a row labelled {row.label}"
    known = label is not Label.TO_BE_CONFIRMED
    if notes["batching"] not in BATCHING[label]:
        yield "batching", f"must be {' or '.join(BATCHING[label])} {stated}"
    for name in _CLAIM_NOTES if known else _CONFIRMED_NOTES:
        if name in notes:
            yield name, f"must be absent {stated}"
    named = PROFILE_LABELS.get(notes.get("profile", ""), label)
    if known and named is not label:
        yield "profile", f"must not be {notes['profile']} {stated}: it is {named}"
    claim = notes.get("claim", "none")
    if not known and claim in _ARRIVALS:
        label, stated = Label(claim), f"in a row that claims {claim}"
    if label in _ARRIVALS:
        load = arrivals_of(notes), row.count("at_once")
        for name, rule in load_contradictions(label, *load, scheduled="rate_per_s" in notes):
            yield name, f"{rule} {stated}"


def _arrivals(row: _Stated) -> Iterator[Finding]:
    notes, arrivals = row.notes, row.notes.get("arrivals")
    stated = f"with arrivals={arrivals}"
    absent = {
        "burstiness": arrivals not in (None, Arrivals.GAMMA),
        "rate_per_s": arrivals in _UNSCHEDULED,
        **dict.fromkeys(names.REPLAYED, arrivals_of(notes) != Arrivals.TRACE),
    }
    for name, wrong in absent.items():
        if wrong and name in notes:
            yield name, f"must be absent {stated}"
    alone = row.count("at_once") == 1
    if arrivals == Arrivals.ONE_BY_ONE and "at_once" in notes and not alone:
        yield "at_once", f"must be 1 {stated}"
    if arrivals == Arrivals.CLOSED_LOOP and alone:
        yield "at_once", f"must be above 1 {stated}"


def _batch(row: _Stated) -> Iterator[Finding]:
    """Compares the column `batch` with the label and with the notes of mean and maximum."""
    batch, largest, mean = (
        int(row.columns["batch"]),
        row.count(BATCH_MAX),
        row.notes.get(BATCH_MEAN),
    )
    stated = f"in a row labelled {row.label}"
    if row.label is Label.SINGLE_STREAM:
        values = {"batch": batch, BATCH_MEAN: float(mean or 1), BATCH_MAX: largest or 1}
        yield from ((name, f"must be 1 {stated}") for name, value in values.items() if value != 1)
    elif row.label is not Label.TO_BE_CONFIRMED and (batch if largest is None else largest) < 2:
        yield "batch" if largest is None else BATCH_MAX, f"must be above 1 {stated}"
    if mean is not None and largest is not None:
        found = before_rounding(mean, MEAN)
        if not max(1, round(found.least)) <= batch <= max(1, round(found.most)):
            yield "batch", f"must be {BATCH_MEAN}={mean}, rounded, and at least 1"
        if largest < found.least:
            yield BATCH_MAX, f"must be at least {BATCH_MEAN}={mean}"
    elif mean is not None or largest is not None:
        there, missing = (BATCH_MEAN, BATCH_MAX) if largest is None else (BATCH_MAX, BATCH_MEAN)
        yield there, f"must have the note {missing} beside it"
    if row.notes.get("batch_is") == "overlap":
        # By a schedule, an answer that was not streamed may count from before it was sent.
        limits = ("requests", "at_once")[: 1 + (row.notes.get("arrivals") in _UNSCHEDULED)]
        for name in limits:
            if batch > (row.count(name) or batch):
                yield "batch", f"must be at most {row.noted(name)}"


def _length(row: _Stated) -> Iterator[Finding]:
    """Compares the note `preliminary` with the length of the run.

    A length that was rounded to the minimum may have been on either side of it.
    """
    requests, window, name = row.count("requests"), row.window, names.PRELIMINARY
    if row.label not in MIN_QUERIES or requests is None or window is None:
        return
    missing = shortfalls(row.label, requests, window.most)
    if missing and name not in row.notes:
        yield name, f"the note {name}=yes is missing: {'; '.join(missing)}"
    if name in row.notes and not shortfalls(row.label, requests, window.least):
        enough = f"{requests} queries in {row.notes['window_s']} s are the minimum or more"
        yield name, f"must be absent: {enough}"


def _throughput(row: _Stated) -> Iterator[Finding]:
    """Compares the throughput with the tokens, requests and window.

    The column `output_tokens` is the rounded mean per request: the sum is a whole number between
    requests * (mean - 1/2) and requests * (mean + 1/2), and the throughput is the sum over the
    window. Nothing else is tolerated but the rounding of the window and of the throughput.
    """
    requests, window, tokens = row.count("requests"), row.window, int(row.columns["output_tokens"])
    if requests is None or window is None or window.most == 0:
        return
    least = max(1, -(-requests * (2 * tokens - 1) // 2))
    most = requests * (2 * tokens + 1) // 2
    share = _TOOLS_TOLERANCE if _TOOLS_OWN in row.notes else 0.0
    lowest = least / window.most * (1 - share)
    highest = most / window.least * (1 + share) if window.least > 0 else math.inf
    found = before_rounding(row.columns["throughput_tokens_per_sec"], TOKENS_PER_S)
    if lowest > found.most or found.least > highest:
        yield (
            "throughput_tokens_per_sec",
            f"must be {lowest:.6g} to {highest:.6g}: {requests} requests with {tokens} generated "
            f"tokens each (rounded) in {row.notes['window_s']} s",
        )


def _percentiles(row: _Stated) -> Iterator[Finding]:
    """Yields the percentiles that cannot be those of one run. `facts.labels.figures` defines them.

    All are rounded in the same way, which keeps their order.
    """
    notes, requests = row.notes, row.count("requests")
    stated = [[note for at in PERCENTILES if (note := time_note(name, at)) in notes]
              for name in TIMES]  # fmt: skip
    early = [
        (time_note(name, at), early_note(name, at), at) for name in TIMES for at in PERCENTILES
    ]
    for _, note, at in early:
        if note in notes and requests is not None and requests < least_samples(at):
            least = f"at least {least_samples(at)} are needed"
            yield note, f"must be absent with requests={requests}: {least}"
    for first, second in (pair for each in stated for pair in combinations(each, 2)):
        if requests == 1 and float(notes[second]) > float(notes[first]):
            yield second, f"must equal {row.noted(first)}, since requests=1"
            break
    # An upper bound with a confidence of 99 % is never below the percentile of the sample. A row
    # has the TTFT of streams, all of whose answers have one, before their end.
    ordered = [*(pair for each in stated for pair in pairwise(each)), *(each[:2] for each in early)]
    ordered += [(time_note("ttft", at), time_note("latency", at)) for at in PERCENTILES]
    for lower, upper in ordered:
        if lower in notes and upper in notes and float(notes[upper]) < float(notes[lower]):
            yield upper, f"must be at least {row.noted(lower)}"


def _times(row: _Stated) -> Iterator[Finding]:
    """Compares times with the window, which contains each request from its arrival to its end.

    The decoding of a request, and so its TPOT, is a part of its latency. In a closed loop no more
    requests are in flight than clients: the sum of their latencies is at most the window of each.
    With n requests, the percentile p interpolates between two of their n values in ascending order,
    so at least `n - ceil((n - 1) p / 100)` of these values are as large as it or larger.
    """
    window, clients, requests = row.window, row.clients, row.count("requests")
    stated = ((name, at, time_note(name, at)) for name in TIMES for at in PERCENTILES)
    for name, at, note in stated:
        if window is None or note not in row.notes:
            continue
        took_s = before_rounding(row.notes[note], TIME_MS).least / 1000
        if took_s > window.most:
            yield note, f"must be at most window_s={row.notes['window_s']}"
        elif name == "latency" and clients is not None and requests is not None:
            as_long = requests - -(-(requests - 1) * at // 100)
            if as_long * took_s > clients * window.most:
                yield (
                    note,
                    f"is too long: {as_long} of {requests} requests took at least this, at most "
                    f"{clients} at once, in {row.notes['window_s']} s",
                )


def _engine(row: _Stated) -> Iterator[Finding]:
    """Compares the notes about the engine's configuration with each other, and with the columns."""
    notes, accepted = row.notes, float(row.notes.get("acceptance_length", 0))
    if notes.get("prefix_caching") == "off" and float(notes.get(names.PREFIX_HIT_RATIO, 0)) > 0:
        yield names.PREFIX_HIT_RATIO, "must be 0 with prefix_caching=off"
    speculative, _, drafts = notes.get("speculative", "").partition(":")
    if accepted and speculative == "none":
        yield "acceptance_length", "must be absent with speculative=none"
    if drafts and accepted > 1 + int(drafts):  # one token, and the drafts
        yield (
            "acceptance_length",
            f"must be at most {1 + int(drafts)} with {row.noted('speculative')}",
        )
    if notes.get("served_as") == row.columns["model_id"]:
        yield "served_as", "must be absent: it equals model_id"
    # An engine reports the method of a quantized model as its precision. A precision that the user
    # declared may have any name.
    method, precision = notes.get("quantization"), row.columns["precision"]
    expected = _PRECISIONS if method == "none" else (str(method).upper(),)
    given = "precision" in notes.get(names.GIVEN, "").split(",")
    if method is not None and not given and precision not in expected:
        yield "quantization", f"must have the precision {' or '.join(expected)}, not {precision}"


def _accelerators(row: _Stated) -> Iterator[Finding]:
    """Compares the number of accelerators with their name, and with the ranks.

    Each rank of an engine has an accelerator of its own. On CPUs the ranks share the machine, and
    `gpu_count` is 0. A number that the user declared is compared, too: it is as wrong.
    """
    gpu, count = row.columns["gpu"], int(row.columns["gpu_count"])
    on_cpu = gpu == "CPU" or gpu.startswith("CPU ")
    if on_cpu and count:
        yield "gpu_count", f"must be 0: gpu is {gpu}"
    if not on_cpu and not count:
        rule = f"must be at least 1: gpu is {gpu}, without one it is CPU (<model of the processor>)"
        yield "gpu_count", rule
    parallel = [name for name in ("tensor_parallel", "pipeline_parallel") if name in row.notes]
    ranks = math.prod(int(row.notes[name]) for name in parallel)
    if count and ranks > count:
        rule = f"must be at most gpu_count, {count}: each rank has an accelerator of its own"
        yield parallel[0], f"times the other parallel ranks, {ranks}, {rule}"


def _run(row: _Stated) -> Iterator[Finding]:
    """Compares what names the run with the label, and with the notes that each row of a run has."""
    tag, notes, label = row.columns["source_tag"], row.notes, row.label
    known = label is not Label.TO_BE_CONFIRMED
    stated = label if known else notes.get("claim")
    is_labelled = f"the row {'is labelled' if known else 'claims'} {stated}"
    if (tagged := label_in(tag)) is not None and tagged != (stated or tagged):
        yield "source_tag", f"names a run of {tagged}, but {is_labelled}"
    scenario, tool = notes.get("scenario"), notes.get("tool")
    if known and (tagged := label_in(scenario or "")) not in (None, label):
        yield "scenario", f"names a run of {tagged}, but {is_labelled}"
    # The tag of a traced scenario ends with its id.
    ends = re.sub(r"#[0-9]+\Z", "", tag).endswith(f"/{scenario}")
    if scenario is not None and tag.startswith(TRACES) and not ends:
        yield "source_tag", f"must end with the note scenario={scenario}"
    if tool is not None and (tool == "orch bench") != tag.startswith(BENCH):
        rule = f"contradicts the source tag {tag}: those of orch bench begin with {BENCH}"
        yield "tool", rule
    needed = ("requests", "window_s", *(_CONFIRMED_NOTES if known else ()))
    if run_of(tag) is not None and (missing := [each for each in needed if each not in notes]):
        # Without them nothing could be compared with its figures.
        yield "", f"the notes {', '.join(missing)} are missing, which each row of a run has"


_RULES: Final = (
    *(_lengths, _batch, _arrivals, _label, _length, _percentiles, _times, _engine, _throughput),
    *(_accelerators, _run),
)
