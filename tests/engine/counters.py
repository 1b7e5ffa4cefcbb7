"""What a real engine's spans count: its requests, its decode steps, its prefix cache."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

import aiohttp

from orch_sidecar.tools.local.check import OtlpReceiver
from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import body, post, session, traceparent
from tests.patience import HANG_S

_TOKENS = 16
_CONDITIONS = {
    "orch.speculative": "none",
    "orch.quantization": "none",
    "orch.kv_cache_dtype": "float32",
    "orch.attention_backend": "CPU_ATTN",
    "orch.tensor_parallel": 1,
    "orch.pipeline_parallel": 1,
    "orch.data_parallel": 1,
    "orch.prefill_schedule_interval": 1,
    "orch.kv_offload": "none",
    "orch.max_loras": 0,
    "orch.tokens_per_step": 1,
}
# What the profile sets, and what vLLM chooses for this machine.
_CHOSEN = tuple(
    f"orch.{name}"
    for name in (
        "max_num_batched_tokens",
        "long_prefill_token_threshold",
        "async_scheduling",
        "execution",
    )
)

Labels = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Traced:
    """Sends requests, each in a trace of its own, and reads the labels of their sequences."""

    http: aiohttp.ClientSession
    stack: Stack
    receiver: OtlpReceiver

    async def send(self, **more: Any) -> str:
        """Returns the id of the trace."""
        trace_id, head = traceparent()
        document = body("completions", _TOKENS, stream=True, **more)
        seen = await post(self.http, self.stack.url, "completions", document, head)
        assert seen.status == 200
        return trace_id

    async def labels(self, trace_id: str, n: int = 1) -> list[Labels]:
        spans = await asyncio.to_thread(
            self.receiver.wait, trace_id, lambda found: len(found) == 3 + n, HANG_S
        )
        found = [span.attributes for span in spans if span.name == "llm_request"]
        assert len(found) == n
        return found


async def check_numbers(stack: Stack, receiver: OtlpReceiver) -> None:
    """Requests without spans leave a gap, and sequences of one request share its number."""
    async with session() as http:
        traced = Traced(http, stack, receiver)
        several, single = await traced.send(n=3), await traced.send()
        _, head = traceparent()
        unsampled = {"traceparent": head["traceparent"][:-2] + "00"}
        document = body("completions", _TOKENS, stream=True)
        await post(http, stack.url, "completions", document, unsampled)
        after_unsampled = await traced.send()
        await post(http, stack.engine_url, "completions", document)
        after_direct = await traced.send()

        [first, *others] = await traced.labels(several, n=3)
        number = first["orch.request_number"]
        assert {labels["orch.request_number"] for labels in others} == {number}
        assert first["orch.requests_total"] == number
        for trace_id, further in ((single, 1), (after_unsampled, 3), (after_direct, 5)):
            [labels] = await traced.labels(trace_id)
            assert labels["orch.request_number"] == labels["orch.requests_total"]
            assert labels["orch.request_number"] == number + further


async def check_steps(stack: Stack, receiver: OtlpReceiver) -> None:
    """The sequences of a window account for its decode steps, unless others had part in them."""
    theirs = 5 * _TOKENS
    async with session() as http:
        traced = Traced(http, stack, receiver)
        several, single = await traced.send(n=3), await traced.send()
        document = body("completions", theirs, stream=True)
        await post(http, stack.engine_url, "completions", document)
        after_direct = await traced.send()

        clean = await traced.labels(several, n=3)
        clean += await traced.labels(single)
        # Each sequence lacks the last of its steps, and so do the totals at its end.
        own = sum(labels["orch.steps"] for labels in clean)
        assert abs(_sequences(clean) - own) <= len(clean)
        assert _steps(clean) < sum(labels["orch.engine_steps"] for labels in clean)

        crowded = clean + await traced.labels(after_direct)
        others = _sequences(crowded) - sum(labels["orch.steps"] for labels in crowded)
        # Each of their tokens but the first takes a step; a step may have computed prompts.
        assert 0.9 * theirs < others <= theirs + len(crowded)


def _steps(labels: list[Labels]) -> int:
    """The decode steps of the engine in a window."""
    begin = min(each["orch.decode_steps_total"] - each["orch.steps"] for each in labels)
    return int(max(each["orch.decode_steps_total"] for each in labels) - begin)


def _sequences(labels: list[Labels]) -> int:
    """The sum of their batch sizes."""
    begin = min(
        each["orch.decode_sequences_total"]
        - round(each["orch.steps"] * each["orch.batch_size.mean"])
        for each in labels
    )
    return int(max(each["orch.decode_sequences_total"] for each in labels) - begin)


async def check_conditions(stack: Stack, receiver: OtlpReceiver, prefix_caching: str) -> None:
    """The engine reports how it is configured, and the sidecar passes it on."""
    async with session() as http:
        traced = Traced(http, stack, receiver)
        [labels] = await traced.labels(await traced.send())
        expected = _CONDITIONS | {"orch.prefix_caching": prefix_caching}
        expected |= {name: labels[name] for name in _CHOSEN}
        assert labels["orch.max_num_batched_tokens"] > 0
        assert labels["orch.async_scheduling"] in ("on", "off")
        loaded = labels["orch.loaded"]  # the model of these tests says that its weights are random
        assert re.fullmatch("random:[0-9a-f]{16}", loaded)
        assert {name: labels[name] for name in expected} == expected
        assert labels["orch.weights"] == stack.plan.model
        for url in (stack.url, stack.engine_url):
            async with http.get(f"{url}/v1/capabilities") as response:
                [entry] = (await response.json())["engines"]
            assert entry["weights"] == stack.plan.model
            reported = {f"orch.{name}": value for name, value in entry["conditions"].items()}
            assert reported | {"orch.tokens_per_step": 1} == expected | {"orch.loaded": loaded}


async def check_prefix_cache(stack: Stack, receiver: OtlpReceiver) -> None:
    """A prompt that was sent before is found, and the span tells."""
    prompt = list(range(5, 5 + 300))
    async with session() as http:
        traced = Traced(http, stack, receiver)
        sent = [await traced.send(prompt=prompt) for _ in range(2)]
        found = [_lookups((await traced.labels(trace_id))[0]) for trace_id in sent]
    # Whole blocks of 128 tokens.
    assert found == [(300, 0), (300, 256)]


def _lookups(labels: Labels) -> tuple[int, int]:
    """The tokens that were looked up and found while a request was in the engine."""
    queries, hits = (
        labels[f"orch.prefix_cache.{name}_total"] - labels[f"orch.prefix_cache.{name}_before"]
        for name in ("queries", "hits")
    )
    return queries, hits
