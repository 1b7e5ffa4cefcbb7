"""Each alert fires when its fault is caused, and no other does: a real Prometheus scrapes a sidecar
for each fault, and one without.

The rules are the PrometheusRule's, with seconds in place of minutes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from orch_sidecar.app.sidecar import Sidecar
from orch_sidecar.config.settings import SidecarSettings
from tests.integration.keyed import KeyRing
from tests.integration.monitoring.faults import FAULTS, SLOTS, Fault
from tests.integration.running import Running
from tests.integration.scripted_engine import ScriptedEngine
from tests.patience import HANG_S
from tests.prometheus import Prometheus, alerting_rules, in_seconds, needs_prometheus, prometheus

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
