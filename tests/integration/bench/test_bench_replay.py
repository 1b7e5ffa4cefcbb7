"""Runs that replay a trace, with bulk work beside it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.bench.load.call import Fate
from orch_sidecar.tools.bench.load.scenario import Scenario, replaying
from orch_sidecar.tools.bench.results.result import Result, row_of
from orch_sidecar.tools.facts.tables.row import Label, parse_notes
from orch_sidecar.tools.traces import Trace, TracedRequest
from tests.integration.bench.measuring import known, measured, url_of
from tests.integration.running import Running
from tests.integration.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.usefixtures("fast_reports")

TRACE = Trace(
    "some.csv",
    "0123456789abcdef" * 4,
    tuple(TracedRequest(0.01 * number, 8 + number % 3, 4) for number in range(20)),
)


def scenario(**more: Any) -> Scenario:
    whole: dict[str, Any] = {"window_s": (0.0, None), "time_factor": 1.0, "length_factor": 1.0}
    fields = replaying(TRACE, **whole | more)
    return Scenario(Label.BATCHED_ONLINE, seed=0, slo_ms={"ttft": 60_000.0}, **fields)


async def replayed(cloud: Running, **more: Any) -> Result:
    return await measured(url_of(cloud), scenario(**more), ids=tuple(range(100)))


def column(result: Result, name: str) -> list[Any]:
    return [getattr(call, name) for call in result.calls]


async def test_requests_are_due_at_the_times_of_the_trace_with_its_lengths(
    engine: ScriptedEngine, cloud: Running
) -> None:
    result = await replayed(cloud)
    assert column(result, "due_s") == [each.at_s for each in TRACE.requests]
    assert result.counts.answered == 20
    sent = [each.json() for each in engine.generating]
    assert sorted((len(each["prompt"]), each["max_tokens"]) for each in sent) == sorted(
        (each.prompt_tokens, each.output_tokens) for each in TRACE.requests
    )
    assert set(column(result, "service_class")) == {"interactive"}


async def test_clients_send_bulk_requests_until_the_last_arrival(cloud: Running) -> None:
    result = await replayed(cloud, bulk_clients=2)
    assert column(result, "fate") == [Fate.ANSWERED] * len(result.calls)
    assert column(result, "service_class").count("interactive") == 20
    assert column(result, "service_class").count("bulk") >= 2
    goodput = known(result.goodput)
    assert (goodput.requests, goodput.share) == (20, 1.0)
    last_due_s = TRACE.requests[-1].at_s
    for due_s, sent_s in zip(column(result, "due_s"), column(result, "sent_s"), strict=True):
        assert due_s is not None or sent_s < last_due_s + 10.0


async def test_row_names_the_trace_and_what_was_replayed_of_it(cloud: Running) -> None:
    result = await replayed(cloud, bulk_clients=2, window_s=(10.0, 60.0), time_factor=0.25)
    notes = parse_notes(row_of(result).scenario_notes)
    assert notes["arrivals"] == "trace:0123456789abcdef"
    assert (notes["trace_window"], notes["trace_time"]) == ("10:60", "0.25")
    assert (notes["bulk_clients"], notes["latency_of"]) == ("2", "interactive")


async def test_second_trace_is_sent_as_bulk(engine: ScriptedEngine, cloud: Running) -> None:
    bulk = replace(TRACE, requests=TRACE.requests[:5], sha256="f" * 64)
    result = await replayed(cloud, bulk=bulk)
    assert column(result, "service_class").count("bulk") == 5
    priorities = Counter(each.header("x-vllm-priority") for each in engine.generating)
    assert sorted(priorities.values()) == [5, 20]
    assert parse_notes(row_of(result).scenario_notes)["bulk_trace"] == "f" * 16
