"""The definition of a run: arrivals, length, the SLO that requests must meet, what is replayed, and
where.

Arrival times of an open loop, which sends requests whether or not earlier ones were answered, are
ascending seconds from the start and depend on the seed alone. The first request arrives one
interval after the start, as in `vllm bench serve`. Unlike there, times are not rescaled so that the
last one falls exactly on requests / rate: that would change the distribution of the intervals and
the length of bursts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from math import inf
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

from orch_sidecar.tools.bench.load.call import TIME_DIGITS
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.tools.bench.load.prompts import Prompt
from orch_sidecar.tools.facts.labels.load import Load, TraceDocument
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.traces import Trace, TracedRequest, merged
from vllm_plugin.contracts.profile import ServiceClass

# 80 MB of times. A mistyped rate, or bursts so large that time never advances, ends in an error
# instead of exhausting memory.
MAX_REQUESTS: Final = 10_000_000


def gamma(rate_per_s: float, burstiness: float, seed: int) -> Iterator[float]:
    """Yields times with gamma-distributed intervals of shape `burstiness` and mean 1/rate; endless.

    The same parameter as `vllm bench serve --burstiness`: 1 is Poisson, as in MLPerf's Server
    scenario, below 1 is burstier, above 1 more regular. The coefficient of variation of an interval
    is 1/sqrt(burstiness). At infinity, its limit, each is exactly 1/rate. `rate_per_s`: above 0.
    """
    if burstiness == inf:
        # Not a running sum: its rounding errors would add up over a million requests.
        return (number / rate_per_s for number in count(1))
    random = Random(f"{seed} arrivals")  # noqa: S311 (no secret)
    # Two divisions: the product of the divisors may underflow or overflow a float.
    return accumulate(
        random.gammavariate(burstiness, 1.0) / burstiness / rate_per_s for _ in count()
    )


def until(
    arrivals: Iterator[float], least_requests: int, least_seconds: float
) -> tuple[float, ...]:
    """Returns the shortest prefix of endless times with at least that many requests and seconds.

    Seconds count from the first arrival, where the measured window begins. Raises ValueError for a
    schedule of more than MAX_REQUESTS.
    """
    taken: list[float] = []
    while len(taken) < least_requests or taken[-1] - taken[0] < least_seconds:
        at = next(arrivals)
        if len(taken) == MAX_REQUESTS:
            raise ValueError(
                f"a schedule of {least_requests} requests and {least_seconds:g} s is too long: "
                f"{MAX_REQUESTS} requests, the limit, arrive within {at:g} s; lower the rate or "
                "the duration"
            )
        taken.append(at)
    return tuple(taken)


# The requests of traces in the order of their arrival, each with its class and its own trace.
Traced: TypeAlias = Sequence[tuple[TracedRequest, ServiceClass, Trace]]


def replaying(trace: Trace, bulk: Trace | None = None, **stated: Any) -> dict[str, Any]:
    """Returns the fields of a scenario that replays a trace, with another of bulk requests beside.

    Both as they are replayed. `stated`: further fields of its document.
    """
    if bulk is not None:
        stated |= {"bulk_name": bulk.name, "bulk_sha256": bulk.sha256}
        stated["bulk_requests"] = len(bulk.requests)
    requests = merged(trace, bulk)
    return {
        "arrivals": Arrivals.TRACE,
        "least_requests": len(requests),
        "least_seconds": 0.0,
        "trace": TraceDocument(trace.name, trace.sha256, len(trace.requests), **stated),
        "replay": requests,
    }


def traced_prompts(
    replay: Traced, ids: Sequence[int], seed: int
) -> Iterator[tuple[Prompt, ServiceClass]]:
    """Yields the prompt of each request, made of these token ids, and its class.

    Blocks with the same id have the same tokens, so that the prefix cache finds what it found
    there; all others are random.
    """
    for number, (request, service_class, trace) in enumerate(replay):
        tokens: list[int] = []
        for block in request.prefix_blocks:
            # Blocks of two traces are different texts.
            random = Random(f"{seed} {trace.sha256} block {block}")  # noqa: S311 (no secret)
            tokens += random.choices(ids, k=trace.block_tokens or 0)
        random = Random(f"{seed} rest {number}")  # noqa: S311 (no secret)
        tokens += random.choices(ids, k=max(0, request.prompt_tokens - len(tokens)))
        yield Prompt(tuple(tokens[: request.prompt_tokens]), request.output_tokens), service_class


@dataclass(frozen=True, slots=True)
class Scenario(Load):
    """One run, as it is performed and as its file has it.

    A run ends once `least_requests` were sent and `least_seconds` have passed; an offline run sends
    `least_requests` and ends when they have ended. `prompts`: describes them. `cache_salt`:
    separates the run's prefix cache from that of other runs; None where none was sent. `replay`:
    what `trace` says, which has the times of the requests.
    """

    label: Label
    least_requests: int
    least_seconds: float = 0.0
    seed: int = field(default=0, kw_only=True)
    warm_up_requests: int = 0
    prompts: str = ""
    cache_salt: str | None = None
    replay: Annotated[Traced, Field(exclude=True)] = ()


def schedule(scenario: Scenario) -> tuple[float, ...]:
    """Returns the due times of an open loop, all 0 at once; empty for other arrivals."""
    if scenario.replay:
        return tuple(request.at_s for request, _, _ in scenario.replay)
    if scenario.loadgen is not None:
        return ()
    if scenario.arrivals is Arrivals.AT_ONCE:
        return (0.0,) * scenario.least_requests
    if scenario.rate_per_s is None:
        return ()
    burstiness = inf if scenario.arrivals is Arrivals.CONSTANT else scenario.burstiness or 1.0
    times = gamma(scenario.rate_per_s, burstiness, scenario.seed)
    found = until(times, scenario.least_requests, scenario.least_seconds)
    return tuple(round(at_s, TIME_DIGITS) for at_s in found)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and where.

    `prompts`: returns the prompts of a seed. `for_row`: the result is to become a row of a table.
    `given`: of the engine's identity, by the user. `ids`: the token ids that the prompts of a trace
    are made of. `restarts`: how often a run begins again that others disturb. `trial`: part of a
    search for a rate, where a rate too low to batch is no objection. `loadgen_logs`: the folder of
    the logs of MLCommons' load generator; None: by the id of the run.
    """

    endpoint: Endpoint
    model: str
    scenario: Scenario
    prompts: Callable[[int], Iterator[Prompt]]
    ignore_eos: bool
    given: Mapping[str, Any]
    for_row: bool = False
    ids: tuple[int, ...] = ()
    restarts: int = 0
    trial: bool = False
    loadgen_logs: Path | None = None
