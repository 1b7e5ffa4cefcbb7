"""Figures against an upstream whose times are known. Bounds are wide: the machine is shared."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest

from orch_sidecar.tools.bench.load import scenario as arrivals
from orch_sidecar.tools.bench.load.call import Request
from orch_sidecar.tools.bench.load.driver import LoadGenerator
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.tools.bench.load.prompts import Prompt, body
from orch_sidecar.tools.bench.results.result import Status
from tests.benchmarks.upstream import MODEL, Script, Upstream
from tests.integration.bench.measuring import CLOSED, known, measured, plan

SCENARIO = replace(CLOSED, least_requests=20, warm_up_requests=4)
SCRIPT = Script(first_token_s=0.060, token_s=0.010, tokens=12)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with Upstream(SCRIPT, tmp_path_factory.mktemp("upstream") / "log") as running:
        yield running


def requests_to(upstream: Upstream) -> Iterator[Request]:
    endpoint = Endpoint.of(upstream.url)
    for prompt in plan(upstream.url, CLOSED).prompts(0):
        written = body(Prompt(prompt.prompt, SCRIPT.tokens), MODEL, ignore_eos=True)
        yield Request(
            endpoint.message(prompt.path, written, {}), prompt.input_tokens, SCRIPT.tokens
        )


def made(upstream: Upstream) -> LoadGenerator:
    upstream.forget()
    return LoadGenerator(Endpoint.of(upstream.url))


def zero_s(load: LoadGenerator) -> float:
    """The monotonic time that is the zero of a load."""
    # A pause between the two readings makes it too small.
    return max(time.monotonic() - load.now() for _ in range(5))


def written_s(upstream: Upstream) -> list[tuple[float, ...]]:
    """When the tokens of each answer were written, by their first."""
    return sorted(each.written_s for each in upstream.seen().requests)


def seen_s(load: LoadGenerator) -> list[list[float]]:
    zero = zero_s(load)
    return sorted([zero + at_s for at_s in call.event_s] for call in load.calls)


async def best_of_rounds(round_: Callable[[], Awaitable[float]], within_s: float) -> float:
    """The least of what some rounds come to; no more of them once that is within the bound.

    What is always late is so in every round, and a machine that is busy is not.
    """
    best_s = await round_()
    for _ in range(7):
        if best_s <= within_s:
            break
        best_s = min(best_s, await round_())
    return best_s


async def test_tokens_are_seen_when_they_were_written(upstream: Upstream) -> None:
    async def off_s() -> float:
        load = made(upstream)
        await load.run(load.closed_loop(requests_to(upstream), 1, 10))
        written, seen = written_s(upstream), seen_s(load)
        assert [len(each) for each in seen] == [SCRIPT.tokens] * 10
        later_s, gaps_s = [], []
        for there, here in zip(written, seen, strict=True):
            later_s += [b - a for a, b in zip(there, here, strict=True)]
            own, others = pairwise(here), pairwise(there)
            gaps_s += [abs((b - a) - (d - c)) for (a, b), (c, d) in zip(own, others, strict=True)]
        assert min(later_s) >= 0
        return max(median(later_s), median(gaps_s))

    # Half of the time between two tokens: a busy machine delays each by some milliseconds.
    assert await best_of_rounds(off_s, 0.005) <= 0.005


async def test_poisson_arrivals_are_sent_when_they_are_due(upstream: Upstream) -> None:
    due_s = arrivals.until(arrivals.gamma(100.0, 1.0, 3), 100, 0.0)

    async def late_s() -> float:
        load = made(upstream)
        await load.run(load.open_loop(requests_to(upstream), due_s))
        each_s = [late for call in load.calls if (late := call.late_s) is not None]
        assert len(each_s) == 100
        assert min(each_s) >= 0
        zero = zero_s(load)
        arrived_s = sorted(each.arrived_s - zero for each in upstream.seen().requests)
        there_s = [at_s - due for at_s, due in zip(arrived_s, due_s, strict=True)]
        assert min(there_s) >= 0
        return max(median(each_s), median(there_s) - 0.004)

    # The mean gap: a machine that does other things delays each by some milliseconds.
    assert await best_of_rounds(late_s, 0.010) <= 0.010


async def test_result_agrees_with_the_upstream(upstream: Upstream) -> None:
    async def off_s() -> float:
        upstream.forget()
        result = await measured(upstream.url, SCENARIO, model=MODEL)
        times_s = known(result.figures).times_s
        assert result.status is Status.UNVERIFIED
        assert result.counts.of_other_length == 0
        ttft, tpot, gaps = known(times_s["ttft"]), known(times_s["tpot"]), known(result.gaps_s)
        assert ttft.p50 >= 0.06
        answered = upstream.seen().requests[SCENARIO.warm_up_requests :]
        pairs = (
            (tpot.p50, median(each.tpot_s for each in answered)),
            (ttft.p50, median(each.ttft_s for each in answered)),
            (gaps.p50, SCRIPT.token_s),
        )
        return max(abs(here_s - there_s) for here_s, there_s in pairs)

    assert await best_of_rounds(off_s, 0.010) <= 0.010
