"""What another tool measured, in this project's terms (`served`).

Pure. Knows no tool's file and no label's proof: a `MeasuredRun` is figures and a claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Final

from pydantic import ValidationError

from orch_sidecar.tools.facts.evidence.figures import CompletedRequest, Figures
from orch_sidecar.tools.facts.tables.row import Label


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a file, or a run within it, becomes no row: a field, its value, and the rule."""

    name: str
    value: str
    rule: str

    def __str__(self) -> str:
        return f"{self.name} {self.value!r}: {self.rule}"


class InvalidRun(ValueError):
    """Carries a refusal out of the reading of a file, to the one place that returns it."""

    def __init__(self, name: str, value: object, rule: str) -> None:
        self.refused = Rejection(name, str(value), rule)
        super().__init__(str(self.refused))


def first_rejection(error: ValidationError) -> Rejection:
    """The first thing that is wrong with a file's fields."""
    wrong = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(map(str, wrong["loc"])) or "file"
    if wrong["type"] == "missing":
        return Rejection(name, "", "is missing: this is no such file, or one of another version")
    value = wrong["input"]
    return Rejection(name, repr(value)[:60] if not isinstance(value, str) else value, wrong["msg"])


class Arrivals(StrEnum):
    """When requests came, as the note `arrivals` says it."""

    ONE_BY_ONE = "one_by_one"  # each when the one before had ended
    CLOSED_LOOP = "closed_loop"  # so many clients, each as above
    AT_ONCE = "at_once"
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"
    REPEATED_GAPS = "repeated_gaps"  # exponential gaps of which each comes several times
    TRACE = "trace"


# Loads that keep an engine as full as it gets: offline is about nothing else.
_UNPACED: Final = (Arrivals.AT_ONCE, Arrivals.CLOSED_LOOP)

# Which percentiles are noted: comparisons go by the first token's 50th and 95th, and MLPerf's
# SingleStream by the 90th latency.
LATENCIES: Final[Mapping[str, tuple[str, ...]]] = {
    "ttft": ("p50", "p95"),
    "tpot": ("p50", "p95"),
    "latency": ("p50", "p90", "p95"),
}


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run of a tool.

    `claim`: the label that the file says, which nothing here believes. `at_once`: the most
    requests that the tool lets be under way at once, None without a limit. `failed`: those
    without a whole answer. Tokens are those of all whole answers together. `window_s`: first
    arrival to last end, or `window_is` says what else. `latency_ms`: by the notes' names.
    `overlap`: the most answers that were being generated at once by the tool's own times, None
    where the file does not have them. `notes`: what else there is to say.
    """

    tool: str
    model: str
    claim: Label | None
    arrivals: Arrivals
    rate_per_s: float | None
    at_once: int | None
    requests: int
    failed: int
    input_tokens: int
    output_tokens: int
    window_s: float
    tokens_per_s: float
    latency_ms: Mapping[str, float]
    overlap: int | None
    notes: Mapping[str, str | int | float] = field(default_factory=dict)


def claim_of(said: object, arrivals: Arrivals, at_once: int | None) -> Label | None:
    """The label that a file claims. Raises InvalidRun for none of ours, or for one that the load of
    the same file contradicts."""
    if said is None:
        return None
    try:
        label = Label(str(said))
    except ValueError:
        rule = f"must be one of {', '.join(Label)}"
        raise InvalidRun("measurement_type", said, rule) from None
    load = contradiction(label, arrivals, at_once)
    if load is not None:
        raise InvalidRun("measurement_type", said, load)
    return label


def contradiction(label: Label, arrivals: Arrivals, at_once: int | None) -> str | None:
    """Why a load cannot have earned a label, whatever the engine did; None if it can.

    Where requests wait before the engine, it decodes one at a time of any load.
    """
    most = "no limit" if at_once is None else f"a limit of {at_once}"
    came = f"the load was {arrivals}, with {most} on requests under way at once"
    if label is Label.SINGLE_STREAM and arrivals is not Arrivals.ONE_BY_ONE:
        return f"is one request at a time, the next when the one before has ended; {came}"
    if label in (Label.BATCHED_ONLINE, Label.OFFLINE) and at_once == 1:
        return f"is several requests at a time; {came}"
    if label is Label.OFFLINE and arrivals not in _UNPACED:
        return f"is everything at once, or as much as is allowed; {came}"
    return None


def latency_notes(figures: Figures) -> dict[str, float]:
    """The notes that figures have, in ms."""
    spreads = {"ttft": figures.ttft_s, "tpot": figures.tpot_s, "latency": figures.latency_s}
    return {
        f"{name}_{at}_ms": 1000 * getattr(spread, at)
        for name, spread in spreads.items()
        if spread is not None
        for at in LATENCIES[name]
    }


def overlap(served: Sequence[CompletedRequest]) -> int:
    """The most answers between their first token and their end at once, 0 of none.

    An answer whose first token nobody saw counts from its arrival. One that ends when another
    begins does not overlap it.
    """
    began = (
        (each.arrived_s if each.first_token_s is None else each.first_token_s, 1) for each in served
    )
    ended = ((each.ended_s, -1) for each in served)
    # Of an answer of one token the end is the first token.
    under_way, most = 0, min(1, len(served))
    # At the same instant ends come first: -1 before 1.
    for _, change in sorted(chain(began, ended)):
        under_way += change
        most = max(most, under_way)
    return most
