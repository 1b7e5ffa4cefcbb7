"""The definition of a run: arrivals, length, and the SLO that requests must meet."""

from __future__ import annotations

from dataclasses import dataclass

from orch_sidecar.tools.bench.load.replay import Replay
from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label


@dataclass(frozen=True, slots=True)
class Slo:
    """The bounds that a request must meet to count as goodput, in milliseconds; None: no bound."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None

    @property
    def bounds(self) -> dict[str, float]:
        """The configured bounds by name."""
        named = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "latency": self.latency_ms}
        return {name: bound for name, bound in named.items() if bound is not None}

    def kept_by(self, served: CompletedRequest) -> bool:
        """Returns whether an answer met all bounds."""
        return served.meets(self.bounds)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run.

    `clients`: concurrency of a closed loop, 1 for single stream. `rate_per_s`: mean rate of an
    open loop. A run ends once `least_requests` were sent and `least_seconds` have passed; an
    offline run sends `least_requests` and ends when they have ended. `replay`: of a trace, which
    determines when the run ends.
    """

    label: Label
    arrivals: Arrivals
    least_requests: int
    least_seconds: float
    seed: int
    clients: int | None = None
    rate_per_s: float | None = None
    burstiness: float | None = None
    warm_up: int = 0
    slo: Slo = Slo()
    replay: Replay | None = None

    @property
    def text(self) -> str:
        """The arrivals as text, for a progress bar."""
        name = self.arrivals.value.replace("_", " ")
        if self.replay is not None:
            return f"{name} {self.replay.trace.name}"
        if self.arrivals is Arrivals.CLOSED_LOOP:
            return f"{name} of {self.clients}"
        if self.rate_per_s is None:
            return name
        shape = f" (burstiness {self.burstiness:g})" if self.burstiness is not None else ""
        return f"{name}{shape} at {self.rate_per_s:.6g}/s"
