"""The run of another tool: how the file of any tool is read, and the row or rejection of a run.

Pure. A tool has one module, with the fields of its file as a model (`Fields`) and a function `run`,
which raises Rejection; it knows nothing of the engine, and not whether the label was earned.

`docs/reference/facts.md` has what a row needs. Without states of the engine the batch is unknown,
and a limit of concurrent requests does not replace it: a limit is not an observation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from orch_sidecar.tools.facts.labels.documents import named
from orch_sidecar.tools.facts.labels.judge import judge
from orch_sidecar.tools.facts.labels.load import Load, contradictions
from orch_sidecar.tools.facts.labels.measured import (
    ENGINE_COLUMNS,
    Engine,
    Source,
    engine_between,
    name_model,
    row_of,
)
from orch_sidecar.tools.facts.labels.observation import Run, States, observed
from orch_sidecar.tools.facts.tables.notes import STATES, Arrivals
from orch_sidecar.tools.facts.tables.row import Label, Row

Claim = Annotated[Label | None, Field(strict=False)]
_Found = TypeVar("_Found")


class Fields(BaseModel):
    """The fields of a file that are used; it has more."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


def absent(rule: str) -> AfterValidator:
    """Validates that a field states nothing. `rule`: why."""

    def check(value: object) -> None:
        if value is not None:
            raise ValueError(rule)

    return AfterValidator(check)


class Rejection(ValueError):
    """Why a file, or a run in it, becomes no row: a field, its value, and the rule."""

    def __init__(self, name: str, value: object, rule: str) -> None:
        super().__init__(f"{name} {str(value)[:60]!r}: {rule}")


def read_run(place: str, read: Callable[[], _Found]) -> _Found | str:
    """Returns what is read of a run, or why it is rejected. `place`: where it is."""
    try:
        with named(f"{place}: "):
            return read()
    except ValueError as error:
        why = str(error)
        return f"{why}: the file has another format or version" if why.endswith("missing") else why


def load_of(schedule: Arrivals | None, at_once: int | None, **stated: Any) -> Load:
    """Returns how requests came: those without a schedule by the limit of concurrent ones."""
    limited = Arrivals.ONE_BY_ONE if at_once == 1 else Arrivals.CLOSED_LOOP
    arrivals = schedule or (Arrivals.AT_ONCE if at_once is None else limited)
    return Load(arrivals=arrivals, clients=at_once, **stated)


def to_row(run: Run, known: States | Engine, source: Source) -> Row:
    """Converts a run to a row. `known`: the engine's states, or what is declared of it. Raises
    Rejection, also for a row that no table would take."""
    states = known if isinstance(known, States) else None
    names = ((), ()) if states is None else (states.before.models, [states.before.weights])
    model = name_model(source.model_id or run.model, source.model_name, *names)
    if model.objection is not None:
        raise Rejection("model", model.id, model.objection)
    if isinstance(known, Engine):
        label, engine = Label.TO_BE_CONFIRMED, known
        model = replace(model, given=ENGINE_COLUMNS)
        if not run.overlap:
            states_of = "--capabilities-before and --capabilities-after"
            rule = f"is a limit, not a measured batch: give {states_of}"
            raise Rejection("max_concurrency", run.clients or "no limit", rule)
    else:
        label, engine = _earned(run, known), engine_between(known)
        run = replace(run, doubts={STATES: "unsigned"})  # anybody can have written them
        if run.clients is not None and known.batches.largest > run.clients:
            # Of requests for several sequences no file has the length of the longest, by which
            # TPOT divides.
            own = run.latency_ms.items()
            run = replace(run, own_ms={name: ms for name, ms in own if not name.startswith("tpot")})
    # Of failed requests no file has the times.
    in_flight = [] if run.failed else [each.in_flight for each in run.served]
    if run.load and (found := [*contradictions(run.load, in_flight, in_flight)]):
        raise Rejection("arrivals", run.load.arrivals.value, "; ".join(found))
    return row_of(run, label, engine, model, source.tag)


def _earned(run: Run, states: States) -> Label:
    """Returns the label, of the file or else of the engine. Raises Rejection unless the engine did
    what that needs."""
    label = run.claim
    if label is None or label is Label.TO_BE_CONFIRMED:
        label = states.before.measurement_type
    totals = run.totals
    seen = observed(
        label,
        states,
        sent=totals.requests + run.failed,
        answered=totals.requests,
        output_tokens=None if run.failed else totals.output_tokens,
        input_tokens=None if run.failed else totals.input_tokens,
        in_flight=[each.in_flight for each in run.served],
        load=run.load,
        run=run,
    )
    if objections := judge(seen):
        reasons = "; ".join(each.detail for each in objections)
        raise Rejection("measurement_type", label.value, reasons)
    return label
