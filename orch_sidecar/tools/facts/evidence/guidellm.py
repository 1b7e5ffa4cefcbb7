"""Reports of GuideLLM (`--output kind=json`), schema version 2: releases 0.7 and 0.8.

Pure: a parsed report in, for each of its benchmarks what was measured or why not out. What its
numbers are, and what they are here (`served` has our definitions):

| in `requests.successful` | what GuideLLM means by it | here |
|---|---|---|
| `info.timings.targeted_start` | when the strategy wanted it sent | arrival, if scheduled |
| `info.timings.request_start` | its head being written to the socket | arrival, of closed loops |
| `info.timings.first_token_iteration` | the first line of the stream with text | first token |
| `info.timings.last_token_iteration` | the last one with text | end |
| `info.timings.request_end` | the stream closed | end, of an answer that was not streamed |
| `prompt_tokens`, `output_tokens` | the usage's; else lines of text | input, generated tokens |
| `time_to_first_token_ms` | first token - `request_start` | not taken: not from the due time |
| `time_per_output_token_ms` | (last token - `request_start`) / tokens: the first one and the \
prompt are in it | not taken: it is no TPOT |
| `inter_token_latency_ms` | (last - first token) / (tokens - 1) | TPOT, computed again |
| `output_tokens_per_second` | of one request: over its latency | not taken |
| `metrics.output_tokens_per_second` | over the run, from its start to its end | not taken |
| `metrics.tokens_per_second` | prompts and generated tokens | not taken |

Times are the wall clock's. A benchmark with a warm-up or a cool-down is refused: requests that
lie half in the window are in its figures, and a part of a run has no first arrival and last end.
So is one of which only a sample of the requests is in the file.

`poisson` by several processes is not Poisson: each draws the same gaps from the same seed, so
that every gap comes once for each of them (0.8.1). It is told as `repeated_gaps`. By one process
it sometimes is not, either: requests that it makes before the run's start is set are due near
1970 and sent at once, in a burst. Such a benchmark is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orch_sidecar.tools.facts.evidence.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.evidence.measured import (
    Arrivals,
    InvalidRun,
    MeasuredRun,
    Rejection,
    claim_of,
    first_rejection,
    latency_notes,
    overlap,
)

# Strategies whose requests are due at a time, whatever the answers do.
_SCHEDULED: Final = (Arrivals.CONSTANT, Arrivals.POISSON, Arrivals.REPEATED_GAPS, Arrivals.TRACE)

# A wall clock may be set a little while a run begins.
_EARLY_S: Final = 1.0

_Count = Annotated[int, Field(ge=0)]
_Limit = Annotated[int, Field(ge=1)] | None


class _Model(BaseModel):
    """Fields that are read; the file has more."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class _Metadata(_Model):
    # GuideLLM counts it up with every breaking change: releases before 0.7 say 1, or nothing.
    version: Literal[2]
    guidellm_version: str


class _Strategy(_Model):
    type_: Literal["synchronous", "concurrent", "throughput", "constant", "poisson", "trace"]
    rate: Annotated[float, Field(gt=0)] | None = None
    streams: _Limit = None
    worker_count: _Limit = None


class _Backend(_Model):
    # Others run the engine within the tool, or speak another protocol: their times are not these.
    kind: Literal["openai_http"]
    model: str


class _Phase(_Model):
    percent: float | None = None
    value: float | None = None


class _Profile(_Model):
    max_concurrency: _Limit = None


class _Config(_Model):
    strategy: _Strategy
    # A strategy's own limit is what its processes were made for; what was asked for is here.
    profile: _Profile
    backend: _Backend
    warmup: _Phase
    cooldown: _Phase


class _Timings(_Model):
    targeted_start: float
    request_start: float
    first_token_iteration: float | None
    last_token_iteration: float | None
    request_end: float


class _Info(_Model):
    timings: _Timings


class _Request(_Model):
    info: _Info
    prompt_tokens: _Count
    output_tokens: Annotated[int, Field(ge=1)]


class _Requests(_Model):
    successful: tuple[_Request, ...] = Field(strict=False)


class _Made(_Model):
    successful: _Count
    errored: _Count
    incomplete: _Count


class _SchedulerMetrics(_Model):
    start_time: float
    requests_made: _Made


