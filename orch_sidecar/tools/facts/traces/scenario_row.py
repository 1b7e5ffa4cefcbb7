"""Converts a traced scenario to a row, or to the objections against one.

Pure. The figures are those of `figures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from orch_sidecar.tools.facts.labels import intervals
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.judge import Objection, Reason
from orch_sidecar.tools.facts.labels.measured import (
    Measured,
    Model,
    Notes,
    Source,
    latency_notes,
    name_model,
)
from orch_sidecar.tools.facts.labels.observation import Observation
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.check import invalid_fields
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label, Row, is_path
from orch_sidecar.tools.facts.traces.observed import observation_of, prefix_hit_ratio
from orch_sidecar.tools.facts.traces.requests import Outcome, Request, Traffic
from orch_sidecar.tools.facts.traces.scenarios import Scenario
from orch_sidecar.tools.facts.traces.spans import format_time
from orch_sidecar.tools.facts.traces.validity import objections

# Fewer requests that follow others, or fewer in all, show no kind of arrivals.
LEAST: Final = 10
# Requests that all arrive within this share of the window were sent at once.
_AT_ONCE_SHARE: Final = 0.1
# A client sends its next request within this share of an answer's time, or these seconds.
_PAUSE_SHARE: Final = 0.05
_PAUSE_S: Final = 0.05
# Of a closed loop some clients pause longer, or leave before the others.
_CLOSED_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True)
class ScenarioVerdict:
    """The row of a scenario, or the objections to one."""

    scenario: Scenario
    row: Row | None
    objections: tuple[Objection, ...]


def judge(scenario: Scenario, traffic: Traffic, source: Source) -> ScenarioVerdict:
    """Returns the row of a scenario that earned its label, or the objections.

    `traffic`: all requests, those of the scenario included. `source`: its tag is what was read, as
    `jaeger:orch-sidecar`; that of the row adds the scenario.
    """
    found, engine = objections(scenario, traffic), scenario.engine
    model = _model(scenario, source)
    if model.objection is not None and scenario.sequences:
        reason = Reason.NOT_SAID if is_path(model.id) else Reason.CONTRADICTION
        found.append(Objection(reason, f"the model {model.id!r}: {model.objection}"))
    if found or engine is None:
        return ScenarioVerdict(scenario, None, tuple(found))
    try:
        row = _measured(
            scenario,
            observation_of(scenario, traffic),
            engine=engine.columns,
            model_id=model.id,
            model_name=model.name,
            given=model.given,
            source_tag=f"{source.tag}/{scenario_name(scenario)}",
        ).row()
        faults = [fault.text for fault in invalid_fields(row)]
    except ValueError as error:
        faults = [str(error)]
    if faults:
        unsound = Objection(Reason.UNSOUND_ROW, "; ".join(faults))
        return ScenarioVerdict(scenario, None, (unsound,))
    return ScenarioVerdict(scenario, row, ())


def scenario_name(scenario: Scenario) -> str:
    """Returns the id of a scenario, or when it began (UTC)."""
    return scenario.key.scenario or format_time(scenario.start_ns)


def _model(scenario: Scenario, given: Source) -> Model:
    """Returns the model, by the names that the engine serves, and what it loaded."""
    requested = str(scenario.key.model)
    engines = [each.stated for each in scenario.sequences if each.stated is not None]
    served = sorted({requested, *(each.served_as for each in engines)})
    loaded = sorted({each.weights for each in engines})
    return name_model(given.model_id or requested, given.model_name, served, loaded)


def _measured(scenario: Scenario, seen: Observation, **more: Any) -> Measured:
    """Returns what the row states. `more`: the engine, the model and the source."""
    completed = _completed(scenario)
    found = figures(completed)
    load: Notes = {"scenario": scenario_name(scenario)}
    if (arrivals := arrivals_of(completed, seen.label)) is not None:
        load["arrivals"] = arrivals
    if scenario.key.run is not None:
        load["run"] = scenario.key.run
    ends = ("before", scenario.before), ("after", scenario.after)
    cut = ",".join(end for end, requests in ends if requests)
    # Those that were not served; their tokens are not in the figure.
    others = (Outcome.FAILED, Outcome.CANCELLED, Outcome.REFUSED)
    counts = {outcome.value: len(scenario.ended(outcome)) for outcome in others}
    return Measured(
        label=seen.label,
        totals=found,
        batches=seen.batches,
        load=load,
        latency_ms=latency_notes(found.times_s, 1000),
        outcomes={name: count for name, count in counts.items() if count},
        settings=_settings(scenario, seen),
        doubts={names.CUT: cut} if cut else {},
        served_as=scenario.key.model,
        **more,
    )


def arrivals_of(requests: Sequence[CompletedRequest], label: Label) -> Arrivals | None:
    """Returns how requests arrived; None where they do not show it, and where the label implies
    it.

    In a closed loop each request but the first of each client follows the end of another one
    without a pause; by a schedule it does not. What a few requests show is by chance, and unknown.
    """
    if label is Label.SINGLE_STREAM or len(requests) < LEAST:
        return None
    arrived = sorted(each.arrived_s for each in requests)
    ended = sorted(each.ended_s for each in requests)
    if arrived[-1] - arrived[0] <= _AT_ONCE_SHARE * (ended[-1] - arrived[0]):
        return Arrivals.AT_ONCE
    clients = intervals.most(each.in_flight for each in requests)
    follow = [arrived[number] - ended[number - clients] for number in range(clients, len(arrived))]
    if len(follow) < LEAST:
        return None
    pause_s = max(_PAUSE_S, _PAUSE_SHARE * median(each.latency_s for each in requests))
    if sum(each <= pause_s for each in follow) >= _CLOSED_SHARE * len(follow):
        return Arrivals.CLOSED_LOOP
    return Arrivals.OPEN_LOOP if label is Label.BATCHED_ONLINE else None


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
    served = scenario.ended(Outcome.SERVED)
    if any(each.requested_sequences > 1 for each in served):
        notes[names.BATCH_REQUESTS] = intervals.mean(
            Interval(min(of.first_ns for of in own), max(of.end_ns for of in own))
            for each in served
            if (own := each.sequences)
        )
    if scenario.key.profile is not None:
        notes["profile"] = scenario.key.profile
    if scenario.engine is not None:
        notes |= scenario.engine.conditions
    if (ratio := prefix_hit_ratio(scenario.sequences)) is not None:
        notes[names.PREFIX_HIT_RATIO] = ratio
    return notes
