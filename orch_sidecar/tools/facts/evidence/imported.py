"""The run of another tool: how the file of any tool is read, and the row or rejection of a run.

Pure. A tool has one module, with the fields of its file as a model (`Fields`) and a function `run`,
which raises Rejection; it knows nothing of the engine, and not whether the label was earned.

A file alone proves nothing about the engine: its row is `to_be_confirmed`, and the label that the
file claims becomes a note. With states of the engine from both ends of the run it is judged
(`labels.judge`); a run that did not earn its label is rejected.

Without states the batch is unknown, and the tool's concurrency limit (`--max-concurrency`) does not
replace it: a limit is not an observation. The row then has the largest number of answers that
overlapped by the tool's own times, with the note `batch_is=overlap`; a file without these times and
with a limit above one is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orch_sidecar.tools.facts.labels.documents import first_problem
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, Totals, overlap
from orch_sidecar.tools.facts.labels.judge import judge
from orch_sidecar.tools.facts.labels.measured import (
    Engine,
    Measured,
    Notes,
    Source,
    engine_of,
    name_model,
    settings_of,
)
from orch_sidecar.tools.facts.labels.observation import RunTimes, States, observed
from orch_sidecar.tools.facts.tables.check import invalid_fields
from orch_sidecar.tools.facts.tables.notes import STATES, Arrivals
from orch_sidecar.tools.facts.tables.row import Label, Row

Count = Annotated[int, Field(ge=0)]
Claim = Annotated[Label | None, Field(strict=False)]
_Found = TypeVar("_Found")

_SHOWN_CHARACTERS: Final = 60
# Of a tool's sum over its own rounded times.
_TOLERANCE: Final = 0.001


class Fields(BaseModel):
    """The fields of a file that are used; it has more."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class Rejection(ValueError):
    """Why a file, or a run in it, becomes no row: a field, its value, and the rule."""

    def __init__(self, name: str, value: object, rule: str) -> None:
        super().__init__(f"{name} {str(value)[:_SHOWN_CHARACTERS]!r}: {rule}")
        self.name, self.value, self.rule = name, str(value), rule


def read_run(read: Callable[[], _Found]) -> _Found | Rejection:
    """Returns what is read of a file, or the rejection that reading it raises."""
    try:
        return read()
    except Rejection as error:
        return error
    except ValidationError as error:
        wrong = first_problem(error)
        rule = "is missing: the file has another format or version" if wrong.missing else wrong.rule
        return Rejection(wrong.place or "file", "" if wrong.missing else wrong.value, rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """One run of a tool.

    `claim`: the label in the file, which is not trusted. `schedule`: by which requests were due,
    None without one. `at_once`: the tool's limit of concurrent requests, None without one.
    `failed`: requests without a complete answer; `totals` are of the complete ones, and its window
    from the first arrival to the last end, unless the note `window_is` states otherwise.
    `stated_ms`: latencies by the tool's own figures, by the names of the notes. `served`: its
    answers by the tool's own times, none where the file does not contain them. `took_s`: all
    answers together, from sending to end, where the tool states it. `notes`: further notes.
    `times`: when it was.
    """

    tool: str
    model: str
    totals: Totals
    claim: Label | None = None
    schedule: Arrivals | None = None
    rate_per_s: float | None = None
    at_once: int | None = None
    failed: int = 0
    stated_ms: Mapping[str, float] = field(default_factory=dict)
    served: Sequence[CompletedRequest] = ()
    took_s: float = 0.0
    notes: Notes = field(default_factory=dict)
    times: RunTimes = field(default_factory=RunTimes)

    @property
    def arrivals(self) -> Arrivals:
        """How requests came: those without a schedule by the limit of concurrent ones."""
        if self.schedule is not None or self.at_once is None:
            return self.schedule or Arrivals.AT_ONCE
        return Arrivals.ONE_BY_ONE if self.at_once == 1 else Arrivals.CLOSED_LOOP

    @property
    def latency_ms(self) -> dict[str, float]:
        """The latencies by the names of the notes."""
        return {**self.totals.latency_ms, **self.stated_ms}


def to_row(run: ImportedRun, known: States | Engine, source: Source) -> Row:
    """Converts a run to a row. `known`: the engine's states, or what is declared of it. Raises
    Rejection, also for a row that no table would take."""
    window_s, at_once = run.totals.window_s, run.at_once
    if at_once is not None and run.took_s > at_once * window_s * (1 + _TOLERANCE):
        rule = f"is too short: at most {at_once} at a time, answers took {run.took_s:g} s in all"
        raise Rejection("the duration", f"{window_s:g} s", rule)
    states = known if isinstance(known, States) else None
    names = ((), ()) if states is None else (states.before.models, [states.before.weights])
    model = name_model(source.model_id or run.model, source.model_name, *names)
    if model.objection is not None:
        raise Rejection("model", model.id, model.objection)
    overlapped = 1 if at_once == 1 else overlap(run.served)
    if states is None:
        model = replace(model, given=("engine", "precision", "gpu", "gpu_count"))
        if not overlapped:
            rule = (
                "is a limit, not a measured batch: save the tool's detailed results, or give "
                "--capabilities-before and --capabilities-after"
            )
            raise Rejection("max_concurrency", at_once or "no limit", rule)
    # Of requests for several sequences no file has the length of the longest, by which TPOT
    # divides.
    several = states is not None and at_once is not None and states.batches.largest > at_once
    made = Measured(
        label=Label.TO_BE_CONFIRMED if states is None else _earned(run, states),
        claim=run.claim,
        engine=known if isinstance(known, Engine) else engine_of(known.before),
        model=model,
        totals=run.totals,
        source_tag=source.tag,
        batches=None if states is None else states.batches,
        overlap=overlapped,
        load={
            "tool": run.tool,
            "arrivals": run.arrivals,
            "rate_per_s": run.rate_per_s,
            "at_once": at_once,
        },
        latency_ms={
            name: ms
            for name, ms in run.latency_ms.items()
            if not (several and name.startswith("tpot_"))
        },
        outcomes={"failed": run.failed or None, **run.notes},
        settings={} if states is None else settings_of(states.before, states.prefix_hit_ratio),
        # Anybody can have written them.
        doubts={STATES: None if states is None else "unsigned"},
    )
    try:
        row = made.row()
    except ValueError as error:
        raise Rejection("scenario_notes", run.tool, str(error)) from None
    for fault in invalid_fields(row):
        raise Rejection(fault.name, fault.value, fault.rule)
    return row


def _earned(run: ImportedRun, states: States) -> Label:
    """Returns the label, of the file or else of the engine. Raises Rejection unless the engine did
    what that needs."""
    label = run.claim
    if label is None or label is Label.TO_BE_CONFIRMED:
        label = Label(states.before.measurement_type)
    seen = observed(
        label,
        states,
        sent=run.totals.requests + run.failed,
        answered=run.totals.requests,
        # No file contains what a failed request generated.
        output_tokens=None if run.failed else run.totals.output_tokens,
        input_tokens=None if run.failed else run.totals.input_tokens,
        in_flight=[each.in_flight for each in run.served],
        arrivals=run.arrivals,
        at_once=run.at_once,
        times=replace(run.times, window_s=run.totals.window_s),
    )
    if objections := judge(seen):
        reasons = "; ".join(each.detail for each in objections)
        raise Rejection("measurement_type", label.value, reasons)
    return label
