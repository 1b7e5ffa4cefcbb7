"""Parses reports of GuideLLM (`--output kind=json`), schema version 2: releases 0.7 and 0.8.

Pure. Each benchmark of a report becomes a MeasuredRun or a Rejection. What its fields mean, and
how they are used (`figures` has this project's definitions):

| in `requests.successful` | meaning in GuideLLM | used as |
|---|---|---|
| `info.timings.targeted_start` | due time by the strategy | arrival, if scheduled |
| `info.timings.request_start` | its head is written to the socket | arrival, closed loops |
| `info.timings.first_token_iteration` | first line of the stream with text | first token |
| `info.timings.last_token_iteration` | last line of the stream with text | end |
| `info.timings.request_end` | the stream is closed | end if not streamed |
| `prompt_tokens`, `output_tokens` | of the usage, or lines of text | input, generated tokens |
| `time_to_first_token_ms` | first token - `request_start` | ignored: not from the due time |
| `time_per_output_token_ms` | (last token - `request_start`) / tokens | ignored: not TPOT, since \
it includes the prefill and the first token |
| `inter_token_latency_ms` | (last - first token) / (tokens - 1) | ignored: TPOT is recomputed |
| `output_tokens_per_second` | of one request, over its latency | ignored |
| `metrics.output_tokens_per_second` | over the run, from its start to its end | ignored |
| `metrics.tokens_per_second` | prompt and generated tokens | ignored |

Times are Unix times. A benchmark with a warm-up or a cool-down is rejected: its figures include
requests that lie partly outside of the window, and a part of a run has no first arrival and last
end. So is a benchmark whose file has only a sample of the requests.

With several processes `poisson` is not a Poisson process: each process draws the same gaps from
the same seed, so every gap occurs once per process (0.8.1). Its arrivals are `repeated_gaps`. With
one process, requests that are created before the start of the run is set are due near 1970 and
are sent in a burst. Such a benchmark is rejected.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from orch_sidecar.tools.facts.evidence.measured import (
    InvalidRun,
    MeasuredRun,
    Rejection,
    parse_claim,
    read_run,
)
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.labels.measured import latency_notes
from orch_sidecar.tools.facts.tables.notes import Arrivals

# Strategies whose requests are due at a time that does not depend on answers.
_SCHEDULED: Final = (Arrivals.CONSTANT, Arrivals.POISSON, Arrivals.REPEATED_GAPS, Arrivals.TRACE)

# The wall clock may be adjusted while a run begins.
_EARLY_S: Final = 1.0

_Count = Annotated[int, Field(ge=0)]
_Limit = Annotated[int, Field(ge=1)] | None


class _Model(BaseModel):
    """The fields that are used; the file has more."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class _Metadata(_Model):
    # Incremented with every breaking change; releases before 0.7 have 1, or none.
    version: Literal[2]
    guidellm_version: str


class _Strategy(_Model):
    type_: Literal["synchronous", "concurrent", "throughput", "constant", "poisson", "trace"]
    rate: Annotated[float, Field(gt=0)] | None = None
    streams: _Limit = None
    worker_count: _Limit = None


class _Backend(_Model):
    # Others run the engine inside the tool or use another protocol: their times differ.
    kind: Literal["openai_http"]
    model: str


class _Phase(_Model):
    percent: float | None = None
    value: float | None = None


class _Profile(_Model):
    max_concurrency: _Limit = None


class _Config(_Model):
    strategy: _Strategy
    # The requested limit; that of the strategy is the capacity of its processes.
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
    """Returns a run or a rejection for each benchmark, one rejection for another file."""
    report = read_run(lambda: _Report.model_validate(document))
    if isinstance(report, Rejection):
        return [report]
    return [read_run(partial(_measured, report, benchmark)) for benchmark in report.benchmarks]


def _measured(report: _Report, document: dict[str, Any]) -> MeasuredRun:
    benchmark = _Benchmark.model_validate(document)
    strategy, made = benchmark.config.strategy, benchmark.scheduler_metrics.requests_made
    for name, phase in (
        ("warmup", benchmark.config.warmup),
        ("cooldown", benchmark.config.cooldown),
    ):
        if phase.percent is not None or phase.value is not None:
            value = phase.percent if phase.value is None else phase.value
            rule = "must be none: figures are those of a whole run, from first arrival to last end"
            raise InvalidRun(f"config.{name}", value, rule)
    failed = made.errored + made.incomplete
    if made.successful == 0:
        rule = f"no request was answered, {failed} failed"
        raise InvalidRun("scheduler_metrics.requests_made.successful", 0, rule)
    answers = benchmark.requests.successful
    if len(answers) != made.successful:
        rule = f"must be all {made.successful}: run GuideLLM without a sample size for metrics"
        raise InvalidRun("requests.successful", f"{len(answers)} requests", rule)
    arrivals = _arrivals(strategy)
    at_once = _at_once(strategy, benchmark.config.profile)
    served = [_served(each, arrivals) for each in answers]
    began_s = benchmark.scheduler_metrics.start_time
    for each in served:
        if each.first_token_s is not None and each.first_token_s > each.ended_s:
            rule = f"must not be after the last token, at {each.ended_s}"
            raise InvalidRun("info.timings.first_token_iteration", each.first_token_s, rule)
    early = [each for each in served if each.arrived_s < began_s - _EARLY_S]
    if early and arrivals in _SCHEDULED:
        rule = f"{len(early)} of {len(served)} requests were due before the run began at {began_s}"
        raise InvalidRun("info.timings.targeted_start", early[0].arrived_s, rule)
    found = figures(served)
    return MeasuredRun(
        tool=f"guidellm {report.metadata.guidellm_version}",
        model=benchmark.config.backend.model,
        claim=parse_claim(report.config.metadata.labels.get("measurement_type"), arrivals, at_once),
        arrivals=arrivals,
        rate_per_s=strategy.rate,
        at_once=at_once,
        requests=found.requests,
        failed=failed,
        input_tokens=found.input_tokens,
        output_tokens=found.output_tokens,
        window_s=found.window_s,
        tokens_per_s=found.tokens_per_s,
        latency_ms=latency_notes(found.times_s, 1000),
        served=served,
        began_at_s=min(each.arrived_s for each in served),
        ended_at_s=max(each.ended_s for each in served),
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
    """Returns the limit of concurrent requests, None without one."""
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
