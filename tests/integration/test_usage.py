"""How an answer ended, by its contents: counts on spans and metrics, errors, for every API.

However an engine writes it, whether it is streamed, and whether its decode may be shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.otlp import ERROR, Collect
from tests.integration.running import Start
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer
from tests.orch_sidecar.spoken import SPOKEN, Spoken
from vllm_plugin.contracts.profile import ServiceClass

# A decode for one client, and one that others might share.
KINDS: list[dict[str, Any]] = [{}, {"temperature": 0}]

# In the order of the counts.
TOKENS = ("input", "output", "cache_read.input", "reasoning.output")

Script = Callable[[Answer], Awaitable[None]]


def each_event_alone(spoken: Spoken) -> Script:
    """As vLLM writes a stream: each event with a write of its own, and so the end of the body."""

    async def script(answer: Answer) -> None:
        if spoken.stream:
            answer.head(200, EVENT_STREAM)
            events = (event + b"\n\n" for event in spoken.body.split(b"\n\n")[:-1])
            pieces = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
            pieces.append(b"0\r\n\r\n")
        else:
            length = len(spoken.body)
            fields = [("content-type", "application/json"), ("content-length", str(length))]
            answer.head(200, fields, chunked=False)
            pieces = [spoken.body[at : at + 4000] for at in range(0, length, 4000)]
        for piece in pieces:
            await asyncio.sleep(0.001)  # what was written is read by itself
            answer.write(piece)

    return script


@pytest.mark.parametrize("kind", KINDS)
async def test_counts_of_whole_answers_are_on_their_spans_and_in_the_metrics(
    engine: ScriptedEngine, collect: Collect, start: Start, kind: dict[str, Any]
) -> None:
    running = await start()
    client = await running.client()
    counted = [spoken for spoken in SPOKEN if not spoken.failed]
    for spoken in counted:
        engine.scripts.append(each_event_alone(spoken))
        answer = await client.post(spoken.api.path, stream=spoken.stream, **kind)
        assert answer.body == spoken.body, "byte by byte what the engine sent"
    await running.idle()
    metrics = await running.metrics()
    collector = await collect(running)
    paths = {spoken.api.path for spoken in SPOKEN}
    servers = [span for span in collector.spans if span.name in paths]
    servers.sort(key=lambda span: span.start_ns)
    for spoken, span in zip(counted, servers, strict=True):
        counts = tuple(span.attributes.get(f"gen_ai.usage.{name}_tokens") for name in TOKENS)
        assert (span.name, counts) == (spoken.api.path, spoken.counts), spoken.name
        assert (span.attributes["orch.outcome"], span.status) == ("ok", 0)
    labels = '{class="interactive",measurement_type="batched_online",pool="cloud"'
    for name, place in (("input", 0), ("output", 1)):
        total = sum(spoken.counts[place] or 0 for spoken in counted)
        assert metrics[f"orch_{name}_tokens_total{labels}}}"] == total
    uncounted = sum(spoken.counts[:2] == (None, None) for spoken in counted)
    assert metrics[f'orch_answers_total{labels},tokens="unknown"}}'] == uncounted
    assert metrics[f'orch_answers_total{labels},tokens="known"}}'] == len(counted) - uncounted


@pytest.mark.parametrize("kind", KINDS)
async def test_errors_within_streams_are_errors_and_nothing_is_learned_from_them(
    engine: ScriptedEngine, collect: Collect, start: Start, kind: dict[str, Any]
) -> None:
    running = await start()
    client = await running.client()
    failing = [spoken for spoken in SPOKEN if spoken.failed]
    outlook = running.pool.gate.controller.service_times
    learned = outlook.lengths.expected(ServiceClass.INTERACTIVE, None)
    for spoken in failing:
        engine.scripts.append(each_event_alone(spoken))
        answer = await client.post(spoken.api.path, stream=True, **kind)
        assert (answer.status, answer.body) == (200, spoken.body)
    await running.idle()
    assert outlook.lengths.expected(ServiceClass.INTERACTIVE, None) == learned
    metrics = await running.metrics()
    counted = {name: value for name, value in metrics.items() if "orch_requests_total" in name}
    assert sum(counted.values()) == len(failing)
    assert all('outcome="engine_error"' in name for name in counted)
    assert not any(value for name, value in metrics.items() if name.startswith("orch_answers"))
    collector = await collect(running)
    spans = [span for span in collector.spans if span.name != "admission.wait"]
    assert len(spans) == 2 * len(failing)
    for span in spans:
        assert (span.attributes["orch.outcome"], span.status) == ("engine_error", ERROR)
        assert span.attributes["error.type"] == "engine_error"
