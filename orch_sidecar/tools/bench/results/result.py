"""The result file of a run, one versioned schema, the identity of the engine in it, and its row.

Times are in seconds, or in milliseconds where the name ends in `_ms`. Of an engine's identity, what
it reports itself has precedence. A given value that contradicts it is an error, not a correction:
figures would be those of other hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.facts.labels import measured
from orch_sidecar.tools.facts.labels.figures import Spread, Totals
from orch_sidecar.tools.facts.labels.observation import Batches
from orch_sidecar.tools.facts.labels.recorded import Call, Calls, RecordedRun
from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.signing.files import Signed
from orch_sidecar.tools.facts.tables.notes import PREFIX_HIT_RATIO
from orch_sidecar.tools.facts.tables.row import Label, Row, format_engine, is_path, last_part

# The columns of `calls`, one row per request.
CALL_COLUMNS: Final = (*[each.name for each in fields(Call)][:-1], "class")
FATES: Final = ("answered", "refused", "failed", "cut")  # of a request of a run that has ended
# Of a trial's requests, those that must meet the SLO. MLPerf Server: the 99th percentile does.
KEPT_SHARE: Final = 0.99
# What a user may give of an engine that does not report it: `engine` is name and version,
# `model_id` of a model that is served by another name.
GIVEN: Final = (*measured.ENGINE_COLUMNS, "model_id", "model_name")


class Status(StrEnum):
    """The verdict on a result."""

    VALID = "valid"
    PRELIMINARY = "preliminary"  # valid, but too short to be published
    UNVERIFIED = "unverified"  # the endpoint does not report what its engine did
    UNBATCHED = "unbatched"  # one client of a sweep: sound, but it makes no row
    INVALID = "invalid"
    INCOMPLETE = "incomplete"  # the run ended early


class Document(BaseModel):
    """A part of a file; rejects unknown fields and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class EngineDocument(Document):
    """The engine under test; None where it does not report.

    `engine`: name and version. `model`: the name that it is served by, which a row may have another
    name for; `weights`: as the engine loaded it. `conditions`: how it is configured, by the names
    of the notes. `given`: what the user gave instead of the engine.
    """

    engine: str | None = None
    model: str
    model_id: str
    model_name: str
    weights: str | None = None
    pool: str | None = None
    profile: str | None = None
    slots_total: int | None = None
    precision: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    conditions: dict[str, str | int | float] | None = None
    epoch: str | None = None
    given: list[str]

    @property
    def missing(self) -> list[str]:
        """What a row requires and is unknown, as sentences."""
        missing = []
        if unknown := [name for name in measured.ENGINE_COLUMNS if getattr(self, name) is None]:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in unknown)
            missing.append(f"the endpoint does not report its hardware and engine: give {flags}")
        if is_path(self.model_id):
            missing.append(f"the model {self.model_id!r} is a path: give --model-id")
        return missing


class ClientDocument(Document):
    """The client, and why it may have limited the result: its `bottleneck`.

    `late_s`: the delay between due (in a closed loop: free) and sent.
    """

    host: dict[str, Any]
    late_s: Spread | None
    loop_lag_s: Spread | None
    cpu_share: float
    bottleneck: list[str]


class Counts(Document):
    """Requests by outcome, and the reasons of those that were not answered.

    `of_other_length`: answers whose prompt or answer did not have the expected number of tokens.
    `counted_by_events`: answers without a reported number of tokens.
    """

    sent: int
    answered: int
    refused: int
    failed: int
    cut: int
    reasons: dict[str, int]
    of_other_length: int
    counted_by_events: int


class Goodput(Document):
    """Answers that met the SLO: their number, and their share of all sent requests."""

    requests: int
    share: float


class Trial(Document):
    """One rate that was tried, and the share of its requests that met the SLO."""

    rate_per_s: float
    requests: int
    share: float
    kept: bool


class LoadgenDocument(Document):
    """What MLCommons' load generator found. `folder`: of its logs. `valid`: its own verdict.
    `figures`: by their names with the unit, its own and that of the calls of the run."""

    folder: str
    valid: bool
    figures: dict[str, tuple[float, float]]


