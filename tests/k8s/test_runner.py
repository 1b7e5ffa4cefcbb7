"""The runner starts, probes and stops containers as a kubelet does, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.k8s.runner.cluster import Cluster, NotReached
from tests.k8s.runner.events import What
from tests.k8s.runner.image import Image
from tests.k8s.runner.network import PREFIX
from tests.k8s.runner.pod import Pod
from tests.patience import HANG_S

IMAGE: Final = "shell:1"
SLEEP: Final = f"sleep 4711.{os.getpid()}"  # a command line that nothing else has


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster({IMAGE: Image()}, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def shell(text: str, name: str = "c", **fields: Any) -> dict[str, Any]:
    """A container that runs a shell script."""
    return {"name": name, "image": IMAGE, "command": ["sh", "-c", text], **fields}


def deployment(name: str, pod: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A Deployment of pods that are labelled `app: NAME`."""
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    return {
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


def started(cluster: Cluster, name: str, pod: dict[str, Any]) -> Pod:
    """Applies a Deployment and waits for its pod to be ready."""
    cluster.apply([deployment(name, {"terminationGracePeriodSeconds": 2, **pod})])
    cluster.wait(lambda: cluster.ready(name) == 1, HANG_S)
    return cluster.pods(name)[0]


def printed(cluster: Cluster, pod: Pod, script: str) -> str:
    """What a shell script prints in the container `c`."""
    return cluster.exec(pod, "c", ["sh", "-c", script]).output


def happened(cluster: Cluster, pod: Pod, *what: What) -> list[tuple[str, What]]:
    return [(e.container, e.what) for e in cluster.events if e.pod == pod.name and e.what in what]


def test_container_gets_what_its_manifest_declares(cluster: Cluster) -> None:
    data = {"a.txt": "one", "B": "2"}
    cluster.apply(
        [
            {"kind": "ConfigMap", "metadata": {"name": "map"}, "data": data},
            {"kind": "Secret", "metadata": {"name": "secret"}, "stringData": {"key": "hush"}},
            {"kind": "PersistentVolumeClaim", "metadata": {"name": "disk"}, "spec": {}},
        ]
    )
    (cluster.claim("disk") / "given").write_text("before")
    volumes: list[dict[str, Any]] = [
        {"name": "map", "configMap": {"name": "map"}},
        {"name": "all", "projected": {"sources": [{"secret": {"name": "secret"}}]}},
        {"name": "none", "secret": {"secretName": "none", "optional": True}},
        {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]
    container = shell(
        'echo "$0 $1"; exec sleep 99',
        args=["$(URL)", "$$(URL)"],
        envFrom=[{"configMapRef": {"name": "map"}}],
        env=[
            {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "URL", "value": "http://$(APP)/$(B)"},
        ],
        workingDir="/var/work",
        volumeMounts=[
            {"name": each["name"], "mountPath": f"/v/{each['name']}"} for each in volumes
        ],
        securityContext={
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    )
    context = {"runAsUser": 12345, "runAsGroup": 23456, "fsGroup": 8}
    pod = started(
        cluster,
        "declared",
        {"securityContext": context, "containers": [container], "volumes": volumes},
    )
    cluster.wait(lambda: pod.log("c") == "http://declared/2 $(URL)\n", HANG_S)
    assert printed(cluster, pod, "pwd; id -u; id -G").split() == [
        "/var/work",
        "12345",
        "23456",
        "8",
    ]
    status = printed(cluster, pod, "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status")
    assert status.split()[1::2] == ["0" * 16, "0" * 16, "1"]
    assert printed(cluster, pod, "cat /v/map/a.txt /v/all/key /v/disk/given") == "onehushbefore"
    assert (
        printed(cluster, pod, "touch /v/memory/f /v/disk/f; ls /v/memory /v/none").count("f") == 1
    )
    assert (cluster.claim("disk") / "f").exists()
    for path in ("/v/map/x", "/v/none/x", "/x"):
        assert "Read-only file system" in printed(cluster, pod, f"touch {path}")
    assert "PYTEST_CURRENT_TEST" not in printed(cluster, pod, "env")


def test_init_containers_sidecars_and_main_containers_start_in_order(cluster: Cluster) -> None:
    share = [{"name": "v", "mountPath": "/v"}]
    startup = {"exec": {"command": ["test", "-e", "/v/up"]}, "periodSeconds": 1}
    startup["failureThreshold"] = 9
    side = shell("sleep 0.5; touch /v/up; exec sleep 99", "side", volumeMounts=share)
    init = [
        # Fails once: a marker in the volume outlives the container.
        shell("test -e /v/one && exit 0; touch /v/one; exit 3", "first", volumeMounts=share),
        side | {"restartPolicy": "Always", "startupProbe": startup},
        shell("test -e /v/up", "second", volumeMounts=share),
    ]
    volumes = [{"name": "v", "emptyDir": {}}]
    spec = {"initContainers": init, "containers": [shell("exec sleep 99")], "volumes": volumes}
    pod = started(cluster, "order", spec)
    assert happened(cluster, pod, What.STARTED, What.EXITED, What.STARTUP_PASSED) == [
        ("first", What.STARTED),
        ("first", What.EXITED),
        ("first", What.STARTED),
        ("first", What.EXITED),
        ("side", What.STARTED),
        ("side", What.STARTUP_PASSED),
        ("second", What.STARTED),
        ("second", What.EXITED),
        ("c", What.STARTED),
    ]
    assert pod.restarts["first"] == 1


def test_what_does_not_come_is_an_error_with_logs_and_probes(cluster: Cluster) -> None:
    probe = {"httpGet": {"port": 1, "path": "/x"}, "periodSeconds": 1}
    container = shell("echo last words; exec sleep 99", readinessProbe=probe)
    cluster.apply([deployment("never", {"containers": [container]})])
    cluster.wait(lambda: "readiness probe: GET http://10." in cluster.report(), HANG_S)
    with pytest.raises(NotReached, match=r"\| last words"):
        cluster.wait(lambda: cluster.ready("never") == 1, 0.1)
    cluster.scale("never", 0)


def processes(command: str) -> int:
    """How many processes of the machine have exactly this command line."""
    wanted = command.replace(" ", "\0").encode() + b"\0"
    count = 0
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += entry.read_bytes() == wanted
        except OSError:
            continue  # ended meanwhile
    return count


def test_nothing_is_left_of_a_cluster_that_a_test_leaves_by_an_error(tmp_path: Path) -> None:
    links, mounts = Path("/sys/class/net"), Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    before = set(links.iterdir())
    pod = {"containers": [shell(f"trap '' TERM; {SLEEP}")]}

    def fails() -> None:
        with Cluster({IMAGE: Image()}, tmp_path) as cluster:
            cluster.apply([deployment("rest", pod, replicas=2)])
            cluster.wait(lambda: processes(SLEEP) == 2, HANG_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert processes(SLEEP) == 0
    assert not {link for link in set(links.iterdir()) - before if link.name.startswith(PREFIX)}
    assert Path("/proc/self/mountinfo").read_text(encoding="utf-8") == mounts
    assert list((tmp_path / "pods").iterdir()) == []
