"""Token counts and mistakes as a real engine tells them: to the client, on spans, in metrics."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import aiohttp

from orch_sidecar.tools.local.check import OtlpReceiver, ReceivedSpan
from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import PATHS, body, engine_state, post, session, traceparent
from tests.patience import HANG_S

_TOKENS = 12
_COUNTS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")

Counts = tuple[int, int]


def _asking_for_counts() -> list[tuple[str, dict[str, Any]]]:
    """Requests of all APIs whose answers tell their counts."""
    found = [(api, body(api, _TOKENS, stream=False)) for api in PATHS]
    for api in ("chat", "completions"):
        for options in ({}, {"continuous_usage_stats": True}):
            asked = {"stream_options": {"include_usage": True, **options}}
            found.append((api, body(api, _TOKENS, stream=True, **asked)))
    # A shared decode, and messages and responses, which always tell.
    shared = {"temperature": 0, "stream_options": {"include_usage": True}}
    found.append(("chat", body("chat", _TOKENS, stream=True, **shared)))
    found += [(api, body(api, _TOKENS, stream=True)) for api in ("messages", "responses")]
    return found


def _counts_in(data: bytes, *, stream: bool) -> Counts:
    """Returns the input and output tokens that the client received."""
    documents = [data]
    if stream:
        lines = (line for line in data.split(b"\n") if line.startswith(b"data: {"))
        documents = [line.removeprefix(b"data: ") for line in lines]
    found: dict[str, int] = {}
    for each in map(json.loads, documents):
        inner = each.get("response") or each.get("message") or each
        for name, count in (inner.get("usage") or {}).items():
            if name in ("prompt_tokens", "input_tokens"):
                found["input"] = count
            elif name in ("completion_tokens", "output_tokens"):
                found["output"] = count
    return found["input"], found["output"]


async def _metrics(http: aiohttp.ClientSession, stack: Stack) -> Counter[str]:
    async with http.get(f"{stack.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    samples: Counter[str] = Counter()
    for line in lines:
        if line.startswith(("orch_output_tokens_total", "orch_answers_total")):
            name, _, value = line.rpartition(" ")
            suffix = ",unknown" if 'tokens="unknown"' in name else ""
            samples[name.partition("{")[0] + suffix] += int(float(value))
        elif line.startswith("orch_requests_total"):
            outcome = line.partition('outcome="')[2].partition('"')[0]
            samples[outcome] += int(float(line.rpartition(" ")[2]))
    return samples


async def check_counts(stack: Stack, receiver: OtlpReceiver, rounds: int) -> None:
    """Of all answers that tell their counts these are on the sidecar's span, and in its metrics."""
    asked = _asking_for_counts() * rounds
    traces = [traceparent() for _ in asked]
    async with session() as http:
        before = await _metrics(http, stack)
        answers = await asyncio.gather(
            *(
                post(http, stack.url, api, document, head)
                for (api, document), (_, head) in zip(asked, traces, strict=True)
            )
        )
        after = await _metrics(http, stack)
    generated = 0
    for (api, document), (trace_id, _), answer in zip(asked, traces, answers, strict=True):
        assert answer.status == 200
        counts = _counts_in(answer.data, stream=document["stream"])

        def has_server(spans: list[ReceivedSpan], path: str = PATHS[api]) -> bool:
            return any(span.name == path for span in spans)

        spans = await asyncio.to_thread(receiver.wait, trace_id, has_server, HANG_S)
        [server] = [span for span in spans if span.name == PATHS[api]]
        assert server.attributes["orch.outcome"] == "ok"
        assert tuple(server.attributes[name] for name in _COUNTS) == counts, (api, document)
        generated += 0 if server.attributes.get("orch.coalesced") else counts[1]
    more = after - before
    assert more["orch_output_tokens_total"] == generated
    assert more["orch_answers_total,unknown"] == 0
    assert more["ok"] == len(asked)


async def check_mistakes(stack: Stack) -> None:
    """What the engine refuses with 4xx is the client's mistake, not an error of the engine. Its
    slots are free for the next request, which needs all of them."""
    mistakes: list[dict[str, Any]] = [
        {"model": "nonsense"},
        {"temperature": -3},
        {"prompt": "too long " * 4000},
    ]
    async with session() as http:
        before, engine = await _metrics(http, stack), await engine_state(http, stack.url)
        slots = engine["slots_total"]
        for mistake in mistakes:
            document = body("completions", 4, stream=True, n=slots) | mistake
            answer = await post(http, stack.url, "completions", document)
            assert 400 <= answer.status < 500
        more = await _metrics(http, stack) - before
        assert (await engine_state(http, stack.url))["leased"] == 0
        document = body("completions", 4, stream=True, n=slots)
        assert (await post(http, stack.url, "completions", document)).status == 200
    assert (more["client_error"], more["engine_error"]) == (len(mistakes), 0), more


def check_start(receiver: OtlpReceiver, measurement_type: str) -> None:
    """Every span of the engine has the label, those of its start and of its processes too."""
    spans = [span for span in receiver.spans if span.service == "vllm"]
    assert {span.attributes.get("measurement_type") for span in spans} == {measurement_type}
    assert {span.resource.get("measurement_type") for span in spans} == {measurement_type}
    names = {span.name for span in spans}
    assert names >= {"AsyncMPClient init", "EngineCoreProc init", "Worker init", "Load model"}
