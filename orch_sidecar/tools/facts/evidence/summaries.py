"""Parses summaries of runs, without their requests: of AIPerf and of MLPerf's tool for endpoints.

Pure. Of AIPerf `profile_export_aiperf.json`, schema version 1; of `inference-endpoint`
`performance/result_summary.json`. What is not used, since it is defined otherwise than by
`figures`:

| in the summary | meaning in the tool |
|---|---|
| `output_token_throughput`, `output_sequence_length(s)`, `tps`, `tpot` | tokens of the text, tokenized again: recorded runs have 40 % more than the engine generated |
| `inter_token_latency`, `output_token_throughput_per_user` | over those tokens, and the inverse |
| `qps` of Poisson arrivals | without the last answer, over the window until that of the last query |
| times to the first token and of requests | from the sending: not used of a schedule, where they count from the due time |

The tokens of AIPerf are those that the engine reported (`total_usage_…`, with `--export-level
records`), those of the other tool the ones that the engine counted: it makes a row with the
engine's states only. It names no model, and has no times of a clock that others share.
"""  # noqa: E501 (a table)

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from orch_sidecar.tools.facts.evidence.imported import (
    Count,
    Fields,
    ImportedRun,
    Rejection,
    loop_of,
)
from orch_sidecar.tools.facts.labels.documents import at
from orch_sidecar.tools.facts.labels.figures import Totals
from orch_sidecar.tools.facts.labels.measured import LATENCIES
from orch_sidecar.tools.facts.labels.observation import RunTimes
from orch_sidecar.tools.facts.tables.notes import Arrivals

_SCHEDULED: Final = (Arrivals.POISSON, Arrivals.CONSTANT)
_S: Final = 1e-3  # of a millisecond
_Number = Annotated[float, Field(gt=0)]
_Clients = Annotated[int, Field(ge=1)] | None


class _Phase(Fields):
    name: str
    type: Literal["poisson", "constant", "concurrency"]
    concurrency: _Clients = None
    rate: _Number | None = None


class _AIPerf(Fields):
    """Times of one request in ms, the duration in s."""

    version: str = at("schema_version", pattern=r"^1\.")
    tool: str = at("aiperf_version")
    models: list[dict[str, Any]] = at("input_config.models.items", min_length=1, max_length=1)
    model: str = at("input_config.models.items.0.name")
    phases: list[_Phase] = at("input_config.phases", min_length=1)
    # A part of a run has no last end.
    cancelled: Literal[False] = at("was_cancelled")
    ended: datetime = at("end_time", strict=False)
    duration_s: _Number = at("benchmark_duration.avg")
    answered: Annotated[float, Field(ge=1)] = at("request_count.avg")
    failed: float = at("error_request_count.avg", default=0.0)
    input_tokens: float = at("total_usage_prompt_tokens.avg")
    output_tokens: _Number = at("total_usage_completion_tokens.avg")
    ttft_p50_ms: float | None = at("time_to_first_token.p50", default=None)
    ttft_p95_ms: float | None = at("time_to_first_token.p95", default=None)
    mean_ms: float = at("request_latency.avg")
    latency_p50_ms: float = at("request_latency.p50")
    latency_p90_ms: float = at("request_latency.p90")
    latency_p95_ms: float = at("request_latency.p95")


class _MLPerf(Fields):
    version: str
    complete: Literal[True]
    pattern: Literal["max_throughput", "poisson", "concurrency"] = at(
        "run_config.load_pattern.type"
    )
    rate: _Number | None = at("run_config.load_pattern.target_qps")
    streams: _Clients = at("run_config.load_pattern.target_concurrency")
    issued: Count = at("n_samples_issued")
    answered: Annotated[int, Field(ge=1)] = at("n_samples_completed")
    duration_ns: Annotated[int, Field(gt=0)]
    ttft_ns: dict[str, float] = at("ttft.percentiles", default={})
    latency_ns: dict[str, float] = at("latency.percentiles")
    latencies_ns: float = at("latency.total")


def aiperf(document: object) -> ImportedRun:
    """Returns the run in a summary of AIPerf. Raises Rejection and ValidationError."""
    found = _AIPerf.model_validate(document)
    phases = [each for each in found.phases if each.name == "profiling"]
    if len(phases) != 1:
        rule = "must have one phase `profiling`: figures of several are of no single load"
        raise Rejection("input_config.phases", f"{len(phases)} phases", rule)
    [phase] = phases
    loop = loop_of(phase.concurrency) if phase.type == "concurrency" else Arrivals(phase.type)
    times = found.model_dump(include={name for name in _AIPerf.model_fields if "_p" in name})
    return _run(
        tool=f"aiperf {found.tool}",
        model=found.model,
        arrivals=loop,
        rate_per_s=phase.rate,
        at_once=phase.concurrency,
        failed=int(found.failed),
        totals=Totals(
            requests=int(found.answered),
            window_s=found.duration_s,
            input_tokens=int(found.input_tokens),
            output_tokens=int(found.output_tokens),
        ),
        latency_ms={
            name: ms for name, ms in times.items() if name.endswith("_ms") and ms is not None
        },
        took_s=found.mean_ms * found.answered * _S,
        times=RunTimes(local_end_s=found.ended.replace(tzinfo=UTC).timestamp()),
    )


def mlperf_endpoints(document: object) -> ImportedRun:
    """Returns the run in a summary of MLPerf's tool. Raises Rejection and ValidationError."""
    found = _MLPerf.model_validate(document)
    at_once = found.streams if found.pattern == "concurrency" else None
    return _run(
        tool=f"mlperf-endpoints {found.version}",
        model="",
        arrivals=Arrivals.POISSON if found.pattern == "poisson" else loop_of(at_once),
        rate_per_s=found.rate,
        at_once=at_once,
        failed=found.issued - found.answered,
        totals=Totals(
            requests=found.answered,
            window_s=found.duration_ns / 1e9,
            input_tokens=0,
            output_tokens=0,
        ),
        latency_ms={
            f"{name}_{place}_ms": ns[key] / 1e6
            for name, ns in (("ttft", found.ttft_ns), ("latency", found.latency_ns))
            for place in LATENCIES[name]
            if (key := f"{float(place[1:])}") in ns
        },
        took_s=found.latencies_ns / 1e9,
        counts_tokens=False,
    )


def _run(
    arrivals: Arrivals, rate_per_s: float | None, latency_ms: dict[str, float], **more: Any
) -> ImportedRun:
    """Returns a run, with a rate if it has a schedule, and with latencies if it has none."""
    scheduled = arrivals in _SCHEDULED
    return ImportedRun(
        arrivals=arrivals,
        rate_per_s=rate_per_s if scheduled else None,
        latency_ms={} if scheduled else latency_ms,
        notes={"window_is": "the tool's duration"},
        **more,
    )
