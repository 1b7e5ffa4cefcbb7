"""The kubelet restarts a hung engine beside its sidecar, which lives on and serves the next one.

The sidecar's container, the engine's probes and its preStop hook are the manifest's, with shorter
times; the engine is a scripted one that hangs at a signal.
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
from tests.k8s.objects import DEFAULT, ROOT, container, named
from tests.k8s.runner.cluster import Cluster
from tests.k8s.runner.events import What
from tests.k8s.runner.image import SYSTEM_PATH, Image
from tests.k8s.runner.pod import Pod
from tests.patience import HANG_S, READY_WITHIN_S

IMAGE: Final = "orch:1"
ENGINE: Final = """
import asyncio, signal, time
from tests.integration.scripted_engine import ScriptedEngine
def hang(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(99)
async def main():
    signal.signal(signal.SIGUSR1, hang)
    engine = ScriptedEngine(slots=1, profile="home", port=8000)
    engine.epoch = time.time_ns()
    engine.pages["/health"] = lambda answer: answer.json({})
    await engine.start()
    await asyncio.Event().wait()
asyncio.run(main())
"""
EVERY_SECOND: Final = {"periodSeconds": 1, "timeoutSeconds": 9, "failureThreshold": 1}
SHORT: Final = {"periodSeconds": 1, "failureThreshold": 1, "terminationGracePeriodSeconds": 2}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    kept = (str(Path(sys.prefix)), str(Path(sys.base_prefix).resolve()), str(ROOT))
    path = f"{sys.prefix}/bin:{SYSTEM_PATH}"
    image = Image(environment={"PATH": path, "PYTHONPATH": str(ROOT)}, kept=kept)
    with Cluster({IMAGE: image}, tmp_path) as cluster:
        yield cluster


def pod_of_home() -> dict[str, Any]:
    home = named(DEFAULT, "Deployment", "orch-home")
    kept = ("name", "restartPolicy", "ports", "startupProbe", "livenessProbe")
    sidecar = {name: container(home, "sidecar")[name] for name in kept}
    variables = {
        "ORCH_HOST": "0.0.0.0",
        "ORCH_ADMIN_PORT": "9080",
        "ORCH_ENGINE_URL": "http://127.0.0.1:8000",
    }
    sidecar |= {
        "image": IMAGE,
        "command": container(home, "sidecar")["args"],  # its code is here, nothing is unpacked
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "readinessProbe": container(home, "sidecar")["readinessProbe"] | EVERY_SECOND,
    }
    engine = {
        "name": "vllm",
        "image": IMAGE,
        "command": ["python3", "-c", ENGINE],
        "startupProbe": container(home, "vllm")["startupProbe"] | {"periodSeconds": 1},
        "livenessProbe": container(home, "vllm")["livenessProbe"] | SHORT,
        "lifecycle": container(home, "vllm")["lifecycle"],
    }
    return {
        "terminationGracePeriodSeconds": 600,
        "initContainers": [sidecar],
        "containers": [engine],
    }


def started(cluster: Cluster) -> Pod:
    template = {"metadata": {"labels": {"app": "home"}}, "spec": pod_of_home()}
    body = {"kind": "Deployment", "metadata": {"name": "home"}, "spec": {"template": template}}
    cluster.apply([body])
    cluster.wait(lambda: cluster.ready("home") == 1, READY_WITHIN_S)
    return cluster.pods("home")[0]


def health(pod: Pod) -> dict[str, Any]:
    _, document = get_json(f"http://{pod.ip}:8080/v1/pools/home/health", timeout_s=HANG_S)
    return document


def test_engine_that_hangs_is_killed_and_served_again_when_it_is_back(cluster: Cluster) -> None:
    pod = started(cluster)
    before = health(pod)
    cluster.exec(pod, "vllm", ["sh", "-c", "kill -USR1 1"])
    cluster.wait(lambda: cluster.pods("home")[0].restarts["vllm"] == 1, READY_WITHIN_S)
    happened = [each.what for each in cluster.events if each.container == "vllm"]
    first = happened.index(What.UNHEALTHY)
    ending = [What.PRE_STOP_BEGAN, What.PRE_STOP_ENDED, What.TERM, What.KILL, What.EXITED]
    assert happened[first + 1 : first + 6] == ending
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
    with urllib.request.urlopen(request, timeout=HANG_S) as answer:
        assert answer.status == 200
