"""Parses files of `vllm bench serve --save-result --save-detailed`, as vLLM 0.32 writes them.

Pure. A file becomes a Run or a Rejection. The figures are computed from its requests. The tool's
own are not used: their window, `duration`, includes the gap before the first arrival and the
closing of the last stream. Nor are `*_itl_ms`, between events, each of which may have several
tokens; `max_concurrent_requests`, per whole second, too many; the mean `request_throughput`.
Similar files: those of `vllm bench throughput` have `tokens_per_second`, which counts prompt and
generated tokens together, and those of `vllm bench latency` have no tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from orch_sidecar.tools.facts.evidence.imported import Claim, Fields, Rejection, absent, load_of
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.labels.observation import Run
from orch_sidecar.tools.facts.tables.notes import Arrivals

# Tolerates rounded numbers, but not another definition of a sum.
_TOLERANCE: Final = 0.001

# A value for each request.
_DETAILS: Final = ("input_lens", "output_lens", "start_times", "ttfts", "latencies", "queue_times")


def _as_if_of_utc(text: object) -> datetime:
    return datetime.strptime(str(text), "%Y%m%d-%H%M%S").replace(tzinfo=UTC)


class _Result(Fields):
    """`duration`: from the start of the generator to the end of the last stream.
    `output_throughput`: generated tokens over it. `date`: local time at the end, without a zone.

    Of each request: `start_times`, when it was sent, after `max_concurrency` allowed it;
    `queue_times`, from its arrival to that; `ttfts` and `latencies`, from being sent to the first
    and the last event with a choice; `output_lens`, of the usage, or else the tokens of the text.
    """

    ramp_up_strategy: Annotated[Any, absent("the rate must be constant")] = None
    probe_completed: Annotated[Any, absent("probes are not counted in the load")] = None
    # The backends whose times are those.
    backend: Literal["vllm", "openai", "openai-chat"]
    model_id: str
    request_rate: PositiveFloat | Literal["inf"]
    burstiness: Annotated[float, Field(gt=0, allow_inf_nan=True)]  # infinite: constant gaps
    max_concurrency: PositiveInt | None
    duration: PositiveFloat
    completed: PositiveInt
    failed: NonNegativeInt
    total_output_tokens: NonNegativeInt
    output_throughput: PositiveFloat
    date: Annotated[datetime, BeforeValidator(_as_if_of_utc)] | None = None
    measurement_type: Claim = None
    spec_decode_acceptance_length: float | None = None
    input_lens: Sequence[NonNegativeInt] = ()
    output_lens: Sequence[NonNegativeInt] = ()
    start_times: Sequence[float] = ()
    ttfts: Sequence[float] = ()
    latencies: Sequence[float] = ()
    queue_times: Sequence[Annotated[float, Field(ge=0)]] = ()

    @property
    def schedule(self) -> Arrivals | None:
        """By which requests are due, None where they follow answers or come all at once."""
        if self.request_rate == "inf":
            return None
        if self.burstiness == 1:
            return Arrivals.POISSON
        return Arrivals.CONSTANT if math.isinf(self.burstiness) else Arrivals.GAMMA


def run(document: object) -> Run:
    """Returns the run in a file, or in one line of a file of `--append-result`. Raises Rejection
    and ValidationError."""
    result = _Result.model_validate(document)
    tokens, tokens_per_s = result.total_output_tokens, result.output_throughput
    if not math.isclose(tokens_per_s * result.duration, tokens, rel_tol=_TOLERANCE):
        rule = f"must be {tokens} tokens over the duration, {result.duration:g} s"
        raise Rejection("output_throughput", tokens_per_s, rule)
    served = _served(result)
    return Run(
        named={"tool": "vllm bench serve"},
        model=result.model_id,
        claim=result.measurement_type,
        load=load_of(
            result.schedule,
            result.max_concurrency,
            rate_per_s=None if result.request_rate == "inf" else result.request_rate,
            burstiness=result.burstiness if result.schedule is Arrivals.GAMMA else None,
        ),
        failed=result.failed,
        totals=figures(served),
        served=served,
        outcomes={"acceptance_length": result.spec_decode_acceptance_length},
        local_end_s=None if result.date is None else result.date.timestamp(),
    )


def _served(result: _Result) -> list[CompletedRequest]:
    """Returns all complete answers. Raises Rejection."""
    lists = [getattr(result, name) for name in _DETAILS]
    total = result.completed + result.failed
    for name, values in zip(_DETAILS, lists, strict=True):
        if len(values) != total:
            rule = f"must have a value for each of {total} requests, as with --save-detailed"
            raise Rejection(name, f"{len(values)} values", rule)
    served = []
    for input_tokens, output_tokens, sent_s, ttft_s, latency_s, queue_s in zip(*lists, strict=True):
        if output_tokens == 0:  # a request that failed
            continue
        if not 0 <= ttft_s <= latency_s:
            rule = f"must be from 0 to the latency of that request, {latency_s} s"
            raise Rejection("ttfts", ttft_s, rule)
        arrived_s = sent_s - queue_s if result.schedule else sent_s
        first_s, ended_s = sent_s + ttft_s, sent_s + latency_s
        served.append(CompletedRequest(arrived_s, first_s, ended_s, input_tokens, output_tokens))
    counted = len(served), sum(each.output_tokens for each in served)
    if counted != (result.completed, result.total_output_tokens):
        rule = f"must be {result.total_output_tokens} tokens of {result.completed} answers"
        raise Rejection("output_lens", f"{counted[1]} tokens of {counted[0]} answers", rule)
    return served
