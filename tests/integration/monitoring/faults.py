"""What can be wrong with a sidecar, its engine or its load; each as an operator might meet it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.integration.answers import EVENT_STREAM
from tests.integration.monitoring.traffic import load, reporting
from tests.integration.running import Running
from tests.integration.scripted_engine import STEP_TIME, ScriptedEngine
from tests.integration.wire import Answer
from tests.orch_sidecar.admission.gates import opened

Cause = Callable[[ScriptedEngine, Running], AbstractAsyncContextManager[None]]

SLOTS: Final = 4
STEP_S: Final = 0.02
BUSY: Final = 3 * SLOTS  # clients: most of them wait


@dataclass(frozen=True, slots=True)
class Fault:
    """`cause` lasts as long as its context. `fires`: the alert; `too`: what may come with it.
    `interactive`: rules of that class, instead of the profile's; a busy machine delays tokens, too.
    `untraced`: its collector is unreachable. `request_log`: the file of its request log. `keyed`:
    its clients have API keys."""

    fires: str | None
    cause: Cause
    too: frozenset[str] = frozenset()
    interactive: tuple[tuple[str, Any], ...] = (("tpot_p95_ms", None),)
    untraced: bool = False
    request_log: str | None = None
    keyed: bool = False


@asynccontextmanager
async def none(engine: ScriptedEngine, sidecar: Running) -> AsyncIterator[None]:
    """Load that the engine can serve."""
    reporting(engine, STEP_S)
    async with load(sidecar.port, SLOTS - 2):
        yield


@asynccontextmanager
async def oversubscribed(engine: ScriptedEngine, sidecar: Running) -> AsyncIterator[None]:
    """The engine had more sequences than slots."""
    engine.report(peak=2 * SLOTS)
    yield


@asynccontextmanager
async def silent(engine: ScriptedEngine, sidecar: Running) -> AsyncIterator[None]:
    """The engine reports nothing any longer, and accepts no connection."""
    engine.faults.mute = True
    assert engine._server is not None
    engine._server.close()
    yield


@asynccontextmanager
async def stalled(engine: ScriptedEngine, sidecar: Running) -> AsyncIterator[None]:
    """The engine has made no step for too long, as its plugin reports."""
    engine.report(state="stalled", message="no step")
    yield


@asynccontextmanager
async def too_much(engine: ScriptedEngine, sidecar: Running) -> AsyncIterator[None]:
    """More clients than slots, all the time."""
    reporting(engine, STEP_S)
    async with load(sidecar.port, BUSY):
        yield


@asynccontextmanager
async def late_first_tokens(engine: ScriptedEngine, sidecar: Running) -> AsyncIterator[None]:
    """The engine takes longer to read prompts than the SLO allows."""

    async def answer(answer: Answer) -> None:
        await asyncio.sleep(0.7)
        answer.head(200, EVENT_STREAM)
        answer.event({"choices": [{"index": 0, "text": " a", "finish_reason": "length"}]})
        answer.event("[DONE]")
        answer.end()

    engine.answer = answer
    async with load(sidecar.port, SLOTS - 2):
        yield


@asynccontextmanager
async def slow_tokens(engine: ScriptedEngine, sidecar: Running) -> AsyncIterator[None]:
    """Steps take longer than the SLO per token."""
    reporting(engine, 0.12)
    async with load(sidecar.port, SLOTS - 2):
        yield


@asynccontextmanager
async def wrong_predictions(engine: ScriptedEngine, sidecar: Running) -> AsyncIterator[None]:
    """The engine's fit promises steps that are a hundred times shorter than they are."""
    wrong = STEP_TIME | {"t0_ms": 0.5, "c_ms": 0.0}
    reporting(engine, 0.05, step_time=wrong)
    async with load(sidecar.port, BUSY):
        yield


@asynccontextmanager
async def preempting(engine: ScriptedEngine, sidecar: Running) -> AsyncIterator[None]:
    """The engine preempts again and again."""

    async def preempt() -> None:
        total = 0
        while True:
            engine.report(preemptions_total=total)
            total += 3
            await asyncio.sleep(0.5)

    engine.run(preempt())
    yield


@asynccontextmanager
async def lost_lease(engine: ScriptedEngine, sidecar: Running) -> AsyncIterator[None]:
    """An exception between two lines of code left a lease without its request."""
    opened(sidecar.pool.gate).owner = None
    yield


@asynccontextmanager
async def keys_removed(engine: ScriptedEngine, sidecar: Running) -> AsyncIterator[None]:
    """The file of API keys is gone."""
    path = sidecar.sidecar.settings.api_keys_file
    assert path is not None
    path.unlink()
    yield


FAULTS: Final = {
    "none": Fault(None, none),
    "oversubscribed": Fault("OrchSlotsOversubscribed", oversubscribed),
    "silent": Fault("OrchEngineNotAnswering", silent),
    "stalled": Fault("OrchEngineNotAnswering", stalled),
    "too-much": Fault("OrchQueueBeyondSlo", too_much),
    "late": Fault(
        "OrchFirstTokenBeyondSlo",
        late_first_tokens,
        interactive=(("ttft_p95_ms", 500.0), ("tpot_p95_ms", None)),
    ),
    "slow": Fault("OrchTokenTimeBeyondSlo", slow_tokens, interactive=(("tpot_p95_ms", 100.0),)),
    "refusing": Fault(
        "OrchRefusals",
        too_much,
        frozenset({"OrchQueueBeyondSlo"}),
        interactive=(("queue_capacity", 0), ("tpot_p95_ms", None)),
    ),
    "wrong": Fault("OrchPredictionsOff", wrong_predictions, frozenset({"OrchQueueBeyondSlo"})),
    "preempting": Fault("OrchKvPreemptions", preempting),
    "lost": Fault("OrchLeasesOrphaned", lost_lease),
    "untraced": Fault("OrchSpansDropped", none, untraced=True),
    # A file system without space, as Linux offers one to tests.
    "unlogged": Fault("OrchRequestLogDropped", none, request_log="/dev/full"),
    "keyless": Fault("OrchApiKeysUnusable", keys_removed, keyed=True),
}
