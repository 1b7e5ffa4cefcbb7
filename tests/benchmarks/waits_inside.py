"""Measures what requests wait inside vLLM, in slots that they do not use.

    python -m tests.benchmarks.waits_inside [--seconds 40] [--max-loras 1 2] [--requests 80]
        [--grammars 20]

Each engine (real, on a CPU) has eight slots and serves four adapters. In front of it are two
sidecars, at which clients ask for random adapters, or for the base model, one request after the
other. Prints what requests waited inside vLLM (from its spans), in steps, through the sidecars and
directly; how far predicted starts were from those that followed; waits and answers by adapter. Then
sends requests through a sidecar in front of two engines, and counts the loads of adapters where it
places them, and where each goes to one of both at random. Last sends requests with JSON schemas,
each of which is new to the engine: they wait until its grammar is compiled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from aiohttp import ClientSession

from orch_sidecar.tools.local.check import OtlpReceiver
from orch_sidecar.tools.local.stack import Stack
from tests.benchmarks.sidecars.load import percentile
from tests.engine.adapter import write_adapter
from tests.engine.clients import body, engine_state, post, session
from tests.engine.conftest import make_plan
from tests.engine.sidecars import all_ready, sidecar
from tests.patience import READY_WITHIN_S

ADAPTERS: Final = ("a", "b", "c", "d")
SLOTS: Final = 8
CLIENTS: Final = 4  # at each of two sidecars
TOKENS: Final = (16, 96)
THINKS_S: Final = 0.5
_QUEUE: Final = re.compile(r"queue;dur=([0-9.]+)")


class RefusedError(Exception):
    """A request was refused for now."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. Times in milliseconds; `waited`, `predicted`: None directly, or not queued."""

    adapter: str
    trace_id: str
    total: float
    waited: float | None
    predicted: float | None