class _Benchmark(_Model):
    config: _Config
    scheduler_metrics: _SchedulerMetrics
    requests: _Requests


class _Labels(_Model):
    labels: dict[str, str] = {}


class _Run(_Model):
    metadata: _Labels = _Labels()


class _Report(_Model):
    metadata: _Metadata
    config: _Run = _Run()
    benchmarks: tuple[dict[str, Any], ...] = Field(strict=False, min_length=1)


def read(document: object) -> list[MeasuredRun | Rejection]:
    """What each benchmark of a report says; one refusal of what is no such report."""
    try:
        report = _Report.model_validate(document)
    except ValidationError as error:
        return [first_rejection(error)]
    return [_read(report, benchmark) for benchmark in report.benchmarks]


def _read(report: _Report, benchmark: dict[str, Any]) -> MeasuredRun | Rejection:
    try:
        return _measured(report, _Benchmark.model_validate(benchmark))
    except ValidationError as error:
        return first_rejection(error)
    except InvalidRun as error:
        return error.refused


def _measured(report: _Report, benchmark: _Benchmark) -> MeasuredRun:
    strategy, made = benchmark.config.strategy, benchmark.scheduler_metrics.requests_made
    for name, phase in (
        ("warmup", benchmark.config.warmup),
        ("cooldown", benchmark.config.cooldown),
    ):
        if phase.percent is not None or phase.value is not None:
            told = phase.percent if phase.value is None else phase.value
            rule = (
                "must be none: figures are of a whole run, from its first arrival to its last end"
            )
            raise InvalidRun(f"config.{name}", told, rule)
    failed = made.errored + made.incomplete
    if made.successful == 0:
        rule = f"no request was answered, {failed} failed"
        raise InvalidRun("scheduler_metrics.requests_made.successful", 0, rule)
    answers = benchmark.requests.successful
    if len(answers) != made.successful:
        rule = f"must be all {made.successful}: run it without a sample size for its metrics"
        raise InvalidRun("requests.successful", f"{len(answers)} requests", rule)
    arrivals = _arrivals(strategy)
    at_once = _at_once(strategy, benchmark.config.profile)
    served = [_served(each, arrivals) for each in answers]
    began_s = benchmark.scheduler_metrics.start_time
    early = [each for each in served if each.arrived_s < began_s - _EARLY_S]
    if early and arrivals in _SCHEDULED:
        rule = f"{len(early)} of {len(served)} requests were due before the run began, {began_s}"
        raise InvalidRun("info.timings.targeted_start", early[0].arrived_s, rule)
    found = figures(served)
    return MeasuredRun(
        tool=f"guidellm {report.metadata.guidellm_version}",
        model=benchmark.config.backend.model,
        claim=claim_of(report.config.metadata.labels.get("measurement_type"), arrivals, at_once),
        arrivals=arrivals,
        rate_per_s=strategy.rate,
        at_once=at_once,
        requests=found.requests,
        failed=failed,
        input_tokens=found.input_tokens,
        output_tokens=found.output_tokens,
        window_s=found.window_s,
        tokens_per_s=found.tokens_per_s,
        latency_ms=latency_notes(found),
        overlap=overlap(served),
    )


def _arrivals(strategy: _Strategy) -> Arrivals:
    match strategy.type_:
        case "synchronous":
            return Arrivals.ONE_BY_ONE
        case "concurrent":
            return Arrivals.ONE_BY_ONE if strategy.streams == 1 else Arrivals.CLOSED_LOOP
        case "throughput":
            return Arrivals.AT_ONCE
        case "poisson" if strategy.worker_count != 1:
            return Arrivals.REPEATED_GAPS
        case scheduled:
            return Arrivals(scheduled)


def _at_once(strategy: _Strategy, profile: _Profile) -> int | None:
    """The most requests that were let be under way at once."""
    return 1 if strategy.type_ == "synchronous" else strategy.streams or profile.max_concurrency


def _served(request: _Request, arrivals: Arrivals) -> CompletedRequest:
    timings = request.info.timings
    last_s = timings.last_token_iteration
    return CompletedRequest(
        arrived_s=timings.targeted_start if arrivals in _SCHEDULED else timings.request_start,
        first_token_s=timings.first_token_iteration,
        ended_s=timings.request_end if last_s is None else last_s,
        input_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
    )
