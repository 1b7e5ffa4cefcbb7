"""Each alert fires when its fault is caused, and no other does: a real Prometheus scrapes a sidecar
for each fault, and one without.

The rules are the PrometheusRule's, with seconds in place of minutes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from orch_sidecar.app.sidecar import Sidecar
from orch_sidecar.config.settings import SidecarSettings
from tests.integration.answers import EVENT_STREAM
from tests.integration.keyed import KeyRing
from tests.integration.monitoring.traffic import load, reporting
from tests.integration.running import Running
from tests.integration.scripted_engine import STEP_TIME, ScriptedEngine
from tests.integration.wire import Answer
from tests.orch_sidecar.admission.gates import opened
from tests.patience import HANG_S
from tests.prometheus import Prometheus, alerting_rules, in_seconds, needs_prometheus, prometheus

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


Faulty = dict[str, tuple[ScriptedEngine, Running]]
WITHIN_S = HANG_S
# What a fault that does not last may set off while it begins.
CALM_S = 15.0


async def started(
    name: str, fault: Fault, stack: AsyncExitStack, keys: Path | None
) -> tuple[ScriptedEngine, Running]:
    """A sidecar whose pool has the name of the fault, and its engine."""
    engine = ScriptedEngine(SLOTS)
    await engine.start()
    stack.push_async_callback(engine.stop)
    pool = {"name": name, "url": engine.url, "profile": "cloud"}
    sidecar = Sidecar(
        SidecarSettings(
            pools=[pool],
            port=0,
            drain_timeout_s=0.2,
            request_log=fault.request_log,
            api_keys_file=keys,
        )
    )
    running = Running(sidecar, await sidecar.start())
    stack.push_async_callback(running.stop)
    await running.ready()
    gate = running.pool.gate
    assert gate.controller.rules.interactive is not None
    changed = gate.controller.rules.interactive.model_copy(update=dict(fault.interactive))
    gate.reload(gate.controller.rules.model_copy(update={"interactive": changed}))
    return engine, running


@pytest.fixture
async def faulty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Faulty]:
    """A sidecar for each fault."""
    ring = KeyRing(tmp_path)
    ring.add("alice")
    async with AsyncExitStack() as stack:
        sidecars = {}
        for name, fault in FAULTS.items():
            with monkeypatch.context() as environment:
                if fault.untraced:
                    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
                    environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
                keys = ring.path if fault.keyed else None
                sidecars[name] = await started(name, fault, stack, keys)
        yield sidecars


async def alerts_of(server: Prometheus) -> dict[str, set[str]]:
    """The names of the alerts that fire, by the pool that they name, or else the job."""
    found = defaultdict(set)
    for labels in await server.firing():
        found[labels.get("pool") or labels.get("job", "")].add(labels["alertname"])
    return found


@pytest.mark.long
@needs_prometheus
async def test_each_alert_fires_at_its_fault_and_nowhere_else(
    quick: None, faulty: Faulty, tmp_path: Path
) -> None:
    targets = {running.port: {"job": name} for name, (_, running) in faulty.items()}
    expected = {name: fault.fires for name, fault in FAULTS.items() if fault.fires is not None}
    assert set(expected.values()) | {"OrchAbsent"} == {
        rule["alert"] for group in alerting_rules()["groups"] for rule in group["rules"]
    }
    loop = asyncio.get_running_loop()
    async with prometheus(tmp_path, targets, in_seconds(alerting_rules())) as server:
        async with AsyncExitStack() as causes:
            begin = (FAULTS[name].cause(*pair) for name, pair in faulty.items())
            await asyncio.gather(*map(causes.enter_async_context, begin))
            ends_at, seen = loop.time() + WITHIN_S, set[str]()
            calm_until = loop.time() + CALM_S
            while seen != set(expected) or loop.time() < calm_until:
                assert loop.time() < ends_at, f"silent: {sorted(set(expected) - seen)}"
                for name, alerts in (await alerts_of(server)).items():
                    assert name in FAULTS, (name, alerts)
                    allowed = {expected.get(name), *FAULTS[name].too}
                    assert alerts <= allowed, f"{name}: {alerts - allowed}"
                    if expected.get(name) in alerts:
                        seen.add(name)
                await asyncio.sleep(0.5)
        for engine, running in faulty.values():
            await running.stop()
            await engine.stop()
        ends_at = loop.time() + WITHIN_S
        while (await alerts_of(server)).get("") != {"OrchAbsent"}:
            assert loop.time() < ends_at, await server.firing()
            await asyncio.sleep(0.5)
