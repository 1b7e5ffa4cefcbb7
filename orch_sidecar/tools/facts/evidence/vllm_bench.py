"""Files of `vllm bench serve --save-result`, as vLLM 0.32 writes them.

Pure: a parsed file in, what was measured or why not out. What its numbers are, and what they are
here (`served` has our definitions):

| in the file | what vLLM means by it | here |
|---|---|---|
| `start_times` | when it was sent, once `--max-concurrency` let it | arrival, of closed loops |
| `queue_times` | from arrival to being sent | arrival = sent - this, of open loops |
| `ttfts` | sent to the first event with a choice | first token = sent + this |
| `latencies` | sent to the last event with a choice: the end of the stream is not in it | end |
| `output_lens` | the usage's `completion_tokens`, or else the text's tokens counted again | same |
| `total_output_tokens` | of all answers that began, also if they broke off | generated tokens |
| `duration` | begin of the generator to the last stream's end | `window_s` without details |
| `output_throughput` | generated tokens / `duration` | throughput without details |
| `*_tpot_ms` | (latency - ttft) / (generated tokens - 1): without the first token | TPOT |
| `*_ttft_ms` | of `ttfts`: from being sent | TTFT, unless requests waited to be sent |
| `*_itl_ms` | between events, of which one may have several tokens | not taken |
| `total_token_throughput` | prompts and generated tokens / `duration` | not taken |
| `max_concurrent_requests` | requests by whole seconds: too many | not taken |

With `--save-detailed` the file has every request, and the figures are ours of these. Without, the
window is `duration`: longer than ours by the gap before the first arrival (the file does not say
how long it was) and by the closing of the last stream, so the throughput is rather too low.

Of the files that look alike: those of `vllm bench throughput` say `tokens_per_second`, which are
prompt and generated tokens together, and `vllm bench latency` says no tokens.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orch_sidecar.tools.facts.evidence.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.evidence.measured import (
    LATENCIES,
    Arrivals,
    InvalidRun,
    MeasuredRun,
    Rejection,
    claim_of,
    first_rejection,
    latency_notes,
    overlap,
)

TOOL: Final = "vllm bench serve"

# Another definition of a sum differs by far more; a sum of rounded numbers by far less.
_ALIKE: Final = 0.001

# A request that was sent when its turn came waits for the event loop, not for a grant.
_AT_ONCE_S: Final = 0.005

_OTHER_FILES: Final = {
    "tokens_per_second": "of vllm bench throughput: prompt and generated tokens together",
    "avg_latency": "of vllm bench latency: it has no tokens",
    "total_input_sequences": "of a pooling endpoint: nothing was generated",
}

_CHANGING: Final = {
    "ramp_up_strategy": "a rate that changes is no one condition",
    "probe_completed": "probes ran beside the load, and are not counted in it",
}

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]
_Seconds = tuple[float, ...] | None


class _Result(BaseModel):
    """The fields that are read; the file has more."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)

    # Those whose times are as the table says.
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
    """What one file, or one line of a file of `--append-result`, says: of one run."""
    return [_read(document)]


def _read(document: object) -> MeasuredRun | Rejection:
    try:
        if not isinstance(document, dict):
            raise InvalidRun("file", type(document).__name__, f"must be an object, as of {TOOL}")
        _objections(document)
        return _measured(_Result.model_validate(document))
    except ValidationError as error:
        return first_rejection(error)
    except InvalidRun as error:
        return error.refused


def _objections(document: dict[str, Any]) -> None:
    """Raises InvalidRun for a file of another tool, and for a load that is not one condition."""
    for name, what in _OTHER_FILES.items():
        if name in document:
            raise InvalidRun(name, document[name], f"this file is {what}")
    for name, why in _CHANGING.items():
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
        told = getattr(result, name)
        if not math.isclose(told * result.duration, tokens, rel_tol=_ALIKE):
            rule = f"must be {tokens} tokens over the duration, {result.duration:g} s"
            raise InvalidRun(name, told, rule)
    if result.total_output_tokens == 0:
        raise InvalidRun("total_output_tokens", 0, "nothing was generated")
    served = _served(result)
    if served is None:
        window_s, tokens_per_s = result.duration, result.output_throughput
        latency_ms = _summary_ms(result)
    else:
        found = figures(served)
        window_s, tokens_per_s = found.window_s, found.tokens_per_s
        latency_ms = latency_notes(found)
    notes: dict[str, str | int | float] = {}
    if _arrivals(result) is Arrivals.GAMMA:
        notes["burstiness"] = result.burstiness
    if served is None:
        notes["window_is"] = "the tool's duration"
    if result.spec_decode_acceptance_length is not None:
        notes["acceptance_length"] = result.spec_decode_acceptance_length
    return MeasuredRun(
        tool=TOOL,
        model=result.model_id,
        claim=claim_of(result.measurement_type, _arrivals(result), result.max_concurrency),
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
        overlap=None if served is None else overlap(served),
        notes=notes,
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
    """Every whole answer; None of a file without details. Raises InvalidRun."""
    per_request = ("input_lens", "output_lens", "start_times", "ttfts", "latencies", "queue_times")
    lists = [getattr(result, name) for name in per_request]
    if result.start_times is None or any(each is None for each in lists):
        return None
    total = result.completed + result.failed
    for name, values in zip(per_request, lists, strict=True):
        if len(values) != total:
            raise InvalidRun(name, f"{len(values)} values", f"must be of all {total} requests")
    scheduled = result.request_rate != "inf"
    served = []
    for input_tokens, output_tokens, sent_s, ttft_s, latency_s, queue_s in zip(*lists, strict=True):
        if output_tokens == 0:  # what it counts of a request that failed
            continue
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
        rule = f"must be of {result.completed} answers, {result.total_output_tokens} tokens"
        raise InvalidRun("output_lens", f"{counted[1]} tokens of {counted[0]} answers", rule)
    return served


def _summary_ms(result: _Result) -> dict[str, float]:
    """The file's own percentiles, of those that are defined as ours are."""
    limited = result.request_rate != "inf" and result.max_concurrency is not None
    waited = max(result.queue_times or (math.inf,)) > _AT_ONCE_S
    names = {"ttft": "ttft", "tpot": "tpot", "e2el": "latency"}
    if limited and waited:  # theirs are from being sent, ours from arrival
        names = {"tpot": "tpot"}
    notes: dict[str, float] = {}
    for theirs, ours in names.items():
        for at in LATENCIES[ours]:
            value = getattr(result, f"{'median' if at == 'p50' else at}_{theirs}_ms")
            if value is not None:
                notes[f"{ours}_{at}_ms"] = value
    return notes
