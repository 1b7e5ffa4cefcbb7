"""The harness restarts, replaces and stops pods as a kubelet and a Deployment do, and cleans up."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.asking import SOON_S, started
from tests.k8s.runner.cluster import Cluster, NotReached
from tests.k8s.runner.events import Event, What
from tests.k8s.runner.image import Image, python_image
from tests.k8s.runner.tiny import SHELL, deployment, processes, server, service, shell
from tests.k8s.runner.view import Pod

ROOT = Path(__file__).parents[2]
VENV_IMAGE = "vllm:1"
SLEEP = f"sleep 4711.{os.getpid()}"  # a command line that nothing else has
FINE = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
DEAF = "trap '' TERM; while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    images = {
        SHELL: Image(),
        VENV_IMAGE: python_image(Path(sys.prefix), ROOT, "orch-sidecar"),
    }
    with Cluster(images, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def removed(cluster: Cluster, pod: Pod) -> list[Event]:
    """Scales the pod's Deployment to 0; the pod's events from its deletion on."""
    name = pod.labels["app"]
    cluster.scale(name, 0)
    cluster.wait(lambda: not cluster.pods(name), SOON_S)
    own = [event for event in cluster.events if event.pod == pod.name]
    return own[[event.what for event in own].index(What.POD_DELETION) :]


def hook(script: str) -> dict[str, Any]:
    return {"preStop": {"exec": {"command": ["sh", "-c", script]}}}


def test_main_containers_leave_before_sidecars_and_these_in_reverse(cluster: Cluster) -> None:
    sidecar = {"restartPolicy": "Always"}
    pod = started(
        cluster,
        "leaving",
        {
            "terminationGracePeriodSeconds": 10,
            "initContainers": [
                shell(FINE, "one", **sidecar),
                shell(FINE, "two", **sidecar, lifecycle=hook("echo two >> /dev/shm/h")),
            ],
            "containers": [
                shell(FINE, "main", lifecycle=hook("sleep 1; cat /dev/shm/h")),
                shell(FINE, "other"),
            ],
        },
    )
    events = removed(cluster, pod)
    order = [(e.container, e.what) for e in events if e.what in {What.TERM, What.KILL, What.EXITED}]
    assert order == [
        ("other", What.TERM),
        ("other", What.EXITED),
        ("main", What.TERM),
        ("main", What.EXITED),
        ("two", What.TERM),
        ("two", What.EXITED),
        ("one", What.TERM),
        ("one", What.EXITED),
    ]
    assert all(e.detail == "0" for e in events if e.what is What.EXITED)
    hooks = {(e.container, e.what): e for e in events if e.what.startswith("pre-stop")}
    # A sidecar's hook begins with the deletion, not with its turn.
    assert hooks["two", What.PRE_STOP_ENDED].at_s < hooks["main", What.PRE_STOP_ENDED].at_s
    assert "two" in hooks["main", What.PRE_STOP_ENDED].detail
    assert events[-1].what is What.POD_GONE


def test_deaf_container_is_killed_when_the_grace_from_the_deletion_is_over(
    cluster: Cluster,
) -> None:
    container = shell(DEAF, lifecycle=hook("sleep 1.2"))
    pod = started(cluster, "deaf", {"terminationGracePeriodSeconds": 4, "containers": [container]})
    events = {event.what: event for event in removed(cluster, pod)}
    assert events[What.EXITED].detail == "137"
    # Whole seconds count: 1 of the hook's 1.2 s, and 3 more from its end on.
    assert 4.1 < events[What.KILL].at_s - events[What.POD_DELETION].at_s < 5


def test_hook_that_outlasts_the_grace_leaves_two_seconds_to_the_container(
    cluster: Cluster,
) -> None:
    container = shell(DEAF, lifecycle={"preStop": {"sleep": {"seconds": 60}}})
    pod = started(cluster, "hook", {"terminationGracePeriodSeconds": 1, "containers": [container]})
    events = {event.what: event for event in removed(cluster, pod)}
    assert 0.95 < events[What.TERM].at_s - events[What.POD_DELETION].at_s < 1.9
    assert 1.95 < events[What.KILL].at_s - events[What.TERM].at_s < 2.9


def test_leaving_pod_is_out_of_endpoints_at_once_and_keeps_its_connections(
    cluster: Cluster,
) -> None:
    cluster.apply(
        [service("go"), service("all", app="go", clusterIP="None", publishNotReadyAddresses=True)]
    )
    container = server("x", lifecycle={"preStop": {"sleep": {"seconds": 2}}})
    pod = started(cluster, "go", {"terminationGracePeriodSeconds": 5, "containers": [container]})
    url = f"http://{cluster.address('go')}/"
    assert urllib.request.urlopen(url, timeout=5).read() == b"x"
    cluster.scale("go", 0)

    def refused() -> bool:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.URLError:
            return True
        return False

    cluster.wait(refused, 1.5)
    assert cluster.pods("go")[0].terminating
    assert cluster.lookup("all.default.svc.cluster.local") == [pod.ip]
    assert urllib.request.urlopen(f"http://{pod.ip}:8080/", timeout=5).read() == b"x"
    cluster.wait(lambda: not cluster.lookup("all.default.svc.cluster.local"), SOON_S)


def test_failing_liveness_restarts_the_container_with_its_hook(cluster: Cluster) -> None:
    probe = {
        "exec": {"command": ["test", "!", "-e", "/tmp/sick"]},
        "periodSeconds": 1,
        "timeoutSeconds": 9,
        "failureThreshold": 1,
    }
    container = shell(FINE, livenessProbe=probe, lifecycle=hook("echo bye"))
    pod = started(cluster, "sick", {"containers": [container]})
    cluster.exec(pod.name, "c", ["touch", "/tmp/sick"])
    # The new run has a fresh root, without the marker.
    cluster.wait(lambda: cluster.pods("sick")[0].restarts["c"] == 1, SOON_S)
    cluster.wait(lambda: cluster.ready("sick") == 1, SOON_S)
    what = [e.what for e in cluster.events if e.pod == pod.name and e.container == "c"]
    first = what.index(What.UNHEALTHY)
    assert what[first : first + 5] == [
        What.UNHEALTHY,
        What.PRE_STOP_BEGAN,
        What.PRE_STOP_ENDED,
        What.TERM,
        What.EXITED,
    ]


def test_readiness_takes_the_pod_out_and_in_again_without_a_restart(cluster: Cluster) -> None:
    probe = {
        "exec": {"command": ["test", "!", "-e", "/tmp/busy"]},
        "periodSeconds": 1,
        "timeoutSeconds": 9,
        "failureThreshold": 1,
    }
    container = shell(FINE, readinessProbe=probe)
    pod = started(cluster, "busy", {"containers": [container]})
    cluster.exec(pod.name, "c", ["touch", "/tmp/busy"])
    cluster.wait(lambda: cluster.ready("busy") == 0, SOON_S)
    cluster.exec(pod.name, "c", ["rm", "/tmp/busy"])
    cluster.wait(lambda: cluster.ready("busy") == 1, SOON_S)
    assert cluster.pods("busy")[0].restarts["c"] == 0


def test_ended_container_is_started_again_and_all_its_processes_are_gone(
    cluster: Cluster,
) -> None:
    pod = started(cluster, "crash", {"containers": [shell(f"{SLEEP} & sleep 0.5; exit 7")]})
    cluster.wait(lambda: processes(SLEEP) == 1, SOON_S)
    cluster.wait(lambda: cluster.pods("crash")[0].restarts["c"] >= 2, SOON_S)
    exits = {e.detail for e in cluster.events if e.pod == pod.name and e.what is What.EXITED}
    assert exits == {"7"}
    assert processes(SLEEP) <= 1
    cluster.scale("crash", 0)
    cluster.wait(lambda: not cluster.pods("crash"), SOON_S)
    assert processes(SLEEP) == 0


def test_deleted_pod_is_replaced_and_a_rollout_follows_the_strategy(cluster: Cluster) -> None:
    strategy = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    first = started(cluster, "roll", {"containers": [shell(FINE)]}, replicas=2, strategy=strategy)
    cluster.delete_pod(first.name)
    cluster.wait(
        lambda: (
            first.name not in {pod.name for pod in cluster.pods("roll")}
            and cluster.ready("roll") == 2
        ),
        SOON_S,
    )
    before = {pod.name for pod in cluster.pods("roll")}
    changed = {"containers": [shell(FINE + " # new")]}
    cluster.apply([deployment("roll", changed, replicas=2, strategy=strategy)])
    fewest = 2

    def done() -> bool:
        nonlocal fewest
        fewest = min(fewest, cluster.ready("roll"))
        names = {pod.name for pod in cluster.pods("roll")}
        return not names & before and cluster.ready("roll") == 2

    cluster.wait(done, SOON_S, every_s=0.01)
    assert fewest == 2


def test_virtual_environment_is_an_image_without_the_project(cluster: Cluster) -> None:
    look = """
