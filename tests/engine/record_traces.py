"""Records the traces in `tests/orch_sidecar/tools/facts/traces/counted`, with real engines.

    python -m tests.engine.record_traces FOLDER [home] [cloud] [offline]

home     a warm-up, three streams one after the other, two requests at once
cloud    six streams at once
mixed    of the same engine: three that were coalesced, one with n=2, one whose client disconnected,
         one that was rejected, two of class bulk
offline  six requests at once

Before each there are requests that leave no spans, because their `traceparent` says that they are
not sampled. It is a program, not a test.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import aiohttp
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from orch_sidecar.tools.local.stack import Stack
from tests.engine import trace_file
from tests.engine.clients import post, session, traceparent
from tests.engine.conftest import Stacks, make_plan
from tests.engine.receivers import HttpReceiver

_SLOTS: Final = 8
# Spans of requests; those of the engine's start are left out.
_NAMES: Final = {"admission.wait", "engine.request", "llm_request"}


class Recording:
    """One stack with its collector, and the clients of one file after another."""

    def __init__(self, http: aiohttp.ClientSession, stack: Stack, receiver: HttpReceiver) -> None:
        self._http, self._stack, self._receiver = http, stack, receiver

    async def send(
        self, api: str, scenario: str | None, tokens: int, text: str, **more: Any
    ) -> None:
        """Sends a request and reads its answer, which has `status`."""
        head = more.pop("head", {}) | ({"X-Orch-Scenario": scenario} if scenario else {})
        status = more.pop("status", 200)
        prompt = (
            {"messages": [{"role": "user", "content": text}]} if api == "chat" else {"prompt": text}
        )
        document = {"model": "tiny", "max_tokens": tokens, "ignore_eos": True, **prompt, **more}
        seen = await post(self._http, self._stack.url, api, document, head)
        assert seen.status == status, seen.data

    async def chat(self, scenario: str | None, tokens: int, number: int = 0, **more: Any) -> None:
        text = f"Tell me about slots, {number}." if number else "Tell me about all slots."
        await self.send("chat", scenario, tokens, text, **{"stream": True, **more})

    async def complete(self, scenario: str | None, tokens: int, **more: Any) -> None:
        await self.send("completions", scenario, tokens, "A slot is", **{"stream": False, **more})

    async def leave(self, scenario: str) -> None:
        """Disconnects while the answer is streamed."""
        began = asyncio.Event()
        document = {"model": "tiny", "prompt": "A slot is", "max_tokens": 900, "stream": True}
        head = {"X-Orch-Scenario": scenario}
        client = asyncio.ensure_future(
            post(self._http, self._stack.url, "completions", document, head, began.set)
        )
        await began.wait()
        client.cancel()
        await asyncio.wait([client])
        await asyncio.sleep(0.5)  # the engine has let it go

    async def warm_up(self, at_once: int) -> None:
        """The first steps of each batch size are slow."""
        _, head = traceparent()
        unsampled = {"traceparent": head["traceparent"][:-2] + "00"}
        for _ in range(3):
            await asyncio.gather(*(
                request
                for number in range(at_once)
                for request in (
                    self.chat(None, 30 + number, head=unsampled),
                    self.complete(None, 30 + number, head=unsampled),
                )
            ))  # fmt: skip
        await asyncio.sleep(1.5)

    async def record(self, path: Path, requests: Callable[[], Awaitable[None]]) -> None:
        """Writes the spans of these requests."""
        first = len(self._receiver.exports)
        await requests()
        exported = -1
        while len(self._receiver.exports) != exported:  # both sides export in the background
            exported = len(self._receiver.exports)
            await asyncio.sleep(1.5)
        trace_file.write(path, filter(None, map(_of_requests, self._receiver.exports[first:])))


def _of_requests(export: ExportTraceServiceRequest) -> ExportTraceServiceRequest | None:
    """An export without other spans; None if nothing is left."""
    kept = ExportTraceServiceRequest()
    kept.CopyFrom(export)
    for resource in kept.resource_spans:
        for scope in resource.scope_spans:
            spans = [each for each in scope.spans if each.name in _NAMES or each.name[0] == "/"]
            del scope.spans[:]
            scope.spans.extend(spans)
    return kept if any(s.spans for r in kept.resource_spans for s in r.scope_spans) else None


async def home(run: Recording, folder: Path) -> None:
    async def requests() -> None:
        await run.chat("home-1.warmup", 4)
        for number in (1, 2, 3):
            await run.chat("home-1", 12, number)
        await asyncio.gather(*(run.complete("home-1", 12) for _ in range(2)))

    await run.warm_up(1)
    await run.record(folder / "home.jsonl", requests)


async def cloud(run: Recording, folder: Path) -> None:
    async def six() -> None:
        await asyncio.gather(*(run.chat("cloud-1", 24 + number, number) for number in range(6)))

    async def mixed() -> None:
        same = {"temperature": 0, "seed": 1}
        await asyncio.gather(*(run.chat("shared-1", 200, **same) for _ in range(3)))
        await run.chat("two-1", 8, n=2, stream=False)
        await run.leave("two-1")
        await run.chat("two-1", 8, n=_SLOTS + 1, status=400)
        bulk = {"stream": True, "head": {"X-Orch-Class": "bulk"}}
        await run.complete("bulk-1", 16, **bulk)
        await run.complete("bulk-1", 16, **bulk)

    await run.warm_up(3)
    await run.record(folder / "cloud.jsonl", six)
    await run.record(folder / "mixed.jsonl", mixed)


async def offline(run: Recording, folder: Path) -> None:
    async def six() -> None:
        await asyncio.gather(*(run.complete("offline-1", 20 + number) for number in range(6)))

    await run.warm_up(3)
    await run.record(folder / "offline.jsonl", six)


async def record(folder: Path, profiles: Iterable[str]) -> None:
    """Records the files of these profiles."""
    scripts = {"home": home, "cloud": cloud, "offline": offline}
    logs, stacks = Path(tempfile.mkdtemp()), Stacks()
    for profile in profiles:
        with HttpReceiver() as receiver:
            environ = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            }
            slots = None if profile == "home" else _SLOTS
            plan = make_plan(profile, slots, logs / profile, environ)
            stack = await asyncio.to_thread(stacks.use, profile, plan)
            async with session() as http:
                await scripts[profile](Recording(http, stack, receiver), folder)
            await asyncio.to_thread(stacks.stop, profile)


if __name__ == "__main__":
    asyncio.run(record(Path(sys.argv[1]), sys.argv[2:] or ("home", "cloud", "offline")))
