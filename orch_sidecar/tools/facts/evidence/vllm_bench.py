"""Parses files of `vllm bench serve --save-result`, as vLLM 0.32 writes them.

Pure. A file becomes a MeasuredRun or a Rejection. What its fields mean, and how they are used
(`figures` has this project's definitions):

| in the file | meaning in vLLM | used as |
|---|---|---|
| `start_times` | when it was sent, after `--max-concurrency` allowed it | arrival, closed loops |
| `queue_times` | from arrival to being sent | arrival = sent - this, open loops |
| `ttfts` | sent to the first event with a choice | first token = sent + this |
| `latencies` | sent to the last event with a choice, before the end of the stream | end |
| `output_lens` | `completion_tokens` of the usage, or else the tokens of the text | same |
| `total_output_tokens` | of all answers that began, also if they broke off | generated tokens |
| `duration` | start of the generator to the end of the last stream | `window_s` without details |
| `output_throughput` | generated tokens / `duration` | throughput without details |
| `*_tpot_ms` | (latency - ttft) / (generated tokens - 1), without the first token | TPOT |
| `*_ttft_ms` | of `ttfts`, from being sent | TTFT, unless requests queued before being sent |
| `*_itl_ms` | between events, each of which may have several tokens | ignored |
| `date` | local time at the end, without a time zone | to judge the engine's states, if given |
| `total_token_throughput` | prompt and generated tokens / `duration` | ignored |
| `max_concurrent_requests` | requests per whole second: too many | ignored |

With `--save-detailed` the file has every request, and the figures are computed from these. Without,
the window is `duration`: longer than by the definition here, since it includes the gap before the
first arrival (not in the file) and the closing of the last stream. The throughput errs on the low
side.

Similar files: those of `vllm bench throughput` have `tokens_per_second`, which counts prompt and
generated tokens together, and those of `vllm bench latency` have no tokens.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from orch_sidecar.tools.facts.evidence.measured import (
    ACCEPTANCE_LENGTH,
    InvalidRun,
    MeasuredRun,
    Rejection,
    parse_claim,
    read_run,
)
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.labels.measured import LATENCIES, latency_notes
from orch_sidecar.tools.facts.tables.notes import Arrivals

TOOL: Final = "vllm bench serve"

# Tolerates rounded numbers, but not another definition of a sum.
_TOLERANCE: Final = 0.001

# A shorter wait is that of the event loop, not of the concurrency limit.
_EVENT_LOOP_DELAY_S: Final = 0.005

_OTHER_FILES: Final = {
    "tokens_per_second": "of vllm bench throughput: prompt and generated tokens together",
    "avg_latency": "of vllm bench latency, and has no tokens",
    "total_input_sequences": "of a pooling endpoint, which generates nothing",
}

_UNSTEADY: Final = {
    "ramp_up_strategy": "the rate must be constant",
    "probe_completed": "the load must run without probes, which are not counted in it",
}

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]
_Seconds = tuple[float, ...] | None


class _Result(BaseModel):
    """The fields that are used; the file has more."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)

    # The backends whose times are those of the table.
    backend: Literal["vllm", "openai", "openai-chat"]
    model_id: str
    request_rate: _Positive | Literal["inf"]
    burstiness: Annotated[float, Field(gt=0, allow_inf_nan=True)]  # infinite: constant gaps
    max_concurrency: Annotated[int, Field(ge=1)] | None
    duration: _Positive
    completed: _Count
    failed: _Count
    total_input_tokens: _Count
    total_output_tokens: _Count
    output_throughput: _Positive
    total_token_throughput: _Positive
    date: str | None = None
    measurement_type: str | None = None
    spec_decode_acceptance_length: float | None = None
    input_lens: tuple[_Count, ...] | None = Field(default=None, strict=False)
    output_lens: tuple[_Count, ...] | None = Field(default=None, strict=False)
    start_times: _Seconds = Field(default=None, strict=False)
    ttfts: _Seconds = Field(default=None, strict=False)
    latencies: _Seconds = Field(default=None, strict=False)
    queue_times: _Seconds = Field(default=None, strict=False)
    median_ttft_ms: float | None = None
    p95_ttft_ms: float | None = None
    median_tpot_ms: float | None = None
    p95_tpot_ms: float | None = None
    median_e2el_ms: float | None = None
    p90_e2el_ms: float | None = None
    p95_e2el_ms: float | None = None


def read(document: object) -> list[MeasuredRun | Rejection]:
    """Returns the run in a file, or in one line of a file of `--append-result`."""
    return [read_run(lambda: _read(document))]


def _read(document: object) -> MeasuredRun:
    if not isinstance(document, dict):
        rule = f"must be an object, as {TOOL} writes it"
        raise InvalidRun("file", type(document).__name__, rule)
    _objections(document)
    return _measured(_Result.model_validate(document))


def _objections(document: dict[str, Any]) -> None:
    """Raises InvalidRun for a file of another tool, and for a load that is not constant."""
    for name, what in _OTHER_FILES.items():
        if name in document:
            raise InvalidRun(name, document[name], f"this file is {what}")
    for name, why in _UNSTEADY.items():
        if document.get(name) is not None:
            raise InvalidRun(name, document[name], why)
    if document.get("completed") == 0:
        raise InvalidRun(
            "completed", 0, f"no request was answered, {document.get('failed')} failed"
        )


