"""The result of a run, as a file: one schema, with a version.

Times are in milliseconds where a name says so, else in seconds; counts are requests or tokens.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from orch_sidecar.tools.facts.evidence.measured import Arrivals
from orch_sidecar.tools.facts.tables.row import Label

# The columns of `calls`, one row per request. `due_s`: None where it was sent when there was
# room. `first_s`: when its first token came.
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


class Document(BaseModel):
    """Part of a file: what it does not know is an error, and every number is finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SpreadMs(Document):
    """How values lie, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class ScenarioTold(Document):
    """What was run. `cache_salt`: what kept the engine's prefix cache from answering with what
    it knows of other runs; None where it was not asked to."""

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
    cache_salt: str | None
    slo_ms: dict[str, float]


class EngineTold(Document):
    """Who was measured. `model`: the name that it is served by; `model_id`, `model_name`: as a
    row has them. `given`: what was typed by hand, and not told by the engine."""

    engine: str | None
    engine_version: str | None
    model: str
    model_id: str
    model_name: str
    pool: str | None
    profile: str | None
    slots_total: int | None
    precision: str | None
    gpu: str | None
    gpu_count: int | None
    epoch: str | None
    given: list[str]


class ClientTold(Document):
    """Who measured, and how it did.

    `late_ms`: how much later requests were sent than they were due, in a closed loop than there
    was room. `bottleneck`: why the client may be what was measured.
    """

    host: dict[str, Any]
    late_ms: SpreadMs | None
    loop_lag_ms: SpreadMs | None
    cpu_share: float
    bottleneck: list[str]


class Counts(Document):
    """Requests by what became of them, and the reasons of those that were not answered.

    Of the answers: `of_other_length`, where prompt or answer had another number of tokens than
    was asked for; `counted_by_events`, where nobody said how many there were.
    """

    sent: int
    answered: int
    refused: int
    failed: int
    cut: int
    reasons: dict[str, int]
    of_other_length: int
    counted_by_events: int


class FiguresTold(Document):
    """What it came to. See `facts/served.py` for the definitions.

    `requests`: answered, with a length that is known. `input_tokens`: None where of some prompt
    nobody says. `tokens_per_s_per_stream`: generated tokens of an answer over its latency, the
    median. `itl_ms`: between events, of which one may have several tokens. `overlap`: the most
    answers that were being generated at once, by the client's times.
    """

    requests: int
    window_s: float
    input_tokens: int | None
    output_tokens: int
    tokens_per_s: float
    tokens_per_s_per_stream: float
    requests_per_s: float
    overlap: int
    ttft_ms: SpreadMs | None
    tpot_ms: SpreadMs | None
    itl_ms: SpreadMs | None
    latency_ms: SpreadMs
    queue_ms: SpreadMs | None


class Goodput(Document):
    """Answers that kept the SLO: how many, their share of all that were sent, and per second."""

    requests: int
    share: float
    requests_per_s: float
    tokens_per_s: float


class BatchesTold(Document):
    """The engine's decode steps in the window."""

    steps: int
    largest: int
    mean: float


class Trial(Document):
    """One rate that was tried, and the share of its requests that kept the SLO."""

    rate_per_s: float
    requests: int
    share: float
    kept: bool


class Result(Document):
    """One run.

    `reasons`: why it is what `status` says; `shortfalls`: what it lacks to be published.
    `capabilities`: the engine's documents before and after it. `trials`: those by which its rate
    was found.
    """

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
    trials: list[Trial] = []
    capabilities: list[Any]
    call_columns: tuple[str, ...] = CALL_COLUMNS
    calls: list[list[Any]]
