"""A real engine has compiled everything when it is ready, and nothing of that is in any number."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from typing import Any

import aiohttp

from orch_sidecar.tools.local.check import ReceivedSpan
from orch_sidecar.tools.local.stack import Stack
from orch_sidecar.tools.local.up import phase_of
from tests.engine.clients import body, engine_state, post, session, until
from tests.engine.receivers import HttpReceiver
from vllm_plugin.contracts.statement import STATEMENTS_PATH

_COMPILED = re.compile(r"torchdynamo start tracing (\w+)")
_COUNTS = re.compile(r"vllm:(?!cache_config_info|engine_sleep_state)(\w+)\{.*\} (\S+)")
_CHOICE = {"choice": ["yes", "no"]}

# What a request may ask of the sampler.
_ASKED: tuple[dict[str, Any], ...] = (
    {"logprobs": 1},
    {"logprobs": 5, "n": 2},
    {"prompt_logprobs": 2},
    {"logprobs": 0, "temperature": 0},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    {"bad_words": ["slot"], "logit_bias": {"5": 3}, "min_tokens": 2},
    {"allowed_token_ids": [3, 4, 5]},
    {"top_k": 4, "top_p": 0.5, "min_p": 0.1, "seed": 3},
    {"structured_outputs": _CHOICE},
    {"structured_outputs": {"json": {"type": "object"}}, "logprobs": 1},
    {"structured_outputs": {"regex": "[ab]+"}},
)


def requests_of(receiver: HttpReceiver) -> list[ReceivedSpan]:
    return [span for span in receiver.spans if span.name == "llm_request"]


def log_of(stack: Stack) -> str:
    assert stack.engine is not None
    return stack.engine.log.read_text(errors="replace")


async def test_requests_find_everything_compiled_and_no_trace_of_it(
    cloud: Stack, receiver: HttpReceiver
) -> None:
    """The first test of this engine, which has just become ready."""
    ready = log_of(cloud)
    compiled = _COMPILED.findall(ready)
    assert "batched_count_greater_than" in compiled
    before_listening = ready[: ready.index("Starting vLLM")].splitlines()
    assert any(phase_of([line]) == ("warming up", "") for line in before_listening)
    sequences = 0
    async with session() as http:
        await check_nothing_counted(http, cloud)
        for asked in _ASKED:
            for clients in (1, 3):
                document = body("completions", 8, stream=False, **asked)
                answers = await asyncio.gather(
                    *(post(http, cloud.engine_url, "completions", document) for _ in range(clients))
                )
                assert {answer.status for answer in answers} == {200}, asked
                assert _COMPILED.findall(log_of(cloud)) == compiled, asked
                sequences += clients * asked.get("n", 1)

        async def all_spans_came() -> bool:
            return len(requests_of(receiver)) >= sequences

        await until(all_spans_came)
        assert await finished(http, cloud) == sequences
    assert len(requests_of(receiver)) == sequences


async def finished(http: aiohttp.ClientSession, stack: Stack) -> int:
    """How many sequences a statement of the engine counts."""
    url = f"{stack.engine_url}{STATEMENTS_PATH}"
    async with http.post(url, json={"run": "warm"}) as response:
        document = await response.json()
    payload = json.loads(base64.b64decode(document["statement"]["payload"]))
    count: int = payload["finished"]["count"]
    return count


async def check_nothing_counted(http: aiohttp.ClientSession, stack: Stack) -> None:
    state = await engine_state(http, stack.engine_url)
    zeros = ("batch_seen", "peak", "requests_total", "steps_total", "busy_seconds_total")
    assert {name: state[name] for name in zeros} == dict.fromkeys(zeros, 0)
    assert state["steps_by_batch"] == {}
    assert state["prefill"] == {"tokens": 0, "seconds": 0.0}
    assert state["prefix_cache"] == {"queries_total": 0, "hits_total": 0}
    async with http.get(f"{stack.engine_url}/metrics") as response:
        counts = _COUNTS.findall(await response.text())
    assert len(counts) > 100
    assert [name for name, value in counts if float(value) and "_created" not in name] == []
