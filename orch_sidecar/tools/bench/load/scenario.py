"""The definition of a run: arrivals, length, the SLO that requests must meet, and what is replayed.

A prompt of a trace has as many tokens as the trace says. Blocks with the same id have the same
tokens, so that the prefix cache finds what it found there; all others are random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from orch_sidecar.tools.bench.load.prompts import Prompt
from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.traces import Trace, TracedRequest
from vllm_plugin.contracts.profile import ServiceClass


@dataclass(frozen=True, slots=True)
class Replay:
    """Interactive requests by a trace, and bulk work beside them.

    `trace`, `bulk`: the part that is replayed, with its factors applied; `window_s` and the factors
    are for the record. `bulk_clients`: clients that always have a bulk request.
    """

    trace: Trace
    bulk: Trace | None = None
    bulk_clients: int = 0
    window_s: tuple[float, float] = (0.0, inf)
    time_factor: float = 1.0
    length_factor: float = 1.0

    @property
    def has_bulk(self) -> bool:
        return self.bulk is not None or self.bulk_clients > 0

    @property
    def due_s(self) -> tuple[float, ...]:
        """When each request of the schedule is due."""
        return tuple(request.at_s for request, _, _ in self._schedule())

    @property
    def classes(self) -> list[ServiceClass]:
        """The class of each request of the schedule."""
        return [service_class for _, service_class, _ in self._schedule()]

    def prompts(self, ids: Sequence[int], seed: int) -> Iterator[Prompt]:
        """Yields the prompt of each request of the schedule, made of these token ids."""
        for number, (request, _, trace) in enumerate(self._schedule()):
            tokens = _tokens(request, trace, number, ids, seed)
            yield Prompt(tuple(tokens), request.prompt_tokens, request.output_tokens)

    def _schedule(self) -> list[tuple[TracedRequest, ServiceClass, Trace]]:
        found = [(each, ServiceClass.INTERACTIVE, self.trace) for each in self.trace.requests]
        if self.bulk is not None:
            found += [(each, ServiceClass.BULK, self.bulk) for each in self.bulk.requests]
        return sorted(found, key=lambda entry: entry[0].at_s)


def _tokens(
    request: TracedRequest, trace: Trace, number: int, ids: Sequence[int], seed: int
) -> list[int]:
    """Returns the tokens of a prompt. `number`: of the request."""
    tokens: list[int] = []
    for block in request.prefix_blocks:
        # Blocks of two traces are different texts.
        random = Random(f"{seed} {trace.sha256} block {block}")  # noqa: S311 (no secret)
        tokens += random.choices(ids, k=trace.block_tokens or 0)
    missing = request.prompt_tokens - len(tokens)
    if missing > 0:
        tokens += Random(f"{seed} rest {number}").choices(ids, k=missing)  # noqa: S311 (no secret)
    return tokens[: request.prompt_tokens]


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
    determines when the run ends. `loadgen`: the version of MLCommons' load generator that sends it,
    None if this one does.
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
    loadgen: str | None = None

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
