"""Converts a traced scenario to a row, or to the objections against one.

Pure. The figures are those of `figures`. Values that the spans do not contain must be declared,
and a note of the row names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from orch_sidecar.tools.facts.labels import intervals
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.labels.measured import Engine, Measured, Notes, latency_notes
from orch_sidecar.tools.facts.labels.model import Model, name_model
from orch_sidecar.tools.facts.labels.objection import Objection, Reason
from orch_sidecar.tools.facts.labels.observation import Observation
from orch_sidecar.tools.facts.tables.check import invalid_fields
from orch_sidecar.tools.facts.tables.notes import BATCH_REQUESTS, CONDITIONS, CUT, PREFIX_HIT_RATIO
from orch_sidecar.tools.facts.tables.row import (
    Label,
    Row,
    format_engine,
    is_path,
)
from orch_sidecar.tools.facts.traces.arrivals import arrivals_of
from orch_sidecar.tools.facts.traces.counters import prefix_hit_ratio
from orch_sidecar.tools.facts.traces.requests import Outcome, Request, Traffic
from orch_sidecar.tools.facts.traces.scenarios import Scenario
from orch_sidecar.tools.facts.traces.supply import observation_of
from orch_sidecar.tools.facts.traces.validity import objections

_Fact = TypeVar("_Fact", str, int)


@dataclass(frozen=True, slots=True)
class Declared:
    """Values that the user declares where the spans lack them. As in `Row`.

    `model_id`, `model_name`: None for the name in the requests, and for its last part.
    """

    engine: str | None = None
    precision: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    model_id: str | None = None
    model_name: str | None = None


@dataclass(frozen=True, slots=True)
class ScenarioVerdict:
    """The row of a scenario, or the objections to one."""

    scenario: Scenario
    row: Row | None
    objections: tuple[Objection, ...]


def judge(scenario: Scenario, traffic: Traffic, declared: Declared, source: str) -> ScenarioVerdict:
    """Returns the row of a scenario that earned its label, or the objections.

    `traffic`: all requests, those of the scenario included. `source`: what was read, as
    `jaeger:orch-sidecar`; the tag of the row adds the scenario.
    """
    found = objections(scenario, traffic)
    if Reason.UNKNOWN_LABEL in {each.reason for each in found}:
        return ScenarioVerdict(scenario, None, tuple(found))
    draft = _Draft(scenario, declared)
    found += draft.objections
    if found:
        return ScenarioVerdict(scenario, None, tuple(found))
    try:
        return ScenarioVerdict(scenario, draft.row(f"{source}/{scenario_name(scenario)}"), ())
    except ValueError as error:
        return ScenarioVerdict(scenario, None, (Objection(Reason.UNSOUND_ROW, str(error)),))


def scenario_name(scenario: Scenario) -> str:
    """Returns the id of a scenario, or when it began (UTC)."""
    return scenario.key.scenario or format_time(scenario.start_ns)


def format_time(time_ns: int) -> str:
    """Formats a time of spans as RFC 3339, to the millisecond."""
    seconds = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    return f"{seconds:%Y-%m-%dT%H:%M:%S}.{time_ns // 1_000_000 % 1000:03}Z"


class _Draft:
    """A row in preparation: what spans and user state, and the objections to it."""

    def __init__(self, scenario: Scenario, declared: Declared) -> None:
        key = scenario.key
        self.objections: list[Objection] = []
        self._scenario = scenario
        self._declared: list[str] = []
        version = None if key.engine_version is None else format_engine("vllm", key.engine_version)
        self._engine = self._fact("engine", version, declared.engine)
        self._precision = self._fact("precision", key.precision, declared.precision)
        self._gpu = self._fact("gpu", key.gpu, declared.gpu)
        self._gpu_count = self._fact("gpu_count", key.gpu_count, declared.gpu_count)
        self._named = self._model(declared)
        self._declared += self._named.given
        if key.conditions is None and scenario.sequences:
            detail = f"the spans of the engine do not contain its {', '.join(CONDITIONS)}"
            self.objections.append(Objection(Reason.NOT_SAID, detail))

    def _model(self, declared: Declared) -> Model:
        """Returns the model, by the names that the engine serves, and what it loaded."""
        requested, found = self._scenario.key.model, self._scenario.sequences
        served = {requested, *(each.served_as for each in found if each.served_as)}
        loaded = {each.weights for each in found if each.weights}
        names = declared.model_id or requested, declared.model_name
        model = name_model(*names, sorted(served), sorted(loaded))
        if model.objection is not None:
            reason = Reason.NOT_SAID if is_path(model.id) else Reason.CONTRADICTION
            detail = f"the model {model.id!r}: {model.objection}"
            self.objections.append(Objection(reason, detail))
        return model

    def _fact(self, name: str, traced: _Fact | None, declared: _Fact | None) -> _Fact | None:
        """Returns either value; objects where both are missing or contradict each other."""
        option = f"--{name.replace('_', '-')}"
        if traced is None and declared is None:
            detail = f"{name}: the spans do not contain it; give it with {option}"
            self.objections.append(Objection(Reason.NOT_SAID, detail))
        elif traced is None:
            self._declared.append(name)
        elif declared not in (None, traced):
            detail = (
                f"{name}: the spans contain {traced!r}, which contradicts {option} {declared!r}"
            )
            self.objections.append(Objection(Reason.CONTRADICTION, detail))
        return declared if traced is None else traced

    def row(self, source_tag: str) -> Row:
        """Builds the row, if there are no objections. Raises ValueError for an invalid row."""
        assert self._engine is not None
        assert self._precision is not None
        assert self._gpu is not None
        assert self._gpu_count is not None
        scenario, key = self._scenario, self._scenario.key
        completed, seen = _completed(scenario), observation_of(scenario)
        measured = figures(completed)
        load: Notes = {"scenario": scenario_name(scenario)}
        if (arrivals := arrivals_of(completed, seen.label)) is not None:
            load["arrivals"] = arrivals
        if key.run is not None:
            load["run"] = key.run
        ends = ("before", scenario.before), ("after", scenario.after)
        cut = ",".join(end for end, requests in ends if requests)
        row = Measured(
            label=seen.label,
            engine=Engine(self._engine, self._precision, self._gpu, self._gpu_count),
            model_id=self._named.id,
            model_name=self._named.name,
            totals=measured,
            source_tag=source_tag,
            batches=seen.batches,
            load=load,
            latency_ms=latency_notes(measured.times_s, 1000),
            outcomes=_ending_notes(scenario),
            settings=_settings(scenario, seen),
            doubts={CUT: cut} if cut else {},
            served_as=key.model,
            given=self._declared,
        ).row()
        faults = invalid_fields(row)
        if faults:
            raise ValueError("; ".join(fault.text for fault in faults))
        return row


def _completed(scenario: Scenario) -> list[CompletedRequest]:
    """Converts the answered requests, in seconds since the first one, which keeps nanoseconds.

    The first token is the first byte of a streamed answer, which is when the client can see it.
    First tokens of some answers do not represent all of them.
    """
    answered = scenario.ended(Outcome.SERVED)
    streamed = all(each.first_byte_ns is not None for each in answered)
    return [_served(each, scenario.start_ns, streamed) for each in answered]


def _served(request: Request, origin_ns: int, streamed: bool) -> CompletedRequest:
    first_ns = request.first_byte_ns if streamed else None
    lengths = [each.output_tokens for each in request.sequences]
    return CompletedRequest(
        arrived_s=(request.start_ns - origin_ns) / 1e9,
        first_token_s=None if first_ns is None else (first_ns - origin_ns) / 1e9,
        ended_s=(request.end_ns - origin_ns) / 1e9,
        input_tokens=request.engine_input_tokens,
        output_tokens=request.answered_tokens,
        longest_output_tokens=max(lengths) if len(lengths) > 1 else None,
    )


def _settings(scenario: Scenario, seen: Observation) -> Notes:
    """Returns the notes about the engine: what limited its batch, and how it was configured."""
    notes: Notes = {}
    if seen.label is Label.OFFLINE and seen.batch_limited_by is not None:
        notes["batch_limited_by"] = seen.batch_limited_by
    if any(each.requested_sequences > 1 for each in scenario.ended(Outcome.SERVED)):
        notes[BATCH_REQUESTS] = intervals.mean(seen.decoding)
    if scenario.key.profile is not None:
        notes["profile"] = scenario.key.profile
    if scenario.key.conditions is not None:
        notes |= scenario.key.conditions.notes
    ratio = prefix_hit_ratio(scenario.sequences)
    if ratio is not None:
        notes[PREFIX_HIT_RATIO] = ratio
    return notes


def _ending_notes(scenario: Scenario) -> Notes:
    """Counts the requests that were not served; their tokens are not in the figure."""
    others = (Outcome.FAILED, Outcome.CANCELLED, Outcome.REFUSED)
    counts = {outcome.value: len(scenario.ended(outcome)) for outcome in others}
    return {name: count for name, count in counts.items() if count}
