"""How requests came to an engine, as their client states it: the load, declared once.

Pure. A result has it as a part of its scenario, evidence within that result; a file of another tool
gives as much as it knows, and traces show its arrivals. A row notes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import TIMES, Arrivals

# By their names; None: not noted.
Notes = Mapping[str, str | int | float | None]

_Time = Annotated[str, Field(pattern=f"^({'|'.join(TIMES)})$")]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class TraceDocument:
    """The traces that were replayed. `window_s`: the part, in their own seconds; None: to the end.
    `requests`: of that part. `bulk_clients`: clients with bulk work beside them."""

    name: str
    sha256: str
    requests: int
    window_s: tuple[_Finite, _Finite | None]
    time_factor: _Finite
    length_factor: _Finite
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests came; what is not stated is None.

    `clients`: the limit of concurrent requests, that of a closed loop and 1 of a single stream.
    `rate_per_s`: mean rate of an open loop. `loadgen`: the version of MLCommons' load generator
    that sent them, None if it did not. `trace`: what was replayed. `slo_ms`: the bounds that a
    request must meet to count as goodput, by the names of the times.
    """

    arrivals: Arrivals
    clients: int | None = None
    rate_per_s: _Finite | None = None
    burstiness: _Finite | None = None
    seed: int | None = None
    slo_ms: Mapping[_Time, _Finite] = field(default_factory=dict)
    loadgen: str | None = None
    trace: TraceDocument | None = None

    @property
    def one_by_one(self) -> bool:
        """Whether each request waited for the answer before."""
        return self.arrivals is Arrivals.ONE_BY_ONE or self.clients == 1

    @property
    def text(self) -> str:
        """Describes how requests arrive."""
        name = self.arrivals.replace("_", " ")
        if self.trace is not None:
            return str(self.trace)
        if self.arrivals is Arrivals.CLOSED_LOOP:
            return f"{name} of {self.clients}"
        if self.rate_per_s is None:
            return name
        shape = "" if self.burstiness is None else f" of burstiness {self.burstiness:g}"
        return f"{name} arrivals{shape} at {self.rate_per_s:.4g}/s"

    @property
    def notes(self) -> Notes:
        """How a row notes it, but for the SLO, which is beside what came of it."""
        return {
            "loadgen": self.loadgen,
            "arrivals": self.arrivals.value,
            "rate_per_s": self.rate_per_s,
            "burstiness": self.burstiness,
            "at_once": self.clients,
            **({} if self.trace is None else self.trace.notes),
            "seed": self.seed,
        }
