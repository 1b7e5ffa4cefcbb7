"""Parses the summary of an AIPerf run (`profile_export_aiperf.json`), schema version 1.

Pure. What is not used, since it is defined otherwise than by `figures`:

| in the summary | meaning in AIPerf |
|---|---|
| `output_token_throughput`, `output_sequence_length` | tokens of the text, tokenized again: recorded runs have 40 % more than the engine generated |
| `inter_token_latency` | over those tokens |
| `output_token_throughput_per_user` | the inverse of that |
| `time_to_first_token`, `request_latency` | from the sending of a request: not used of a schedule, where they count from the due time |

The tokens are those that the engine reported (`total_usage_…`, with `--export-level records`).
"""  # noqa: E501 (a table)

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import Field

from orch_sidecar.tools.facts.evidence.imported import (
    Fields,
    ImportedRun,
    Rejection,
    loop_of,
)
from orch_sidecar.tools.facts.labels.documents import at
from orch_sidecar.tools.facts.labels.figures import Totals
from orch_sidecar.tools.facts.labels.observation import RunTimes
from orch_sidecar.tools.facts.tables.notes import Arrivals

_SCHEDULED: Final = {
    "poisson": Arrivals.POISSON,
    "constant": Arrivals.CONSTANT,
}
_Number = Annotated[float, Field(gt=0)]


class _Phase(Fields):
    name: str
    type: str
    concurrency: Annotated[int, Field(ge=1)] | None = None
    rate: _Number | None = None

    @property
    def arrivals(self) -> Arrivals:
        if self.type in _SCHEDULED:
            return _SCHEDULED[self.type]
        if self.type != "concurrency" or self.concurrency is None:
            known = ", ".join(["concurrency", *_SCHEDULED])
            raise Rejection("input_config.phases.type", self.type, f"must be one of {known}")
        return loop_of(self.concurrency)


class _Summary(Fields):
    """Times of one request in ms, the duration in s."""

    version: str = at("schema_version", pattern=r"^1\.")
    tool: str = at("aiperf_version")
    models: list[dict[str, Any]] = at("input_config.models.items", min_length=1, max_length=1)
    model: str = at("input_config.models.items.0.name")
    phases: list[_Phase] = at("input_config.phases", min_length=1)
    cancelled: bool = at("was_cancelled")
    ended: datetime = at("end_time", strict=False)
    duration_s: _Number = at("benchmark_duration.avg")
    answered: Annotated[float, Field(ge=1)] = at("request_count.avg")
    failed: float = at("error_request_count.avg", default=0.0)
    input_tokens: float = at("total_usage_prompt_tokens.avg")
    output_tokens: _Number = at("total_usage_completion_tokens.avg")
    ttft_p50_ms: float | None = at("time_to_first_token.p50", default=None)
    ttft_p95_ms: float | None = at("time_to_first_token.p95", default=None)
    latency_ms: float = at("request_latency.avg")
    latency_p50_ms: float = at("request_latency.p50")
    latency_p90_ms: float = at("request_latency.p90")
    latency_p95_ms: float = at("request_latency.p95")

    @property
    def phase(self) -> _Phase:
        """The phase that the figures are of. Raises Rejection for several."""
        found = [each for each in self.phases if each.name == "profiling"]
        if len(found) != 1:
            rule = "must have one phase `profiling`: figures of several are of no single load"
            raise Rejection("input_config.phases", f"{len(found)} phases", rule)
        return found[0]


def run(document: object) -> ImportedRun:
    """Returns the run in a summary. Raises Rejection and ValidationError."""
    summary = _Summary.model_validate(document)
    if summary.cancelled:
        raise Rejection("was_cancelled", True, "must be false: a part of a run has no last end")
    phase = summary.phase
    times = summary.model_dump(include={name for name in _Summary.model_fields if "_p" in name})
    sent_when_due = phase.arrivals not in _SCHEDULED.values()
    latency_ms = {name: ms for name, ms in times.items() if name.endswith("_ms") and ms is not None}
    return ImportedRun(
        tool=f"aiperf {summary.tool}",
        model=summary.model,
        arrivals=phase.arrivals,
        rate_per_s=phase.rate if not sent_when_due else None,
        at_once=phase.concurrency,
        failed=int(summary.failed),
        totals=Totals(
            requests=int(summary.answered),
            window_s=summary.duration_s,
            input_tokens=int(summary.input_tokens),
            output_tokens=int(summary.output_tokens),
        ),
        latency_ms=latency_ms if sent_when_due else {},
        took_s=summary.latency_ms * summary.answered / 1000,
        notes={"window_is": "the tool's duration"},
        times=RunTimes(local_end_s=summary.ended.replace(tzinfo=UTC).timestamp()),
    )