def _measured(result: _Result) -> MeasuredRun:
    for name, tokens in (
        ("output_throughput", result.total_output_tokens),
        ("total_token_throughput", result.total_input_tokens + result.total_output_tokens),
    ):
        value = getattr(result, name)
        if not math.isclose(value * result.duration, tokens, rel_tol=_TOLERANCE):
            rule = f"must be {tokens} tokens over the duration, {result.duration:g} s"
            raise InvalidRun(name, value, rule)
    if result.total_output_tokens == 0:
        raise InvalidRun("total_output_tokens", 0, "no token was generated")
    served = _served(result)
    if served is None:
        window_s, tokens_per_s = result.duration, result.output_throughput
        latency_ms = _summary_ms(result)
    else:
        found = figures(served)
        window_s, tokens_per_s = found.window_s, found.tokens_per_s
        latency_ms = latency_notes(found.times_s, 1000)
    notes: dict[str, str | int | float] = {}
    if _arrivals(result) is Arrivals.GAMMA:
        notes["burstiness"] = result.burstiness
    if served is None:
        notes["window_is"] = "the tool's duration"
    if result.spec_decode_acceptance_length is not None:
        notes[ACCEPTANCE_LENGTH] = result.spec_decode_acceptance_length
    return MeasuredRun(
        tool=TOOL,
        model=result.model_id,
        claim=parse_claim(result.measurement_type, _arrivals(result), result.max_concurrency),
        arrivals=_arrivals(result),
        rate_per_s=None if result.request_rate == "inf" else result.request_rate,
        at_once=result.max_concurrency,
        requests=result.completed,
        failed=result.failed,
        input_tokens=result.total_input_tokens,
        output_tokens=result.total_output_tokens,
        window_s=window_s,
        tokens_per_s=tokens_per_s,
        latency_ms=latency_ms,
        served=served or (),
        notes=notes,
        local_end_s=_local_end_s(result.date),
    )


def _arrivals(result: _Result) -> Arrivals:
    if result.request_rate != "inf":
        if result.burstiness == 1:
            return Arrivals.POISSON
        return Arrivals.CONSTANT if math.isinf(result.burstiness) else Arrivals.GAMMA
    if result.max_concurrency is None:
        return Arrivals.AT_ONCE
    return Arrivals.ONE_BY_ONE if result.max_concurrency == 1 else Arrivals.CLOSED_LOOP


def _served(result: _Result) -> list[CompletedRequest] | None:
    """Returns all complete answers, None for a file without details. Raises InvalidRun."""
    per_request = ("input_lens", "output_lens", "start_times", "ttfts", "latencies", "queue_times")
    lists = [getattr(result, name) for name in per_request]
    if result.start_times is None or any(each is None for each in lists):
        return None
    total = result.completed + result.failed
    for name, values in zip(per_request, lists, strict=True):
        if len(values) != total:
            raise InvalidRun(
                name, f"{len(values)} values", f"must have a value for each of {total} requests"
            )
    scheduled = result.request_rate != "inf"
    served = []
    for input_tokens, output_tokens, sent_s, ttft_s, latency_s, queue_s in zip(*lists, strict=True):
        if output_tokens == 0:  # a request that failed
            continue
        if not 0 <= ttft_s <= latency_s:
            rule = f"must be from 0 to the latency of that request, {latency_s} s"
            raise InvalidRun("ttfts", ttft_s, rule)
        served.append(
            CompletedRequest(
                arrived_s=sent_s - queue_s if scheduled else sent_s,
                first_token_s=sent_s + ttft_s,
                ended_s=sent_s + latency_s,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
            )
        )
    counted = len(served), sum(each.output_tokens for each in served)
    if counted != (result.completed, result.total_output_tokens):
        rule = f"must be {result.total_output_tokens} tokens of {result.completed} answers"
        raise InvalidRun("output_lens", f"{counted[1]} tokens of {counted[0]} answers", rule)
    return served


def _local_end_s(date: str | None) -> float | None:
    """Returns the end of the run as if its time zone were UTC, None for a file without its date."""
    if date is None:
        return None
    try:
        return datetime.strptime(date, "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise InvalidRun("date", date, "must be as in 20261121-213438") from None


def _summary_ms(result: _Result) -> dict[str, float]:
    """Returns the file's own percentiles, of those that are defined as here."""
    limited = result.request_rate != "inf" and result.max_concurrency is not None
    waited = max(result.queue_times or (math.inf,)) > _EVENT_LOOP_DELAY_S
    names = {"ttft": "ttft", "tpot": "tpot", "e2el": "latency"}
    if limited and waited:  # measured from being sent, not from arrival
        names = {"tpot": "tpot"}
    notes: dict[str, float] = {}
    for name, note in names.items():
        for at in LATENCIES[note]:
            value = getattr(result, f"{'median' if at == 'p50' else at}_{name}_ms")
            if value is not None:
                notes[f"{note}_{at}_ms"] = value
    return notes
