"""A probe has the kubelet restart an engine beside its sidecar, which lives on.

The sidecar's container and the engine's preStop hook are the manifest's; the engine is a scripted
one.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from orch_sidecar.tools.local.stack import get_json
from tests.k8s.asking import started
from tests.k8s.objects import ROOT, container, named
from tests.k8s.runner.cluster import Cluster
from tests.k8s.runner.events import What
from tests.k8s.runner.image import SYSTEM_PATH, Image
from tests.k8s.runner.view import Pod

IMAGE: Final = "orch:1"
READY_WITHIN_S: Final = 60.0
ENGINE: Final = """
import asyncio, os, signal, time
from tests.integration.scripted_engine import ScriptedEngine
async def main():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    engine = ScriptedEngine(slots=1, profile="home", port=8000)
    engine.epoch = time.time_ns()
    await engine.start()
    await asyncio.Event().wait()
asyncio.run(main())
"""
EVERY_SECOND: Final = {"periodSeconds": 1, "timeoutSeconds": 9, "failureThreshold": 1}
IS_WELL: Final = {"exec": {"command": ["test", "!", "-e", "/run/sick"]}} | EVERY_SECOND


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    kept = (str(Path(sys.prefix)), str(Path(sys.base_prefix).resolve()), str(ROOT))
    path = f"{sys.prefix}/bin:{SYSTEM_PATH}"
    image = Image(environment={"PATH": path, "PYTHONPATH": str(ROOT)}, kept=kept)
    with Cluster({IMAGE: image}, tmp_path) as cluster:
        yield cluster


def pod_of_home() -> dict[str, Any]:
    home = named("", "Deployment", "orch-home")
    kept = ("name", "restartPolicy", "command", "ports", "startupProbe", "livenessProbe")
    sidecar = {name: container(home, "sidecar")[name] for name in kept}
    variables = {
        "ORCH_HOST": "0.0.0.0",
        "ORCH_ADMIN_PORT": "9080",
        "ORCH_ENGINE_URL": "http://127.0.0.1:8000",
    }
    sidecar |= {
        "image": IMAGE,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "readinessProbe": container(home, "sidecar")["readinessProbe"] | EVERY_SECOND,
    }
    engine = {
        "name": "vllm",
        "image": IMAGE,
        "command": ["python3", "-c", ENGINE],
        "livenessProbe": IS_WELL,
        "lifecycle": container(home, "vllm")["lifecycle"],
    }
    return {
        "terminationGracePeriodSeconds": 10,
        "initContainers": [sidecar],
        "containers": [engine],
    }


def health(pod: Pod) -> dict[str, Any]:
    _, document = get_json(f"http://{pod.ip}:8080/v1/pools/home/health", timeout_s=10)
    return document


def test_engine_that_a_probe_kills_is_served_again_when_it_is_back(cluster: Cluster) -> None:
    pod = started(cluster, "home", pod_of_home(), within_s=READY_WITHIN_S)
    before = health(pod)
    cluster.exec(pod.name, "vllm", ["touch", "/run/sick"])
    cluster.wait(lambda: cluster.pods("home")[0].restarts["vllm"] == 1, READY_WITHIN_S)
    hooks = [each for each in cluster.events if each.what is What.PRE_STOP_ENDED]
    assert [each.container for each in hooks] == ["vllm"]
    cluster.wait(lambda: health(pod)["engine_epoch"] != before["engine_epoch"], READY_WITHIN_S)
    after = health(pod)
    assert (after["state"], after["drain"]) == ("ready", None)
    cluster.wait(lambda: cluster.ready("home") == 1, READY_WITHIN_S)
    assert cluster.pods("home")[0].restarts["sidecar"] == 0
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
    request = urllib.request.Request(
        f"http://{pod.ip}:8080/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200