import importlib.metadata, importlib.util, os, sys
import aiohttp
print(sys.prefix, os.getuid())
print([importlib.util.find_spec(name) for name in ("orch_sidecar", "vllm_plugin")])
print(list(importlib.metadata.entry_points(name="orch")))
print([d.name for d in importlib.metadata.distributions() if d.name == "orch-sidecar"])
import time
print("end", flush=True)
time.sleep(99)
"""
    container = {
        "name": "c",
        "image": VENV_IMAGE,
        "command": [
            "python3",
            "-c",
            look,
        ],
        "securityContext": {
            "runAsUser": 1234,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = started(cluster, "venv", {"containers": [container]})
    cluster.wait(lambda: "end" in pod.log("c"), SOON_S)
    assert pod.log("c").splitlines()[:4] == [f"{sys.prefix} 1234", "[None, None]", "[]", "[]"]
    root = cluster.exec(pod.name, "c", ["ls", "-A", str(ROOT)]).output.split()
    shown = [name for name in root if Path(ROOT, name).is_file()]
    assert shown == []
    assert cluster.exec(pod.name, "c", ["ls", "-A", f"{ROOT}/orch_sidecar"]).output == ""
    assert cluster.exec(pod.name, "c", ["ls", "/root"]).exit_code != 0


def test_what_does_not_come_is_an_error_with_logs_and_probes(cluster: Cluster) -> None:
    probe = {"httpGet": {"port": 1, "path": "/x"}, "periodSeconds": 1}
    container = shell("echo last words; exec sleep 99", readinessProbe=probe)
    cluster.apply([deployment("never", {"containers": [container]})])
    with pytest.raises(NotReached) as wrong:
        cluster.wait(lambda: cluster.ready("never") == 1, 1.0)
    assert "| last words" in str(wrong.value)
    assert "readiness probe: GET http://10." in str(wrong.value)
    cluster.scale("never", 0)
