"""Parses reports of GuideLLM (`--output kind=json`), schema version 2: releases 0.7 and 0.8.

Pure. Each benchmark of a report is a run. What is not used, since it
is defined otherwise than by `figures`:

| in `requests.successful`, `metrics` | meaning in GuideLLM |
|---|---|
| `time_to_first_token_ms` | first token - `request_start`, not the due time |
| `time_per_output_token_ms` | (last token - `request_start`) / tokens: with prefill, first token |
| `inter_token_latency_ms` | (last - first token) / (tokens - 1); TPOT is recomputed |
| `output_tokens_per_second` | over the latency of a request, or from start to end of the run |
| `tokens_per_second` | prompt and generated tokens |

Times are Unix times. A benchmark with a warm-up or a cool-down is rejected: its figures include
requests that lie partly outside of the window, and a part of a run has no first arrival and last
end. So is a benchmark whose file has only a sample of the requests.

With several processes `poisson` is not a Poisson process: each process draws the same gaps from
the same seed, so every gap occurs once per process (0.8.1). Its arrivals are `repeated_gaps`. With
one process, requests that are created before the start of the run is set are due near 1970 and
are sent in a burst. Such a benchmark is rejected.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from orch_sidecar.tools.facts.evidence.imported import Claim, Fields, Rejection, absent, load_of
from orch_sidecar.tools.facts.labels.documents import at
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.labels.observation import Run
from orch_sidecar.tools.facts.tables.notes import Arrivals

# Strategies whose requests are due at a time that does not depend on answers.
_SCHEDULED: Final = (Arrivals.CONSTANT, Arrivals.POISSON, Arrivals.TRACE)

# The wall clock may be adjusted while a run begins.
_EARLY_S: Final = 1.0

_UnixTime = Annotated[float, Field(gt=-1e9, lt=1e11)]  # years from 1938 to 5138
_None = Annotated[Any, absent("must be none: figures are of a whole run, from arrival to end")]


class _Request(Fields):
    """`due_s`: by the strategy. `sent_s`: its head was written to the socket. First and last token:
    of lines of the stream with text; None where it was not streamed."""

    due_s: _UnixTime = at("info.timings.targeted_start")
    sent_s: _UnixTime = at("info.timings.request_start")
    first_token_s: _UnixTime | None = at("info.timings.first_token_iteration")
    last_token_s: _UnixTime | None = at("info.timings.last_token_iteration")
    closed_s: _UnixTime = at("info.timings.request_end")
    prompt_tokens: NonNegativeInt
    output_tokens: PositiveInt

    def served(self, *, scheduled: bool) -> CompletedRequest:
        """Returns it as `figures` need it. Raises Rejection."""
        first_s, last_s = self.first_token_s, self.last_token_s
        ended_s = self.closed_s if last_s is None else last_s
        if first_s is not None and not self.sent_s <= first_s <= ended_s:
            rule = f"must be from {self.sent_s}, when it was sent, to the last token at {ended_s}"
            raise Rejection("info.timings.first_token_iteration", first_s, rule)
        arrived_s = self.due_s if scheduled else self.sent_s
        return CompletedRequest(arrived_s, first_s, ended_s, self.prompt_tokens, self.output_tokens)


class _Report(Fields):
    """A report of one benchmark."""

    # Incremented with every breaking change; releases before 0.7 have 1, or none.
    version: Literal[2] = at("metadata.version")
    guidellm_version: str = at("metadata.guidellm_version")
    claim: Claim = at("config.metadata.labels.measurement_type", default=None)
    strategy: Literal["synchronous", "concurrent", "throughput", "constant", "poisson", "trace"] = (
        at("benchmarks.0.config.strategy.type_")
    )
    rate: PositiveFloat | None = at("benchmarks.0.config.strategy.rate", default=None)
    streams: PositiveInt | None = at("benchmarks.0.config.strategy.streams", default=None)
    worker_count: PositiveInt | None = at("benchmarks.0.config.strategy.worker_count", default=None)
    # The requested limit; that of the strategy is the capacity of its processes.
    max_concurrency: PositiveInt | None = at(
        "benchmarks.0.config.profile.max_concurrency", default=None
    )
    # Others run the engine inside the tool or use another protocol: their times differ.
    backend: Literal["openai_http"] = at("benchmarks.0.config.backend.kind")
    model: str = at("benchmarks.0.config.backend.model")
    warmup: _None = at("benchmarks.0.config.warmup.value", default=None)
    warmup_share: _None = at("benchmarks.0.config.warmup.percent", default=None)
    cooldown: _None = at("benchmarks.0.config.cooldown.value", default=None)
    cooldown_share: _None = at("benchmarks.0.config.cooldown.percent", default=None)
    start_s: float = at("benchmarks.0.scheduler_metrics.start_time")
    successful: int = at("benchmarks.0.scheduler_metrics.requests_made.successful", ge=1)
    errored: NonNegativeInt = at("benchmarks.0.scheduler_metrics.requests_made.errored")
    incomplete: NonNegativeInt = at("benchmarks.0.scheduler_metrics.requests_made.incomplete")
    answers: tuple[_Request, ...] = at("benchmarks.0.requests.successful", strict=False)


def parts(document: object) -> list[object]:
    """Returns a report for each benchmark of a report; another document as it is."""
    stated = document if isinstance(document, dict) else {}
    if not isinstance(benchmarks := stated.get("benchmarks"), list):
        return [document]
    return [{**stated, "benchmarks": [each]} for each in benchmarks] or [document]


def run(document: object) -> Run:
    """Returns the run of the one benchmark of a report. Raises Rejection and ValidationError."""
    report = _Report.model_validate(document)
    if len(report.answers) != report.successful:
        count = f"{len(report.answers)} requests"
        rule = f"must be all {report.successful}: run GuideLLM without a sample size for metrics"
        raise Rejection("requests.successful", count, rule)
    # By which requests are due, None where they follow answers or come all at once.
    schedule = Arrivals(report.strategy) if report.strategy in _SCHEDULED else None
    if schedule is Arrivals.POISSON and report.worker_count != 1:
        schedule = Arrivals.REPEATED_GAPS
    at_once = 1 if report.strategy == "synchronous" else report.streams or report.max_concurrency
    served = [each.served(scheduled=schedule is not None) for each in report.answers]
    early = [each.arrived_s for each in served if each.arrived_s < report.start_s - _EARLY_S]
    if early and schedule:
        count = f"{len(early)} of {len(served)} requests"
        rule = f"{count} were due before the run began at {report.start_s}"
        raise Rejection("info.timings.targeted_start", early[0], rule)
    return Run(
        named={"tool": f"guidellm {report.guidellm_version}"},
        model=report.model,
        claim=report.claim,
        load=load_of(schedule, at_once, rate_per_s=report.rate),
        failed=report.errored + report.incomplete,
        totals=figures(served),
        served=served,
        began_at_s=min(each.arrived_s for each in served),
        ended_at_s=max(each.ended_s for each in served),
    )
