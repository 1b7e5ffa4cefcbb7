"""A scenario that was traced, as a row of facts; or what is in the way of one.

Pure. The definitions of the figures are those of `served`. What the spans do not say of the
engine must be given, and the row says that it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from orch_sidecar.tools.facts.evidence.figures import CompletedRequest, Figures, figures
from orch_sidecar.tools.facts.evidence.verdict import shortfalls
from orch_sidecar.tools.facts.tables import rules
from orch_sidecar.tools.facts.tables.check import row_faults
from orch_sidecar.tools.facts.tables.row import Label, Row, format_engine, format_notes
from orch_sidecar.tools.facts.tables.table import Record, record_text, row_fields
from orch_sidecar.tools.facts.traces.requests import Outcome, Request, Traffic
from orch_sidecar.tools.facts.traces.scenarios import Scenario
from orch_sidecar.tools.facts.traces.validity import Objection, Reason, objections

_Fact = TypeVar("_Fact", str, int)


@dataclass(frozen=True, slots=True)
class Given:
    """What somebody says where the spans do not. As in `Row`.

    `model_id`, `model_name`: None for the name that the requests had, and for its last part.
    """

    engine: str | None = None
    precision: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    model_id: str | None = None
    model_name: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a scenario: a row, or objections to one."""

    scenario: Scenario
    row: Row | None
    objections: tuple[Objection, ...]


def judge(scenario: Scenario, traffic: Traffic, given: Given, source: str) -> Judged:
    """The row of a scenario that earned its label, or why it makes none.

    `traffic`: all there was, this scenario's included. `source`: what was read, as
    `jaeger:orch-sidecar`; the row's tag adds which scenario it is.
    """
    found = objections(scenario, traffic)
    if Reason.UNKNOWN_LABEL in {each.reason for each in found}:
        return Judged(scenario, None, tuple(found))
    draft = _Draft(scenario, given)
    found += draft.objections
    if found:
        return Judged(scenario, None, tuple(found))
    try:
        return Judged(scenario, draft.row(f"{source}/{name_of(scenario)}"), ())
    except ValueError as error:
        return Judged(scenario, None, (Objection(Reason.UNSOUND_ROW, str(error)),))


def name_of(scenario: Scenario) -> str:
    """The id that its client gave it, or when it began (UTC)."""
    return scenario.key.scenario or at(scenario.start_ns)


def at(time_ns: int) -> str:
    """A time of spans, as RFC 3339 to the millisecond."""
    seconds = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    return f"{seconds:%Y-%m-%dT%H:%M:%S}.{time_ns // 1_000_000 % 1000:03}Z"


class _Draft:
    """A row in the making: what the spans say, what is given, and where these do not suffice."""

    def __init__(self, scenario: Scenario, given: Given) -> None:
        key = scenario.key
        self.objections: list[Objection] = []
        self._scenario = scenario
        self._given: list[str] = []
        version = None if key.engine_version is None else format_engine("vllm", key.engine_version)
        self._engine = self._fact("engine", version, given.engine)
        self._precision = self._fact("precision", key.precision, given.precision)
        self._gpu = self._fact("gpu", key.gpu, given.gpu)
        self._gpu_count = self._fact("gpu_count", key.gpu_count, given.gpu_count)
        self._model_id = given.model_id or key.model
        self._model_name = given.model_name or self._model_id.rpartition("/")[2]
        # A path means nothing on any other machine.
        if self._model_id.startswith(("/", "~", ".")):
            says = f"the model {self._model_id!r} is a path: say what it is, by --model-id"
            self.objections.append(Objection(Reason.NOT_SAID, says))

    def _fact(self, name: str, said: _Fact | None, given: _Fact | None) -> _Fact | None:
        """Either, where they do not contradict each other."""
        option = f"--{name.replace('_', '-')}"
        if said is None and given is None:
            says = f"{name}: the spans do not tell it, it must be given by {option}"
            self.objections.append(Objection(Reason.NOT_SAID, says))
        elif said is None:
            self._given.append(name)
        elif given not in (None, said):
            says = f"{name}: the spans say {said!r}, and {option} {given!r}"
            self.objections.append(Objection(Reason.CONTRADICTION, says))
        return given if said is None else said

    def row(self, source_tag: str) -> Row:
        """The row, if there are no objections. Raises ValueError where it would not be sound."""
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
            "scenario": name_of(scenario),
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
        if self._given:
            notes["given"] = ",".join(self._given)
        row = Row(
            model_id=self._model_id,
            model_name=self._model_name,
            engine=self._engine,
            precision=self._precision,
            gpu=self._gpu,
            gpu_count=self._gpu_count,
            batch=max(decode.batch_max or 0 for decode in scenario.decodes),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            throughput_tokens_per_sec=measured.tokens_per_s,
            measurement_type=label,
            scenario_notes=format_notes(notes),
            source_tag=source_tag,
        )
        fields = row_fields(row)
        faults = row_faults("row", Record(1, fields, record_text(fields, "")))
        if faults:
            raise ValueError(
                "; ".join(f"{each.name} {each.value!r} {each.rule}" for each in faults)
            )
        return row


def _served(request: Request, origin_ns: int) -> CompletedRequest:
    """Seconds since the origin, so that nanoseconds are not rounded away.

    The first token is where a streamed answer's first byte was: when its client could see it. The
    engine had it earlier, but nobody got it then.
    """
    first_ns = request.first_byte_ns
    return CompletedRequest(
        arrived_s=(request.start_ns - origin_ns) / 1e9,
        first_token_s=None if first_ns is None else (first_ns - origin_ns) / 1e9,
        ended_s=(request.end_ns - origin_ns) / 1e9,
        input_tokens=request.decoded_input_tokens,
        output_tokens=request.decoded_output_tokens,
    )


def _measured_notes(scenario: Scenario, measured: Figures) -> dict[str, str | int | float]:
    notes: dict[str, str | int | float] = {
        "requests": measured.requests,
        "window_s": round(measured.window_s, 3),
    }
    if scenario.key.profile is not None:
        notes["profile"] = scenario.key.profile
    told = [each for each in scenario.decodes if each.steps]
    sequences = sum(each.steps * each.batch_mean for each in told if each.batch_mean is not None)
    # As a sequence saw it: the mean over the steps that each one took part in.
    notes["batch_mean_by_sequence"] = sequences / max(1, sum(each.steps for each in told))
    # Where only some answers were streamed, what those say is not of all.
    streamed = all(each.first_byte_ns is not None for each in scenario.ended(Outcome.SERVED))
    ttft_s, tpot_s, latency_s = measured.ttft_s, measured.tpot_s, measured.latency_s
    if streamed and ttft_s is not None:
        notes[rules.TTFT_P50_NOTE] = _ms(ttft_s.p50)
        notes[rules.TTFT_P95_NOTE] = _ms(ttft_s.p95)
    if streamed and tpot_s is not None:
        notes["tpot_p50_ms"] = _ms(tpot_s.p50)
    return notes | {"latency_p50_ms": _ms(latency_s.p50), "latency_p90_ms": _ms(latency_s.p90)}


def _ending_notes(scenario: Scenario) -> dict[str, str | int | float]:
    """How many ended in another way: their tokens are not in the figure."""
    others = (Outcome.FAILED, Outcome.CANCELLED, Outcome.REFUSED)
    counts = {outcome.value: len(scenario.ended(outcome)) for outcome in others}
    return {name: count for name, count in counts.items() if count}


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
