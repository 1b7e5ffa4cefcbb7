"""A run as `orch bench` recorded it: the parts of its result that a row is made of.

Pure. Nothing else of a result is read here: those of other releases have other fields, or more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from http import HTTPStatus
from statistics import fmean
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer
from pydantic_core import ArgsKwargs

from orch_sidecar.tools.facts.labels.documents import at
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.load import Load
from orch_sidecar.tools.facts.labels.observation import Run
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.row import Label
from vllm_plugin.contracts.profile import INTERACTIVE


@dataclass(slots=True)
class Call:
    """One request and its outcome: a row of the result's `calls`.

    Seconds since the start of the run; None means never. `due_s`: its scheduled time, None without
    a schedule. `sent_s`: when sending began, which sets up a connection; None without one.
    `ended_s`: of an answer that was streamed, its last token, as in vLLM's bench and AIPerf; of
    any other, the end of the response. `why`: error code or message of a refusal or failure.
    """

    due_s: float | None = None
    sent_s: float | None = None
    first_s: float | None = None
    ended_s: float | None = None
    status: int | None = None
    fate: str = "pending"
    why: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    queue_ms: float | None = None
    service_class: str | None = None  # not in files from before there were classes

    @classmethod
    def of_columns(cls, stated: object) -> object:
        """Reads a row of a file, which is a list. Raises ValueError."""
        if isinstance(stated, list) and len(stated) < len(fields(Call)) - 1:
            raise ValueError("must have all columns")
        return ArgsKwargs(tuple(stated)) if isinstance(stated, list) else stated

    @property
    def columns(self) -> list[Any]:
        """Its row of a file."""
        return [getattr(self, each.name) for each in fields(Call)]

    @property
    def reached(self) -> bool:
        """Whether it may have reached the engine: a 429 comes from a proxy, a 503 may not."""
        return self.sent_s is not None and self.status != HTTPStatus.TOO_MANY_REQUESTS

    @property
    def in_flight(self) -> Interval | None:
        """From being sent to its end; None if it was never sent, or has not ended."""
        if self.sent_s is None or self.ended_s is None:
            return None
        return Interval(self.sent_s, self.ended_s)

    @property
    def served(self) -> CompletedRequest | None:
        """The input of the figures; None unless it was answered and its length is known."""
        arrived_s = self.sent_s if self.due_s is None else self.due_s
        if self.fate != "answered" or self.output_tokens is None:
            return None
        if arrived_s is None or self.ended_s is None:
            return None
        prompt = self.input_tokens or 0
        return CompletedRequest(arrived_s, self.first_s, self.ended_s, prompt, self.output_tokens)


Calls = list[
    Annotated[Call, BeforeValidator(Call.of_columns), PlainSerializer(lambda call: call.columns)]
]


def answers(calls: Iterable[Call]) -> list[CompletedRequest]:
    """Returns those that were answered, and whose length is known."""
    return [made for call in calls if (made := call.served) is not None]


def waited_for(calls: Sequence[Call], load: Load) -> Sequence[Call]:
    """Returns the calls that latencies and goodput are of: where bulk work ran, the others."""
    if load.trace is None or not load.trace.has_bulk:
        return calls
    return [call for call in calls if call.service_class == INTERACTIVE]


def met_of(calls: Sequence[Call], load: Load) -> list[bool]:
    """Returns whether each that is waited for met the SLO, none without one; what was not answered
    did not."""
    sent = waited_for(calls, load) if load.slo_ms else ()
    return [(made := call.served) is not None and made.meets(load.slo_ms) for call in sent]


class RecordedRun(BaseModel):
    """What the client recorded: the load, the model, what it doubts, and each of its requests."""

    model_config = ConfigDict(allow_inf_nan=False)

    measurement_type: Label
    load: Load = at("scenario")
    model: str = at("engine.model")
    model_id: str = at("engine.model_id")
    model_name: str = at("engine.model_name")
    bottleneck: list[str] = at("client.bottleneck")
    counted_by_events: int = at("counts.counted_by_events")
    calls: Calls = []

    @property
    def run(self) -> Run:
        """What its row states of it. Raises ValueError for a run without figures."""
        of_class, met = waited_for(self.calls, self.load), met_of(self.calls, self.load)
        served, some = answers(self.calls), answers(of_class)
        fates = Counter(call.fate for call in self.calls)
        return Run(
            model=self.model,
            totals=figures(served),
            served=served,
            claim=self.measurement_type,
            load=self.load,
            named={"tool": "orch bench"},
            own_ms=figures(some).latency_ms if some else {},
            failed=fates["failed"],
            outcomes={
                "refused": fates["refused"] or None,
                **{f"slo_{name}_ms": bound for name, bound in self.load.slo_ms.items()},
                names.LATENCY_OF: None if of_class is self.calls else INTERACTIVE.value,
                names.GOODPUT_SHARE: round(fmean(met), 4) if met else None,
            },
            doubts={
                names.CLIENT_BOTTLENECK: "yes" if self.bottleneck else None,
                "counted_by_events": self.counted_by_events or None,
            },
        )
