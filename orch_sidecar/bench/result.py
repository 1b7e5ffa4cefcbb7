"""The result of a run, as a file: one schema, with a version.

Times are in milliseconds where a name says so, else in seconds; counts are requests or tokens.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from orch_sidecar.facts.measured import Arrivals
from orch_sidecar.facts.row import Label

# The columns of `calls`, one row per request.
CALL_COLUMNS: Final = (
    "due_s", "sent_s", "first_s", "ended_s", "status", "fate", "why",
    "input_tokens", "output_tokens", "queue_ms",
)  # fmt: skip


class Status(StrEnum):
    """What a result is worth."""

    VALID = "valid"
    PRELIMINARY = "preliminary"  # valid, and too short to be published
    UNVERIFIED = "unverified"  # the endpoint does not say what its engine did
    INVALID = "invalid"
    INCOMPLETE = "incomplete"  # it was stopped before its end


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SpreadMs(_Model):
    """How values lie, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class ScenarioTold(_Model):
    """What was run."""

    name: str
    arrivals: Arrivals
    clients: int | None
    rate_per_s: float | None
    burstiness: float | None
    least_requests: int
    least_seconds: float
    warm_up_requests: int
    seed: int
    prompts: str
    slo_ms: dict[str, float]


class EngineTold(_Model):
    """Who was measured. `given`: what was typed by hand, and not told by the engine."""

    engine: str | None
    engine_version: str | None
    model: str
    pool: str | None
    profile: str | None
    slots_total: int | None
    precision: str | None
    gpu: str | None
    gpu_count: int | None
    epoch: str | None
    given: list[str]


class ClientTold(_Model):
    """Who measured, and how it did. `bottleneck`: why the client may be what was measured."""

    host: dict[str, Any]
    late_ms: SpreadMs | None
    loop_lag_ms: SpreadMs | None
    cpu_share: float
    bottleneck: list[str]


class Counts(_Model):
    """Requests by what became of them, and the reasons of those that were not answered."""

    sent: int
    answered: int
    refused: int
    failed: int
    cut: int
    reasons: dict[str, int]
    tokens_counted_by_events: bool


class FiguresTold(_Model):
    """What it came to. See `facts/served.py` for the definitions."""

    window_s: float
    input_tokens: int
    output_tokens: int
    tokens_per_s: float
    requests_per_s: float
    ttft_ms: SpreadMs | None
    tpot_ms: SpreadMs | None
    itl_ms: SpreadMs | None
    latency_ms: SpreadMs
    queue_ms: SpreadMs | None


class Goodput(_Model):
    """Answers that kept the SLO: how many, their share of all that were sent, and per second."""

    requests: int
    share: float
    requests_per_s: float
    tokens_per_s: float


class BatchesTold(_Model):
    """The engine's decode steps in the window."""

    steps: int
    largest: int
    mean: float


class Result(_Model):
    """One run. `reasons`: why it is what `status` says; `shortfalls`: what it lacks to be
    published. `capabilities`: the engine's documents before and after it."""

    schema_version: Literal["orch.bench/1"] = "orch.bench/1"
    id: str
    status: Status
    reasons: list[str]
    shortfalls: list[str]
    measurement_type: Label
    began_at: str
    endpoint: str
    scenario: ScenarioTold
    engine: EngineTold
    client: ClientTold
    counts: Counts
    figures: FiguresTold | None
    goodput: Goodput | None
    batches: BatchesTold | None
    capabilities: list[Any]
    call_columns: tuple[str, ...] = CALL_COLUMNS
    calls: list[list[Any]]