async def ask(
    http: ClientSession,
    url: str,
    model: str,
    tokens: int,
    headers: Mapping[str, str] = MappingProxyType({}),
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Answer:
    """Asks, and reads the answer. `more`: fields of the body."""
    trace_id, begun = secrets.token_hex(16), time.monotonic()
    traced = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
    asked = body("chat", tokens, stream=True, model=model, **more)
    seen = await post(http, url, "chat", asked, traced | dict(headers))
    if seen.status == 429:
        raise RefusedError(json.loads(seen.data)["error"]["message"])
    assert seen.status == 200, seen.data[:300]
    fields = {name.lower(): value for name, value in seen.headers.items()}
    waited = _QUEUE.search(fields.get("server-timing", ""))
    predicted = fields.get("x-orch-predicted-start-ms")
    return Answer(
        model,
        trace_id,
        1000 * (time.monotonic() - begun),
        None if waited is None else float(waited[1]),
        None if predicted is None else float(predicted),
    )


async def load(http: ClientSession, urls: Sequence[str], seconds: float) -> list[Answer]:
    """A closed loop of clients, which ask for adapters at random, seldom for the base model."""
    answers: list[Answer] = []
    until = time.monotonic() + seconds

    async def client(number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < until:
            model = draw.choice((*ADAPTERS, *ADAPTERS, "tiny"))
            url = urls[number % len(urls)]
            try:
                answers.append(await ask(http, url, model, draw.randint(*TOKENS)))
            except RefusedError as refused:
                print(f"  refused: {refused}")
            await asyncio.sleep(draw.uniform(0, THINKS_S))

    await asyncio.gather(*(client(number) for number in range(2 * CLIENTS)))
    return answers


def waits_in_vllm_ms(receiver: OtlpReceiver, answers: Sequence[Answer]) -> list[float]:
    """What each request waited inside vLLM, by its span."""
    ids = {answer.trace_id for answer in answers}

    def found() -> dict[str, float]:
        return {
            span.trace_id: 1000 * span.attributes["gen_ai.latency.time_in_queue"]
            for span in receiver.spans
            if span.name == "llm_request" and span.trace_id in ids
        }

    until = time.monotonic() + 20.0
    while len(waits := found()) < len(ids) and time.monotonic() < until:
        time.sleep(0.2)
    assert len(waits) == len(ids), f"{len(waits)} spans of {len(ids)} requests"
    return [*waits.values()]


def describe(name: str, answers: Sequence[Answer], waits: Sequence[float], step_ms: float) -> None:
    inside = percentile(waits, 99)
    print(
        f"{name}: {len(answers)} answers; inside vLLM p50 {statistics.median(waits):.1f}, p99 "
        f"{inside:.1f} ms ({inside / step_ms:.1f} steps of {step_ms:.1f} ms), most {max(waits):.0f}"
    )
    queued = [(a.waited, a.predicted) for a in answers if a.waited and a.predicted]
    if queued:
        waited = sum(each for each, _ in queued)
        off = sum(abs(each - predicted) for each, predicted in queued)
        bias = sum(predicted - each for each, predicted in queued)
        print(
            f"  {len(queued)} waited {waited / len(queued):.0f} ms in the mean; predictions "
            f"{100 * off / waited:.0f} % off in the mean, {100 * bias / waited:+.0f} % in sum"
        )
    for adapter in (*ADAPTERS, "tiny"):
        times = sorted(a.total for a in answers if a.adapter == adapter)
        waited_ms = max((a.waited or 0.0 for a in answers if a.adapter == adapter), default=0.0)
        print(
            f"  {adapter:5} {len(times):4} answers, p50 {statistics.median(times):.0f}, "
            f"most {times[-1]:.0f} ms; waited at most {waited_ms:.0f} ms"
        )


class Engines:
    """Real engines with adapters, and what they export."""

    def __init__(self, ends: ExitStack, folder: Path) -> None:
        self._ends, self._folder = ends, folder
        self.receiver = ends.enter_context(OtlpReceiver())

    def start(self, max_loras: int, core: int = 0) -> Stack:
        plan = make_plan("cloud", SLOTS, self._folder / f"logs-{core}", core=core)
        modules = []
        for name in ADAPTERS:
            if not (folder := self._folder / name).exists():
                write_adapter(folder, Path(plan.model))
            modules.append(f"{name}={folder}")
        lora = ("--enable-lora", "--max-loras", str(max_loras), "--max-lora-rank", "8")
        spans = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.receiver.endpoint}
        plan = replace(
            plan,
            engine_arguments=(*plan.engine_arguments, *lora, "--lora-modules", *modules),
            environ={**plan.environ, **spans},
        )
        stack = self._ends.enter_context(Stack(plan))
        stack.wait_ready(READY_WITHIN_S, lambda waited, what: None)
        return stack

    def sidecar(self, name: str, *pools: dict[str, Any]) -> str:
        return self._ends.enter_context(sidecar(self._folder / f"{name}.log", *pools))


async def waits(max_loras: int, seconds: float, folder: Path) -> None:
    with ExitStack() as ends:
        engines = Engines(ends, folder)
        stack = engines.start(max_loras)
        pool = {"name": "cloud", "url": stack.engine_url, "profile": "cloud"}
        urls = [stack.url, engines.sidecar("second", pool)]
        async with session() as http:
            for url in urls:
                await all_ready(http, url, 60.0)
            await load(http, urls, seconds / 4)  # learns step time and lengths
            through = await load(http, urls, seconds)
            one = await load(http, urls[:1], seconds)
            state = await engine_state(http, urls[0])
            directly = await load(http, [stack.engine_url], seconds / 2)
        step_ms = state["batching_stats"]["avg_batch_duration_ms"]
        print(f"\nmax_loras {max_loras}, four adapters, {2 * CLIENTS} clients, {SLOTS} slots")
        runs = {"two sidecars": through, "one sidecar": one, "directly": directly}
        for name, answers in runs.items():
            describe(name, answers, waits_in_vllm_ms(engines.receiver, answers), step_ms)
        assert not state["oversubscription_violations_total"]


async def loads(max_loras: int, requests: int, folder: Path) -> None:
    with ExitStack() as ends:
        engines = Engines(ends, folder)
        stacks = [engines.start(max_loras, core) for core in (0, 1)]
        names = ("left", "right")
        url = engines.sidecar(
            "entry",
            *(
                {"name": name, "url": each.engine_url, "profile": "cloud"}
                for name, each in zip(names, stacks, strict=True)
            ),
        )
        draw, counted, found = random.Random(7), 0, []
        async with session() as http:
            await all_ready(http, url, 60.0)
            for pinned in (False, True):
                for _ in range(requests // 2):
                    pins = [{"X-Orch-Pool": draw.choice(names)} if pinned else {} for _ in range(2)]
                    models = [draw.choice(ADAPTERS) for _ in range(2)]
                    await asyncio.gather(
                        *(
                            ask(http, url, model, 16, pin)
                            for model, pin in zip(models, pins, strict=True)
                        )
                    )
                states = [await engine_state(http, each.engine_url) for each in stacks]
                total = sum(state["lora"]["loads_total"] for state in states)
                found.append(total - counted)
                counted = total
    print(
        f"\ntwo engines, max_loras {max_loras}, {requests} requests, two at once: "
        f"{found[0]} loads where the sidecar places them, {found[1]} at random"
    )


def schema(properties: int, number: int) -> dict[str, Any]:
    """A JSON schema that no other request has."""
    names = [f"field_{number}_{each}" for each in range(properties)]
    text = {"type": "string", "pattern": "^[a-z]{3,9}-[0-9]{1,4}$"}
    tags = {"type": "array", "items": text}
    member = {"type": "object", "properties": {"id": text, "tags": tags}}
    return {
        "type": "object",
        "properties": {name: member if at % 2 else text for at, name in enumerate(names)},
        "required": names,
    }


async def grammars(requests: int, folder: Path) -> None:
    with ExitStack() as ends:
        engines = Engines(ends, folder)
        stack = engines.start(1)
        async with session() as http:
            await all_ready(http, stack.url, 60.0)
            await ask(http, stack.url, "tiny", 8)
            for properties in (1, 10, 100):
                stream = asyncio.create_task(ask(http, stack.url, "tiny", 1500))
                answers = []
                for number in range(requests):
                    wanted = {"name": "x", "schema": schema(properties, 1000 * properties + number)}
                    form = {"response_format": {"type": "json_schema", "json_schema": wanted}}
                    answers.append(await ask(http, stack.url, "tiny", 4, more=form))
                await stream
                waited = waits_in_vllm_ms(engines.receiver, answers)
                print(
                    f"JSON schemas of {properties} properties: {requests} new ones waited p50 "
                    f"{statistics.median(waited):.1f}, most {max(waited):.1f} ms inside vLLM"
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--max-loras", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--requests", type=int, default=80, help="0: no placement")
    parser.add_argument("--grammars", type=int, default=20, help="of each size; 0: none")
    options = parser.parse_args()
    print(json.dumps({"adapters": ADAPTERS, "tokens": TOKENS, "thinks_s": THINKS_S}))
    with tempfile.TemporaryDirectory() as folder:
        for most in options.max_loras:
            asyncio.run(waits(most, options.seconds, Path(folder)))
        for most in options.max_loras if options.requests else ():
            asyncio.run(loads(most, options.requests, Path(folder)))
        if options.grammars:
            asyncio.run(grammars(options.grammars, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
