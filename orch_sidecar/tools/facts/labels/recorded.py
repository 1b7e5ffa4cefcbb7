"""A run as `orch bench` recorded it: the parts of its result that a row is made of.

Pure. `bench.results.result` defines the whole file, which evidence has in it. Nothing else of it is
read here: results of earlier releases have other fields, and those of later ones more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from orch_sidecar.tools.facts.labels.documents import at
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures, overlap
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.measured import Measured, Model, Notes
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import TIMES, Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from vllm_plugin.contracts.profile import ServiceClass

_Time = Annotated[str, Field(pattern=f"^({'|'.join(TIMES)})$")]


class Call(NamedTuple):
    """A row of the result's `calls`. Seconds since the start of the run; None means never."""

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


@dataclass(frozen=True, slots=True)
class TraceDocument:
    """The traces that were replayed. `window_s`: the part, in their own seconds; None: to the end.
    `requests`: of that part. `bulk_clients`: clients with bulk work beside them."""

    name: str
    sha256: str
    requests: int
    window_s: tuple[float, float | None]
    time_factor: float
    length_factor: float
    bulk_clients: int = 0
    bulk_name: str | None = None
    bulk_sha256: str | None = None
    bulk_requests: int = 0

    @property
    def has_bulk(self) -> bool:
        return self.bulk_sha256 is not None or self.bulk_clients > 0

    def __str__(self) -> str:
        from_s, until_s = self.window_s
        digits = self.sha256[: names.TRACE_DIGITS]
        parts = [f"{self.requests} requests of the trace {self.name} ({digits})"]
        if from_s or until_s is not None:
            parts.append(f"from {from_s:g} s" + ("" if until_s is None else f" to {until_s:g} s"))
        parts.append(f"times by {self.time_factor:g}, lengths by {self.length_factor:g}")
        if self.bulk_clients:
            parts.append(f"beside {self.bulk_clients} clients with bulk requests")
        if self.bulk_name is not None:
            parts.append(f"beside {self.bulk_requests} bulk requests of {self.bulk_name}")
        return ", ".join(parts)

    @property
    def notes(self) -> Notes:
        """Which trace was replayed, which part of it, and beside what."""
        from_s, until_s = self.window_s
        bulk = self.bulk_sha256
        return {
            "arrivals": f"{Arrivals.TRACE}:{self.sha256[: names.TRACE_DIGITS]}",
            names.TRACE_WINDOW: f"{from_s:.15g}:{'' if until_s is None else f'{until_s:.15g}'}",
            names.TRACE_TIME: self.time_factor,
            names.TRACE_LENGTHS: self.length_factor,
            names.BULK_CLIENTS: self.bulk_clients or None,
            names.BULK_TRACE: None if bulk is None else bulk[: names.TRACE_DIGITS],
        }


def waited_for(calls: Sequence[Call], trace: TraceDocument | None) -> Sequence[Call]:
    """Returns the calls that latencies and goodput are of: where bulk work ran, the others."""
    if trace is None or not trace.has_bulk:
        return calls
    return [call for call in calls if call.service_class == ServiceClass.INTERACTIVE]


class RecordedRun(BaseModel):
    """What the client recorded: the load, the model, what it doubts, and each of its requests."""

    model_config = ConfigDict(allow_inf_nan=False)

    measurement_type: Label
    arrivals: Arrivals = at("scenario.arrivals")
    clients: int | None = at("scenario.clients", default=None)
    rate_per_s: float | None = at("scenario.rate_per_s", default=None)
    burstiness: float | None = at("scenario.burstiness", default=None)
    seed: int = at("scenario.seed")
    slo_ms: dict[_Time, float] = at("scenario.slo_ms")
    trace: TraceDocument | None = at("scenario.trace", default=None)
    loadgen: str | None = at("scenario.loadgen", default=None)
    model: str = at("engine.model")
    model_id: str = at("engine.model_id")
    model_name: str = at("engine.model_name")
    bottleneck: list[str] = at("client.bottleneck")
    counted_by_events: int = at("counts.counted_by_events")
    calls: list[Call] = []

    @property
    def served(self) -> list[CompletedRequest]:
        """The answers that the figures are of."""
        return [served for call in self.calls if (served := call.served) is not None]

    @property
    def of_class(self) -> Sequence[Call]:
        """The calls that latencies and goodput are of."""
        return waited_for(self.calls, self.trace)

    def measured(self, given: Sequence[str], **more: Any) -> Measured:
        """Returns what its row states. `given`: the columns that are the user's. `more`: the
        engine, what it did and the source. Raises ValueError for a run without figures.
        """
        some = [served for call in self.of_class if (served := call.served) is not None]
        return Measured(
            label=self.measurement_type,
            claim=self.measurement_type,
            model=Model(self.model_id, self.model_name, given),
            totals=figures(self.served),
            overlap=overlap(self.served),
            latency_ms=figures(some).latency_ms if some else {},
            load=self._load,
            outcomes=self._outcomes,
            doubts={
                names.CLIENT_BOTTLENECK: "yes" if self.bottleneck else None,
                "counted_by_events": self.counted_by_events or None,
            },
            served_as=self.model,
            **more,
        )

    @property
    def _load(self) -> Notes:
        """How the requests came."""
        return {
            "tool": "orch bench",
            "loadgen": self.loadgen,
            "arrivals": self.arrivals.value,
            "rate_per_s": self.rate_per_s,
            "burstiness": self.burstiness,
            "at_once": self.clients,
            **({} if self.trace is None else self.trace.notes),
            "seed": self.seed,
        }

    @property
    def _outcomes(self) -> Notes:
        """How many requests were not answered, which SLO there was and how many met it, and of
        which the latencies are."""
        fates = Counter(call.fate for call in self.calls)
        served = [call.served for call in self.of_class]
        met = [each is not None and each.meets(self.slo_ms) for each in served]
        of_class = None if self.of_class is self.calls else ServiceClass.INTERACTIVE.value
        return {
            "refused": fates["refused"] or None,
            "failed": fates["failed"] or None,
            **{f"slo_{name}_ms": bound for name, bound in self.slo_ms.items()},
            names.LATENCY_OF: of_class,
            names.GOODPUT_SHARE: round(sum(met) / len(met), 4) if met and self.slo_ms else None,
        }
