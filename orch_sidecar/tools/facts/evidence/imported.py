"""The run of another tool, in the terms of `figures`, and how the file of any tool is read.

Pure. A tool has one module, with the fields of its file as models (`Fields`) and a function `read`;
it knows nothing of the engine, and not whether the label was earned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError

from orch_sidecar.tools.facts.labels.documents import first_problem
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, Totals, figures
from orch_sidecar.tools.facts.labels.measured import latency_notes
from orch_sidecar.tools.facts.tables.contradictions import load_contradiction
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label

Count = Annotated[int, Field(ge=0)]
_Found = TypeVar("_Found")

# The note of a run with speculative decoding: tokens per sequence and step.
ACCEPTANCE_LENGTH: Final = "acceptance_length"


class Fields(BaseModel):
    """The fields of a file that are used; it has more."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


def at(path: str, **more: Any) -> Any:
    """Declares a field by its place in the file: `config.backend.model`."""
    return Field(validation_alias=AliasPath(*path.split(".")), **more)


class Rejection(ValueError):
    """Why a file, or a run in it, becomes no row: a field, its value, and the rule."""

    def __init__(self, name: str, value: object, rule: str) -> None:
        super().__init__(f"{name} {str(value)!r}: {rule}")
        self.name, self.value, self.rule = name, str(value), rule


def read_run(read: Callable[[], _Found]) -> _Found | Rejection:
    """Returns what is read of a file, or the rejection that reading it raises."""
    try:
        return read()
    except Rejection as error:
        return error
    except ValidationError as error:
        wrong = first_problem(error)
    name = wrong.place or "file"
    if wrong.missing:
        return Rejection(name, "", "is missing: the file has another format or version")
    value = wrong.value if isinstance(wrong.value, str) else repr(wrong.value)[:60]
    return Rejection(name, value, wrong.rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """One run of a tool.

    `claim`: the label in the file, which is not trusted. `at_once`: the tool's limit of concurrent
    requests, None without one. `failed`: requests without a complete answer; `totals` are of the
    complete ones, and its window from the first arrival to the last end, unless the note
    `window_is` states otherwise. `counts_tokens`: whether its tokens are those of the engine; where
    they are not, `totals` has none. `latency_ms`: by the names of the notes. `served`: its answers
    by the tool's own times, none where the file does not contain them. `notes`: further notes.

    `began_at_s`, `ended_at_s`: first arrival and last end as Unix times. `local_end_s`: the end by
    a clock of an unknown time zone, as if it were UTC's. None where the file does not have them.
    """

    tool: str
    model: str
    claim: Label | None
    arrivals: Arrivals
    rate_per_s: float | None
    at_once: int | None
    failed: int
    totals: Totals
    latency_ms: Mapping[str, float]
    served: Sequence[CompletedRequest] = ()
    notes: Mapping[str, str | int | float] = field(default_factory=dict)
    began_at_s: float | None = None
    ended_at_s: float | None = None
    local_end_s: float | None = None
    counts_tokens: bool = True


def figures_of(served: Sequence[CompletedRequest]) -> tuple[Totals, dict[str, float]]:
    """Returns the figures of answers, and the notes of their latencies."""
    found = figures(served)
    return found, latency_notes(found.times_s, 1000)


def parse_claim(claim: object, arrivals: Arrivals, at_once: int | None) -> Label | None:
    """Parses the label that a file claims.

    Raises Rejection for an unknown label, and for one that the load in the file contradicts.
    """
    if claim is None:
        return None
    try:
        label = Label(str(claim))
    except ValueError:
        rule = f"must be one of {', '.join(Label)}"
        raise Rejection("measurement_type", claim, rule) from None
    load = load_contradiction(label, arrivals, at_once)
    if load is not None:
        raise Rejection("measurement_type", claim, load)
    return label
