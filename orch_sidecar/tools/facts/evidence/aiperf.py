"""Parses summaries of AIPerf (`profile_export_aiperf.json`), schema version 1.

Pure. A summary has no requests. What is not used, since it is defined otherwise than by `figures`:

| in the summary | meaning in AIPerf |
|---|---|
| `output_token_throughput`, `output_sequence_length` | tokens of the text, tokenized again: recorded runs have 40 % more than the engine generated |
| `inter_token_latency`, `output_token_throughput_per_user` | over those tokens, and the inverse |
| times to the first token and of requests | from the sending: not used of a schedule, where they count from the due time |

The tokens are those that the engine reported (`total_usage_…`, with `--export-level records`).
"""  # noqa: E501 (a table)

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Literal

from pydantic import PositiveFloat, PositiveInt

from orch_sidecar.tools.facts.evidence.imported import Fields, Rejection, load_of
from orch_sidecar.tools.facts.labels.documents import at
from orch_sidecar.tools.facts.labels.figures import Totals
from orch_sidecar.tools.facts.labels.observation import Run
from orch_sidecar.tools.facts.tables.notes import PERCENTILES, TIMES, Arrivals, time_note

# Of the tool's sum over its own rounded times.
_TOLERANCE: Final = 0.001
# The fields that have the names of the notes.
_NOTED: Final = {time_note(name, at) for name in TIMES for at in PERCENTILES}


class _Phase(Fields):
    name: str
    type: Literal["poisson", "constant", "concurrency"]
    concurrency: PositiveInt | None = None
    rate: PositiveFloat | None = None


class _Summary(Fields):
    """Times of one request in ms, the duration in s."""

    version: str = at("schema_version", pattern=r"^1\.")
    tool: str = at("aiperf_version")
    models: list[dict[str, Any]] = at("input_config.models.items", min_length=1, max_length=1)
    model: str = at("input_config.models.items.0.name")
    phases: list[_Phase] = at("input_config.phases", min_length=1)
    # A part of a run has no last end.
    cancelled: Literal[False] = at("was_cancelled")
    ended: datetime = at("end_time", strict=False)
    duration_s: PositiveFloat = at("benchmark_duration.avg")
    answered: float = at("request_count.avg", ge=1)
    failed: float = at("error_request_count.avg", default=0.0)
    input_tokens: float = at("total_usage_prompt_tokens.avg")
    output_tokens: PositiveFloat = at("total_usage_completion_tokens.avg")
    ttft_mean_ms: float | None = at("time_to_first_token.avg", default=None)
    ttft_p50_ms: float | None = at("time_to_first_token.p50", default=None)
    ttft_p95_ms: float | None = at("time_to_first_token.p95", default=None)
    mean_ms: float = at("request_latency.avg")
    latency_p50_ms: float = at("request_latency.p50")
    latency_p90_ms: float = at("request_latency.p90")
    latency_p95_ms: float = at("request_latency.p95")


def run(document: object) -> Run:
    """Returns the run in a summary. Raises Rejection and ValidationError."""
    found = _Summary.model_validate(document)
    phases = [each for each in found.phases if each.name == "profiling"]
    if len(phases) != 1:
        rule = "must have one phase `profiling`: figures of several are of no single load"
        raise Rejection("input_config.phases", f"{len(phases)} phases", rule)
    [phase] = phases
    schedule = None if phase.type == "concurrency" else Arrivals(phase.type)
    at_once, took_s = phase.concurrency, found.mean_ms / 1000 * found.answered
    if at_once is not None and took_s > at_once * found.duration_s * (1 + _TOLERANCE):
        rule = f"is too short: at most {at_once} at a time, answers took {took_s:g} s in all"
        raise Rejection("the duration", f"{found.duration_s:g} s", rule)
    return Run(
        named={"tool": f"aiperf {found.tool}"},
        model=found.model,
        load=load_of(schedule, at_once, rate_per_s=schedule and phase.rate),
        failed=int(found.failed),
        totals=Totals(
            requests=int(found.answered),
            window_s=found.duration_s,
            input_tokens=int(found.input_tokens),
            output_tokens=int(found.output_tokens),
        ),
        own_ms={} if schedule else found.model_dump(include=_NOTED, exclude_none=True),
        outcomes={"window_is": "the tool's duration"},
        local_end_s=found.ended.replace(tzinfo=UTC).timestamp(),
        first_tokens_s=found.ttft_mean_ms and found.ttft_mean_ms / 1000 * found.answered,
    )