class EvidenceDocument(Document):
    """What the engine signed of the run; `missing`: why it is None."""

    signed: Signed | None = None
    missing: str = ""


class Result(Document):
    """One run.

    `run`: the digest of its secret id, which is `orch.run` of the server spans of its requests.
    `reasons`: for its status; `shortfalls`: what it lacks to be published. `goodput`: of the
    interactive requests, where bulk ones ran beside them. `gaps_s`: between the events of an
    answer, which may have several tokens. `batches`: of the engine's decode steps meanwhile.
    `prefix_hit_ratio`: the share of the looked-up prompt tokens that the prefix cache had.
    `trials`: of the search for its rate. `capabilities`: the engine's documents at both ends.
    """

    schema_version: Literal["orch.bench/2"] = "orch.bench/2"
    id: str
    run: str
    status: Status
    reasons: list[str]
    shortfalls: list[str]
    measurement_type: Label
    began_at: str
    endpoint: str
    scenario: Scenario
    engine: EngineDocument
    client: ClientDocument
    counts: Counts
    tokens_per_s: float | None
    figures: Totals | None
    goodput: Goodput | None
    gaps_s: Spread | None
    batches: Batches | None
    prefix_hit_ratio: float | None
    trials: list[Trial] = []
    loadgen: LoadgenDocument | None = None
    evidence: EvidenceDocument = EvidenceDocument()
    capabilities: list[Any]
    call_columns: tuple[str, ...] = CALL_COLUMNS
    calls: Calls

    @property
    def is_sound(self) -> bool:
        """Whether its figures hold."""
        return self.status not in (Status.INVALID, Status.INCOMPLETE)


def identity(
    model: str, snapshot: Snapshot | None, given: Mapping[str, Any]
) -> tuple[EngineDocument, list[str]]:
    """Returns the identity of an engine, and which of the given values its report contradicts, as
    sentences with both. `model`: the name that it is served by. `snapshot`: its report."""
    model_id = given.get("model_id", model)
    stated: dict[str, Any] = {"model_name": last_part(model_id), "model_id": model_id, **given}
    if snapshot is None:
        if "engine" in given:
            name, _, version = given["engine"].partition(" ")
            stated["engine"] = format_engine(name, version or None)
        return EngineDocument(model=model, given=[*given], **stated), []
    reported = measured.engine_of(snapshot).columns
    wrong = [
        f"--{name.replace('_', '-')} {given[name]!r} contradicts the engine, which reports "
        f"{report!r}: omit the option"
        for name, report in reported.items()
        if name in given and str(given[name]).casefold() != str(report).casefold()
    ]
    named = measured.name_model(model_id, stated["model_name"], snapshot.models, [snapshot.weights])
    if "model_id" in given and named.objection is not None:
        wrong.append(f"--model-id {model_id!r}: {named.objection}")
    for name in ("weights", "pool", "profile", "slots_total", "conditions", "epoch"):
        reported[name] = getattr(snapshot, name)
    own = [name for name in given if name in named.given]
    return EngineDocument(model=model, given=own, **stated | reported), wrong


def row_of(result: Result) -> Row:
    """Returns the row of a table of facts; one that is unverified is to be confirmed.

    An invalid, incomplete or unbatched result makes none: raises ValueError with the reasons.
    """
    engine = result.engine
    if not result.is_sound or result.status is Status.UNBATCHED:
        raise ValueError(f"the result is {result.status}: {'; '.join(result.reasons)}")
    missing = engine.missing
    if any(call.served and call.input_tokens is None for call in result.calls):
        missing.append("the number of prompt tokens is unknown: the responses do not report it")
    if missing:
        raise ValueError("; ".join(missing))
    settings = {"profile": engine.profile, **(engine.conditions or {})}
    known = measured.Engine(
        **engine.model_dump(include={*measured.ENGINE_COLUMNS}),
        batches=None if result.status is Status.UNVERIFIED else result.batches,
        settings=settings | {PREFIX_HIT_RATIO: result.prefix_hit_ratio},
    )
    model = measured.Model(engine.model_id, engine.model_name, engine.given)
    run = RecordedRun.model_validate(result, from_attributes=True).run
    return measured.row_of(run, result.measurement_type, known, model, f"orch-bench:{result.id}")
