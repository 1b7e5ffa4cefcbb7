"""The runner restarts and ends pods as a kubelet does, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.asking import SOON_S, started
from tests.k8s.runner.cluster import Cluster
from tests.k8s.runner.events import Event, What
from tests.k8s.runner.image import Image
from tests.k8s.runner.network import PREFIX
from tests.k8s.runner.tiny import SHELL, deployment, processes, shell
from tests.k8s.runner.view import Pod

SLEEP = f"sleep 4711.{os.getpid()}"  # a command line that nothing else has
# Ready once it handles SIGTERM: before that, the first process of a container ignores it.
FINE = "trap 'exit 0' TERM; touch /tmp/handles; while :; do sleep 0.05; done"
HANDLES = {"exec": {"command": ["test", "-e", "/tmp/handles"]}, "timeoutSeconds": 9}
DEAF = "trap '' TERM; while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster({SHELL: Image()}, tmp_path_factory.mktemp("cluster")) as cluster:
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


def fine(name: str, **fields: Any) -> dict[str, Any]:
    """A container that ends at SIGTERM, and is ready when it can."""
    return shell(FINE, name, readinessProbe=HANDLES, **fields)


def test_main_containers_leave_before_sidecars_and_these_in_reverse(cluster: Cluster) -> None:
    sidecar = {"restartPolicy": "Always"}
    pod = started(
        cluster,
        "leaving",
        {
            "terminationGracePeriodSeconds": 10,
            "initContainers": [
                fine("one", **sidecar),
                fine("two", **sidecar, lifecycle=hook("echo two >> /dev/shm/h")),
            ],
            "containers": [
                fine("main", lifecycle=hook("sleep 1; cat /dev/shm/h")),
                fine("other"),
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


def test_deaf_container_is_killed_when_the_grace_is_over(cluster: Cluster) -> None:
    container = shell(DEAF, lifecycle=hook("true"))
    pod = started(cluster, "deaf", {"terminationGracePeriodSeconds": 1, "containers": [container]})
    events = removed(cluster, pod)
    ending = (What.PRE_STOP_BEGAN, What.PRE_STOP_ENDED, What.TERM, What.KILL, What.EXITED)
    assert tuple(event.what for event in events if event.what in ending) == ending
    assert [event.detail for event in events if event.what is What.EXITED] == ["137"]


def test_failing_liveness_restarts_the_container_with_its_hook(cluster: Cluster) -> None:
    probe = {
        "exec": {"command": ["test", "!", "-e", "/tmp/sick"]},
        "periodSeconds": 1,
        "timeoutSeconds": 9,
        "failureThreshold": 1,
    }
    container = fine("c", livenessProbe=probe, lifecycle=hook("echo bye"))
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


def test_nothing_is_left_of_a_cluster_that_a_test_leaves_by_an_error(tmp_path: Path) -> None:
    links, mounts = Path("/sys/class/net"), Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    before = set(links.iterdir())
    pod = {"containers": [shell(f"trap '' TERM; {SLEEP}")]}

    def fails() -> None:
        with Cluster({SHELL: Image()}, tmp_path) as cluster:
            cluster.apply([deployment("rest", pod, replicas=2)])
            cluster.wait(lambda: processes(SLEEP) == 2, SOON_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert processes(SLEEP) == 0
    assert not {link for link in set(links.iterdir()) - before if link.name.startswith(PREFIX)}
    assert Path("/proc/self/mountinfo").read_text(encoding="utf-8") == mounts
    assert list((tmp_path / "pods").iterdir()) == []
