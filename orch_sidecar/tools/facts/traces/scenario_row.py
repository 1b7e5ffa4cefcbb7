"""Converts a traced scenario to a row, or to the objections against one.

Pure. The figures are those of `figures`. Values that the spans do not contain must be declared,
and a note of the row names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from orch_sidecar.tools.facts.evidence.figures import CompletedRequest, Figures, figures
from orch_sidecar.tools.facts.tables import rules
from orch_sidecar.tools.facts.tables.agreement.publication import shortfalls
from orch_sidecar.tools.facts.tables.check import invalid_fields
from orch_sidecar.tools.facts.tables.row import (
    Label,
    Row,
    format_engine,
    format_notes,
    is_path,
    last_part,
)
from orch_sidecar.tools.facts.traces.requests import Outcome, Request, Traffic
from orch_sidecar.tools.facts.traces.scenarios import Scenario
from orch_sidecar.tools.facts.traces.validity import Objection, Reason, objections

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
        self._model_id = declared.model_id or key.model
        self._model_name = declared.model_name or last_part(self._model_id)
        if is_path(self._model_id):
            detail = f"the model {self._model_id!r} is a path: name the model with --model-id"
            self.objections.append(Objection(Reason.NOT_SAID, detail))

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
        scenario = self._scenario
        answered = scenario.ended(Outcome.SERVED)
        measured = figures([_served(request, scenario.start_ns) for request in answered])
        label = Label(scenario.key.measurement_type)
        input_tokens = round(measured.input_tokens / measured.requests)
        output_tokens = round(measured.output_tokens / measured.requests)
        notes: dict[str, str | int | float] = {
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "batching": rules.BATCHING[label][0],
            "scenario": scenario_name(scenario),
            **_measured_notes(scenario, measured),
            **_ending_notes(scenario),
        }
        if shortfalls(label, measured.requests, measured.window_s):
            notes["preliminary"] = "yes"
        if scenario.before or scenario.after:
            ends = ("before", scenario.before), ("after", scenario.after)
            notes["cut"] = ",".join(end for end, requests in ends if requests)
        if self._model_id != scenario.key.model:
            notes["served_as"] = scenario.key.model
        if self._declared:
            notes["given"] = ",".join(self._declared)
        row = Row(
            model_id=self._model_id,
            model_name=self._model_name,
            engine=self._engine,
            precision=self._precision,
            gpu=self._gpu,
            gpu_count=self._gpu_count,
            batch=max(sequence.batch_max or 0 for sequence in scenario.sequences),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            throughput_tokens_per_sec=measured.tokens_per_s,
            measurement_type=label,
            scenario_notes=format_notes(notes),
            source_tag=source_tag,
        )
        faults = invalid_fields(row)
        if faults:
            raise ValueError("; ".join(fault.text for fault in faults))
        return row


def _served(request: Request, origin_ns: int) -> CompletedRequest:
    """Converts a request, in seconds since the origin, which keeps its nanoseconds exact.

    The first token is the first byte of a streamed answer, which is when the client can see it.
    """
    first_ns = request.first_byte_ns
    return CompletedRequest(
        arrived_s=(request.start_ns - origin_ns) / 1e9,
        first_token_s=None if first_ns is None else (first_ns - origin_ns) / 1e9,
        ended_s=(request.end_ns - origin_ns) / 1e9,
        input_tokens=request.engine_input_tokens,
        output_tokens=request.engine_output_tokens,
    )


def _measured_notes(scenario: Scenario, measured: Figures) -> dict[str, str | int | float]:
    """Returns the notes of the figures."""
    notes: dict[str, str | int | float] = {
        "requests": measured.requests,
        "window_s": round(measured.window_s, 3),
    }
    if scenario.key.profile is not None:
        notes["profile"] = scenario.key.profile
    counted = [each for each in scenario.sequences if each.steps]
    batches = sum(each.steps * each.batch_mean for each in counted if each.batch_mean is not None)
    # The mean over the steps of each sequence.
    notes["batch_mean_by_sequence"] = batches / max(1, sum(each.steps for each in counted))
    # First tokens of some answers do not represent all of them.
    streamed = all(each.first_byte_ns is not None for each in scenario.ended(Outcome.SERVED))
    ttft_s, tpot_s, latency_s = measured.ttft_s, measured.tpot_s, measured.latency_s
    if streamed and ttft_s is not None:
        notes[rules.TTFT_P50_NOTE] = _ms(ttft_s.p50)
        notes[rules.TTFT_P95_NOTE] = _ms(ttft_s.p95)
    if streamed and tpot_s is not None:
        notes["tpot_p50_ms"] = _ms(tpot_s.p50)
    return notes | {"latency_p50_ms": _ms(latency_s.p50), "latency_p90_ms": _ms(latency_s.p90)}


def _ending_notes(scenario: Scenario) -> dict[str, str | int | float]:
    """Counts the requests that were not served; their tokens are not in the figure."""
    others = (Outcome.FAILED, Outcome.CANCELLED, Outcome.REFUSED)
    counts = {outcome.value: len(scenario.ended(outcome)) for outcome in others}
    return {name: count for name, count in counts.items() if count}


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
