"""What is to be run: how requests arrive, how many, for how long, and what they must keep.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from orch_sidecar.tools.facts.evidence.figures import CompletedRequest
from orch_sidecar.tools.facts.evidence.measured import Arrivals
from orch_sidecar.tools.facts.tables.row import Label


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must keep to count for goodput, in milliseconds; None is no bound."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None

    @property
    def bounds(self) -> dict[str, float]:
        """Those that there are, by name."""
        named = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "latency": self.latency_ms}
        return {name: bound for name, bound in named.items() if bound is not None}

    def kept_by(self, served: CompletedRequest) -> bool:
        """Whether an answer kept all of them. One whose first token nobody saw keeps no TTFT."""
        took_s = {"ttft": served.ttft_s, "tpot": served.tpot_s, "latency": served.latency_s}
        for name, bound_ms in self.bounds.items():
            each_s = took_s[name]
            if each_s is None and name == "tpot" and served.output_tokens < 2:
                continue  # an answer of one token has no TPOT
            if each_s is None or 1000 * each_s > bound_ms:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run.

    `clients`: of a closed loop, and 1 where requests come one by one. `rate_per_s`: of the
    schedules. It ends when at least `least_requests` were sent and `least_seconds` have passed;
    where all are sent at once, when these have ended.
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

    @property
    def text(self) -> str:
        """How its requests come, in words."""
        name = self.arrivals.value.replace("_", " ")
        if self.arrivals is Arrivals.CLOSED_LOOP:
            return f"{name} of {self.clients}"
        if self.rate_per_s is None:
            return name
        shape = f" (burstiness {self.burstiness:g})" if self.burstiness is not None else ""
        return f"{name}{shape} at {self.rate_per_s:.6g}/s"
