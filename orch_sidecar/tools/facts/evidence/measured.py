"""The run of another tool, in the terms of `figures`: what it measured, and which label it claims.

Pure. Knows no file format, and not whether the label was earned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pydantic import ValidationError

from orch_sidecar.tools.facts.labels.documents import first_problem
from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.facts.tables.agreement.load import load_contradiction
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a file, or a run in it, becomes no row: a field, its value, and the rule."""

    name: str
    value: str
    rule: str

    def __str__(self) -> str:
        return f"{self.name} {self.value!r}: {self.rule}"


class InvalidRun(ValueError):
    """Raised while a file is parsed; carries the rejection to the one place that returns it."""

    def __init__(self, name: str, value: object, rule: str) -> None:
        self.rejection = Rejection(name, str(value), rule)
        super().__init__(str(self.rejection))


def read_run(read: Callable[[], _Found]) -> _Found | Rejection:
    """Returns what is read of a file, or the rejection that reading it raises."""
    try:
        return read()
    except ValidationError as error:
        return _first_rejection(error)
    except InvalidRun as error:
        return error.rejection


def _first_rejection(error: ValidationError) -> Rejection:
    wrong = first_problem(error)
    name = wrong.place or "file"
    if wrong.missing:
        return Rejection(name, "", "is missing: the file has another format or version")
    value = wrong.value if isinstance(wrong.value, str) else repr(wrong.value)[:60]
    return Rejection(name, value, wrong.rule)


# The note of a run with speculative decoding: tokens per sequence and step.
ACCEPTANCE_LENGTH: Final = "acceptance_length"


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run of a tool.

    `claim`: the label in the file, which is not trusted. `at_once`: the tool's limit of concurrent
    requests, None without one. `failed`: requests without a complete answer. Token counts are sums
    over the complete answers. `window_s`: first arrival to last end, unless the note `window_is`
    states otherwise. `latency_ms`: by the names of the notes. `served`: its answers by the tool's
    own times, none where the file does not contain them. `notes`: further notes.

    `began_at_s`, `ended_at_s`: first arrival and last end as Unix times. `local_end_s`: the end by
    a clock of an unknown time zone, as if it were UTC's. None where the file does not have them.
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
    served: Sequence[CompletedRequest] = ()
    notes: Mapping[str, str | int | float] = field(default_factory=dict)
    began_at_s: float | None = None
    ended_at_s: float | None = None
    local_end_s: float | None = None


def parse_claim(claim: object, arrivals: Arrivals, at_once: int | None) -> Label | None:
    """Parses the label that a file claims.

    Raises InvalidRun for an unknown label, and for one that the load in the file contradicts.
    """
    if claim is None:
        return None
    try:
        label = Label(str(claim))
    except ValueError:
        rule = f"must be one of {', '.join(Label)}"
        raise InvalidRun("measurement_type", claim, rule) from None
    load = load_contradiction(label, arrivals, at_once)
    if load is not None:
        raise InvalidRun("measurement_type", claim, load)
    return label
