"""Ways to alter recorded spans, for tests of what earns no label.

Each returns a function of spans. A request is a trace here: those of a scenario have numbers from
0, by their start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from orch_sidecar.tools.facts.labels.judge import Objection
from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.tables.row import Row
from orch_sidecar.tools.facts.traces.requests import build_traffic
from orch_sidecar.tools.facts.traces.scenarios import group_scenarios
from orch_sidecar.tools.facts.traces.spans import Span, Value
from orch_sidecar.tools.facts.traces.verdict import judge_scenario
from tests.orch_sidecar.tools.facts.cheats import Gate, said_of
from tests.orch_sidecar.tools.facts.spans import COUNTERS, counted, real, without

Spans = list[Span]
Alteration = Callable[[Spans], Spans]

SERVER, WAIT, ATTEMPT, SEQUENCE = "server", "admission.wait", "engine.request", "llm_request"
# The recorded scenario in each file.
SCENARIOS = {"home": "home-1", "cloud": "cloud-1", "offline": "offline-1"}


def kind(span: Span) -> str:
    return SERVER if "orch.request_id" in span.attributes and span.name != ATTEMPT else span.name


def requests(spans: Iterable[Span]) -> list[str]:
    """Returns the trace ids of the recorded scenario, by their start."""
    servers = [
        span
        for span in spans
        if kind(span) == SERVER and span.attributes.get("orch.scenario") in SCENARIOS.values()
    ]
    return [span.trace_id for span in sorted(servers, key=lambda span: span.start_ns)]


def chosen(spans: Spans, name: str | None, only: Sequence[int] | None) -> set[tuple[str, str]]:
    traces = requests(spans)
    ids = set(traces if only is None else [traces[number] for number in only])
    return {
        (span.trace_id, span.span_id)
        for span in spans
        if span.trace_id in ids and name in (None, kind(span))
    }


def changed(
    name: str | None,
    change: Callable[[Span], Span],
    only: Sequence[int] | None = None,
) -> Alteration:
    """Changes the spans of a kind (None: of all), in all requests or some."""

    def alter(spans: Spans) -> Spans:
        ids = chosen(spans, name, only)
        return [change(s) if (s.trace_id, s.span_id) in ids else s for s in spans]

    return alter


def set_to(
    name: str | None, attributes: Mapping[str, Value], only: Sequence[int] | None = None
) -> Alteration:
    """Sets attributes."""
    return changed(name, lambda s: replace(s, attributes={**s.attributes, **attributes}), only)


def engine(name: str, value: Value, only: Sequence[int] | None = None) -> Alteration:
    """Sets what the engine states."""
    return set_to(SEQUENCE, {f"orch.{name}": value}, only)


def sidecar(name: str, value: Value, only: Sequence[int] | None = None) -> Alteration:
    """Sets what the sidecar states."""
    return set_to(SERVER, {f"orch.{name}": value}, only)


def raised(name: str, by: float, only: Sequence[int] | None = None) -> Alteration:
    """Adds to a numeric attribute of the engine's spans."""

    def change(span: Span) -> Span:
        value = span.attributes[name]
        assert isinstance(value, int | float)
        return replace(span, attributes={**span.attributes, name: value + by})

    return changed(SEQUENCE, change, only)


def moved(seconds: float, name: str | None = None, only: Sequence[int] | None = None) -> Alteration:
    """Moves spans in time."""
    by = round(seconds * 1e9)
    return changed(name, lambda s: replace(s, start_ns=s.start_ns + by, end_ns=s.end_ns + by), only)


def dropped(name: str | None, only: Sequence[int] | None = None) -> Alteration:
    """Drops spans."""

    def alter(spans: Spans) -> Spans:
        ids = chosen(spans, name, only)
        return [span for span in spans if (span.trace_id, span.span_id) not in ids]

    return alter


def copied(number: int, seconds: float, *then: Alteration, keep: bool = True) -> Alteration:
    """Adds a request: a copy of one, so much later, and altered. Without `keep`, that one goes."""

    def alter(spans: Spans) -> Spans:
        trace = requests(spans)[number]
        copy = moved(seconds)([span for span in spans if span.trace_id == trace])
        for each in then:
            copy = each(copy)
        new = sha256(f"{trace} {seconds}".encode()).hexdigest()[:32]
        others = spans if keep else [span for span in spans if span.trace_id != trace]
        return [*others, *(replace(span, trace_id=new) for span in copy)]

    return alter


def recounted(spans: Spans) -> Spans:
    """Gives the counters that an engine would have which served just these spans."""
    return counted(without(spans, *COUNTERS))


def one_after_another(count: int, together: int, length_s: float = 0.2) -> Alteration:
    """Makes the load a trickle: `count` requests one after another, and then some at once."""

    def alter(spans: Spans) -> Spans:
        alone: dict[str, Value] = {"orch.batch_size.max": 1, "orch.batch_size.mean": 1.0}
        pair: dict[str, Value] = {"orch.batch_size.max": together, "orch.batch_size.mean": 1.9}
        made = spans
        for number in range(count):
            made = copied(0, length_s * (number + 1), set_to(SEQUENCE, alone))(made)
        for number in range(together):
            at_s = length_s * (count + 1) + number / 1000
            made = copied(0, at_s, set_to(SEQUENCE, pair))(made)
        recorded = {span.trace_id for span in spans}
        return recounted([span for span in made if span.trace_id not in recorded])

    return alter


def both(*alterations: Alteration) -> Alteration:
    def alter(spans: Spans) -> Spans:
        for each in alterations:
            spans = each(spans)
        return spans

    return alter


def verdict(
    recording: str, *alterations: Alteration, given: Source | None = None
) -> Row | list[Objection]:
    """Judges the first scenario of the recording's name among its altered spans."""
    traffic = build_traffic(both(*alterations)(real(recording)))
    found = group_scenarios(traffic, 60.0)
    scenario = next(each for each in found if each.key.scenario == SCENARIOS[recording])
    return judge_scenario(scenario, given or Source("test"))


def reasons(found: Row | list[Objection]) -> set[str]:
    return set() if isinstance(found, Row) else {each.reason.value for each in found}


def said(recording: str, alter: Alteration) -> Mapping[Gate, str]:
    """Returns the objections to an altered recording."""
    found = verdict(recording, alter)
    if isinstance(found, Row):
        return said_of(found)
    return {Gate.JUDGE: "; ".join(f"{each.reason}: {each.detail}" for each in found)}
