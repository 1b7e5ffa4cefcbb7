"""Recomputes what a row says of its client from the requests that the client recorded.

Pure. The result of `orch bench` is in the evidence, with the times of each request: a row that its
own client contradicts is no more than an edited one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from orch_sidecar.tools.facts.labels.figures import CompletedRequest, Spread, figures
from orch_sidecar.tools.facts.tables.note_forms import PERCENTILES, TIMES, time_note
from orch_sidecar.tools.facts.tables.notes import CLIENT_BOTTLENECK, LATENCY_OF, Arrivals
from orch_sidecar.tools.facts.tables.row import Row, parse_notes

# A recorded time is rounded to a microsecond, a note to six digits or a microsecond, and shares and
# throughput to four digits after the point.
_TIME_S: Final = 2e-6
_DIGITS: Final = 1e-5
_SHARE: Final = 1e-4
_TOKENS_PER_S: Final = 1e-4
_CLIENTS: Final = (Arrivals.ONE_BY_ONE, Arrivals.CLOSED_LOOP)
_SCHEDULED: Final = (Arrivals.CONSTANT, Arrivals.POISSON, Arrivals.GAMMA, Arrivals.REPEATED_GAPS)


class _Call(NamedTuple):
    """A row of the result's `calls`, as `bench.results.result` has them. Seconds."""

    due_s: float | None
    sent_s: float | None
    first_s: float | None
    ended_s: float | None
    status: int | None
    fate: str
    why: str
    input_tokens: int | None
    output_tokens: int | None
    queue_ms: float | None
    service_class: str | None = None  # not in files from before there were classes

    @property
    def served(self) -> CompletedRequest | None:
        arrived_s = self.sent_s if self.due_s is None else self.due_s
        if self.fate != "answered" or None in (arrived_s, self.ended_s, self.output_tokens):
            return None
        assert arrived_s is not None
        assert self.ended_s is not None
        return CompletedRequest(
            arrived_s, self.first_s, self.ended_s, self.input_tokens or 0, self.output_tokens or 0
        )


class _Client(BaseModel):
    bottleneck: list[str]


class _Scenario(BaseModel):
    slo_ms: dict[str, float]


class _Result(BaseModel):
    """The parts of a result of `orch bench` that a row is made of."""

    client: _Client
    scenario: _Scenario
    calls: list[_Call] = Field(min_length=1)


def call_contradictions(row: Row, result: Mapping[str, Any]) -> list[str]:
    """Returns where a valid row is not what its client recorded, empty if it is."""
    try:
        known = _Result.model_validate(result)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"]))
        return [f"the client's result has no valid {place}: {problem['msg']}"]
    notes = parse_notes(row.scenario_notes)
    only = notes.get(LATENCY_OF)
    some = [call for call in known.calls if only in (None, call.service_class)]
    try:
        return [
            *_counts(notes, known),
            *_arrivals(notes, known.calls),
            *_throughput(row, notes, _served(known.calls)),
            *_latencies(notes, _served(some)),
            *_goodput(notes, some, known.scenario.slo_ms),
        ]
    except ValueError as error:
        return [f"of the client's requests: {error}"]


def _served(calls: Sequence[_Call]) -> list[CompletedRequest]:
    return [served for call in calls if (served := call.served) is not None]


def _counts(notes: Mapping[str, str], known: _Result) -> Iterator[str]:
    fates = Counter(call.fate for call in known.calls)
    recorded = {
        "requests": len(_served(known.calls)),
        "failed": fates["failed"],
        "refused": fates["refused"],
    }
    for name, count in recorded.items():
        if int(notes.get(name, "0")) != count:
            yield f"{name} is {notes.get(name, '0')}, the client recorded {count}"
    if bool(known.client.bottleneck) != (CLIENT_BOTTLENECK in notes):
        stated = notes.get(CLIENT_BOTTLENECK, "absent")
        yield f"{CLIENT_BOTTLENECK} is {stated}, the client recorded {known.client.bottleneck}"


def _arrivals(notes: Mapping[str, str], calls: Sequence[_Call]) -> Iterator[str]:
    kind, scheduled = notes.get("arrivals"), any(call.due_s is not None for call in calls)
    if (kind in _CLIENTS and scheduled) or (kind in _SCHEDULED and not scheduled):
        recorded = "a schedule" if scheduled else "no schedule"
        yield f"arrivals is {kind}, the client's requests had {recorded}"


def _throughput(
    row: Row, notes: Mapping[str, str], served: Sequence[CompletedRequest]
) -> Iterator[str]:
    found = figures(served)
    claimed = row.throughput_tokens_per_sec
    rounding = _TOKENS_PER_S + (_DIGITS + _TIME_S / found.window_s) * found.tokens_per_s
    if abs(claimed - found.tokens_per_s) > rounding:
        yield f"throughput is {claimed:.6g} tokens/s, the client recorded {found.tokens_per_s:.6g}"
    if abs(float(notes.get("window_s", "0")) - found.window_s) > 0.001 + _DIGITS * found.window_s:
        yield f"window_s is {notes.get('window_s')}, the client recorded {found.window_s:.6g}"


def _latencies(notes: Mapping[str, str], served: Sequence[CompletedRequest]) -> Iterator[str]:
    found = figures(served) if served else None
    for name in TIMES:
        spread: Spread | None = None if found is None else getattr(found, f"{name}_s")
        for rank in PERCENTILES:
            if (note := time_note(name, rank)) not in notes:
                continue
            recorded_ms = 0.0 if spread is None else 1000 * getattr(spread, f"p{rank}")
            most_ms = 1000 * _TIME_S + 0.001 + _DIGITS * recorded_ms
            if abs(float(notes[note]) - recorded_ms) > most_ms:
                yield f"{note} is {notes[note]}, the client recorded {recorded_ms:.6g}"


def _goodput(
    notes: Mapping[str, str], calls: Sequence[_Call], slo_ms: Mapping[str, float]
) -> Iterator[str]:
    if "goodput_share" not in notes:
        return
    served, sent = _served(calls), max(1, len(calls))
    least, most = (
        sum(_kept(each, slo_ms, slack_s) for each in served) / sent
        for slack_s in (-_TIME_S, _TIME_S)
    )
    if not least - _SHARE <= float(notes["goodput_share"]) <= most + _SHARE:
        yield f"goodput_share is {notes['goodput_share']}, the client recorded {most:.4g}"


def _kept(served: CompletedRequest, slo_ms: Mapping[str, float], slack_s: float) -> bool:
    took_s = {"ttft": served.ttft_s, "tpot": served.tpot_s, "latency": served.latency_s}
    for name, bound_ms in slo_ms.items():
        each_s = took_s.get(name)
        if each_s is None and name == "tpot" and served.sequence_tokens < 2:
            continue  # an answer of one token has no TPOT
        if each_s is None or 1000 * (each_s - slack_s) > bound_ms:
            return False
    return True
