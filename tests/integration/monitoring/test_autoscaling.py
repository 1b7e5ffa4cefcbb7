"""The query by which cloud is scaled, asked of a Prometheus that scrapes an entry and its pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.monitoring.traffic import load, reporting
from tests.integration.running import Running, Start
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.tiers import tier
from tests.patience import HANG_S
from tests.prometheus import MANIFESTS, Prometheus, needs_prometheus, prometheus

SLOTS = 4
WITHIN_S = HANG_S


def manifest(*path: str) -> dict[str, Any]:
    text = MANIFESTS.joinpath(*path).read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def trigger() -> dict[str, str]:
    """The metadata of KEDA's trigger."""
    [one] = manifest("autoscaling", "scaled-object.yaml")["spec"]["triggers"]
    assert (one["type"], one["metricType"]) == ("prometheus", "AverageValue")
    metadata: dict[str, str] = one["metadata"]
    return metadata


def test_both_autoscalers_ask_the_same_and_decide_alike() -> None:
    keda, hpa = (
        manifest("autoscaling", "scaled-object.yaml")["spec"],
        manifest("autoscaling-hpa", "autoscaler.yaml")["spec"],
    )
    config = manifest("autoscaling-hpa", "adapter-rule.yaml")["data"]["config.yaml"]
    [rule] = yaml.safe_load(config)["externalRules"]
    [metric] = hpa["metrics"]
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]
    matched = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="orch"')
    assert matched == trigger()["query"]
    target = metric["external"]["target"]
    assert target == {"type": "AverageValue", "averageValue": "700m"}
    assert float(trigger()["threshold"]) == 0.7
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["behavior"]
    assert keda["scaleTargetRef"]["name"] == hpa["scaleTargetRef"]["name"] == "orch-cloud"
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (
        hpa["minReplicas"],
        hpa["maxReplicas"],
    )
    assert all(isinstance(value, str) for value in trigger().values()), "KEDA takes only strings"


async def demand(server: Prometheus) -> float | None:
    """What the autoscaler reads."""
    values = await server.query(trigger()["query"])
    assert len(values) <= 1, "KEDA takes one value"
    return next(iter(values.values()), None)


async def until(server: Prometheus, holds: Callable[[float], bool]) -> float:
    async with asyncio.timeout(WITHIN_S):
        while True:
            value = await demand(server)
            if value is not None and holds(value):
                return value
            await asyncio.sleep(0.5)


@pytest.mark.long
@needs_prometheus
@pytest.mark.parametrize("way", ["entry", "pods"])
async def test_demand_crosses_the_target_while_a_queue_lasts_and_falls_when_it_is_gone(
    engine: ScriptedEngine, start: Start, tmp_path: Path, way: str
) -> None:
    """Requests come by the entry, or by a gateway to the pods."""
    reporting(engine, 0.02)
    pod = await start(pools=[{"name": "cloud", "url": engine.url, "profile": "cloud"}])
    entry: Running = await start(pools=[tier(pod, "cloud-1")])
    targets = {
        pod.port: {"job": "orch/orch-pools", "namespace": "orch"},
        entry.port: {"job": "orch", "namespace": "orch"},
    }
    threshold = float(trigger()["threshold"])
    port = entry.port if way == "entry" else pod.port
    async with prometheus(tmp_path, targets) as server:
        assert await until(server, lambda value: value >= 0) < threshold
        async with load(port, 4 * SLOTS):
            crossed = await until(server, lambda value: value > 2 * threshold)
            assert crossed > 2 * threshold, "at least two more pods"
            for _ in range(10):  # it stays above while the queue lasts
                assert (await demand(server) or 0.0) > threshold
                await asyncio.sleep(0.5)
        await until(server, lambda value: value < threshold)
