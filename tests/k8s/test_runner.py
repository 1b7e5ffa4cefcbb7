"""The harness runs what a pod's spec says: environment, files, rights, order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.asking import SOON_S, said, started
from tests.k8s.runner.cluster import Cluster
from tests.k8s.runner.events import What
from tests.k8s.runner.image import Image
from tests.k8s.runner.schema.part import SpecError
from tests.k8s.runner.tiny import SHELL, deployment, plain, service, shell

STAND_IN = Image(
    instead=("sh", "-c", "cat /opt/hello; exec sleep 99"), files={"/opt/hello": "hi\n"}
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    kept = tmp_path_factory.mktemp("kept")
    (kept / "file").write_text("kept")
    images = {SHELL: Image(), "public/thing:2": STAND_IN, "kept:1": Image(kept=(str(kept),))}
    with Cluster(images, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_container_gets_the_declared_environment_command_and_directory(cluster: Cluster) -> None:
    cluster.apply([plain("ConfigMap", "env-map", data={"A": "1"}), service("env-svc")])
    field = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = shell(
        "env; pwd; echo args $0 $1; exec sleep 99",
        args=["$(URL)", "$$(URL)"],
        env=[{"name": "IP", **field}, {"name": "URL", "value": "http://$(IP)/$(A)"}],
        envFrom=[
            {"configMapRef": {"name": "env-map"}},
            {"secretRef": {"name": "absent", "optional": True}},
        ],
        workingDir="/var/work",
    )
    pod = started(cluster, "env", {"containers": [container]})
    cluster.wait(lambda: "args" in pod.log("c"), SOON_S)
    log = pod.log("c").splitlines()
    assert {f"IP={pod.ip}", f"URL=http://{pod.ip}/1", "A=1", f"HOSTNAME={pod.name}"} <= set(log)
    assert f"ENV_SVC_SERVICE_HOST={cluster.address('env-svc')}" in log
    assert "/var/work" in log
    assert f"args http://{pod.ip}/1 $(URL)" in log
    assert "PYTEST_CURRENT_TEST" not in pod.log("c")


def test_volumes_hold_what_their_sources_say(cluster: Cluster) -> None:
    data = {"a.txt": "one", "b.txt": "two"}
    cluster.apply(
        [
            plain("ConfigMap", "files", data=data, binaryData={"raw": "AAE="}),
            plain("Secret", "secret", stringData={"key": "hush"}),
            plain("PersistentVolumeClaim", "disk", spec={}),
        ]
    )
    (cluster.claim("disk") / "given").write_text("before")
    downward = {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}
    projected = [
        {"configMap": {"name": "files", "items": [{"key": "b.txt", "path": "deep/b"}]}},
        {"secret": {"name": "secret"}},
        {"secret": {"name": "none", "optional": True}},
        {"downwardAPI": downward},
    ]
    volumes = [
        {"name": "map", "configMap": {"name": "files", "defaultMode": 0o444}},
        {"name": "key", "secret": {"secretName": "secret", "defaultMode": 0o400}},
        {"name": "no", "secret": {"secretName": "none", "optional": True}},
        {"name": "all", "projected": {"sources": projected}},
        {"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "3Mi"}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": volume["name"], "mountPath": f"/v/{volume['name']}"} for volume in volumes
    ]
    mounts += [
        {"name": "map", "mountPath": "/v/one.txt", "subPath": "a.txt"},
        {"name": "tmp", "mountPath": "/v/sub", "subPath": "x/y"},
        {"name": "tmp", "mountPath": "/v/ro", "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    pod = started(
        cluster,
        "volumes",
        {
            "containers": [
                shell(
                    "exec sleep 99",
                    volumeMounts=mounts,
                    securityContext={"readOnlyRootFilesystem": True},
                )
            ],
            "volumes": volumes,
            "securityContext": {"fsGroup": 4242},
        },
    )
    assert said(cluster, pod, "cd /v/map; cat a.txt b.txt; od -An -tx1 raw") == "onetwo 00 01\n"
    assert said(cluster, pod, "stat -Lc %a:%g /v/map/a.txt /v/key/key") == "444:4242\n440:4242\n"
    assert said(cluster, pod, "readlink /v/map/a.txt; cat /v/key/key") == "..data/a.txt\nhush"
    assert said(cluster, pod, "ls /v/no; cat /v/all/deep/b /v/all/key") == "twohush"
    assert said(cluster, pod, "cat /v/all/name /v/one.txt") == f"{pod.name}one"
    for path in ("/v/map/x", "/v/key/x", "/v/ro/x", "/root/x", "/x"):
        assert "Read-only file system" in said(cluster, pod, f"touch {path}")
    assert said(cluster, pod, "touch /v/sub/f /dev/shm/f; ls /v/tmp/x/y; ls /tmp/x") == "f\ny\n"
    sizes = "df -B1 --output=size /v/mem /dev/shm | tail -n2"
    assert said(cluster, pod, sizes).split() == [str(3 * 2**20), str(64 * 2**20)]
    assert said(cluster, pod, "stat -c %g:%A /v/tmp /v/mem /v/disk").split() == [
        "4242:drwxrwsrwx",
        "4242:drwxrwsrwx",
        "4242:drwxrwsr-x",
    ]
    assert said(cluster, pod, "cat /v/disk/given; echo after > /v/disk/new") == "before"
    assert (cluster.claim("disk") / "new").read_text() == "after\n"

    cluster.apply([plain("ConfigMap", "files", data={"a.txt": "fresh", "c.txt": "three"})])
    assert said(cluster, pod, "cd /v/map; ls; cat a.txt; cat /v/one.txt").split() == [
        "a.txt",
        "c.txt",
        "freshone",
    ]


def test_user_groups_and_capabilities_are_those_of_the_security_context(cluster: Cluster) -> None:
    context = {"runAsUser": 12345, "runAsGroup": 23456, "supplementalGroups": [7], "fsGroup": 8}
    locked: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
    }
    look = "id -u; id -g; id -G; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status"
    pod = started(
        cluster,
        "rights",
        {
            "securityContext": context,
            "containers": [
                shell(f"{look}; exec sleep 99", "locked", securityContext=locked),
                shell(f"{look}; exec sleep 99", "open", securityContext={"runAsUser": 0}),
            ],
        },
    )
    cluster.wait(lambda: all("NoNewPrivs" in pod.log(name) for name in pod.logs), SOON_S)
    none = "0" * 16
    expected = ["12345", "23456", "23456 7 8", f"CapEff:\t{none}", f"CapBnd:\t{none}"]
    assert pod.log("locked").splitlines() == [*expected, "NoNewPrivs:\t1"]
    assert said(cluster, pod, look, "locked").splitlines() == [*expected, "NoNewPrivs:\t1"]
    # The default set of containerd, as `capsh --decode` reads it: chown to setfcap, 14 of them.
    assert pod.log("open").splitlines()[-3:] == [
        "CapEff:\t00000000a80425fb",
        "CapBnd:\t00000000a80425fb",
        "NoNewPrivs:\t0",
    ]


def test_container_that_must_not_be_root_is_not_started_as_root(cluster: Cluster) -> None:
    container = shell("sleep 99", securityContext={"runAsNonRoot": True})
    cluster.apply([deployment("noroot", {"containers": [container]})])
    cluster.wait(lambda: "runAsNonRoot, and its image runs as root" in cluster.report(), SOON_S)
    assert What.STARTED not in {e.what for e in cluster.events if e.pod.startswith("noroot")}
    cluster.scale("noroot", 0)


def test_init_containers_sidecars_and_main_containers_start_in_order(cluster: Cluster) -> None:
    share = [{"name": "v", "mountPath": "/v"}]
    startup = {"exec": {"command": ["test", "-e", "/v/up"]}, "periodSeconds": 1}
    startup["failureThreshold"] = 9
    pod = started(
        cluster,
        "order",
        {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "initContainers": [
                # Fails once: a marker in the volume outlives the container.
                shell("echo try; test -e /v/one && exit 0; touch /v/one; exit 3", "first",
                      volumeMounts=share),
                shell("sleep 0.5; touch /v/up; exec sleep 99", "side", volumeMounts=share,
                      restartPolicy="Always", startupProbe=startup),
                shell("test -e /v/up", "second", volumeMounts=share),
            ],
            "containers": [shell("exec sleep 99")],
        },
    )  # fmt: skip
    order = [
        (e.container, e.what, e.detail if e.what is What.EXITED else "")
        for e in cluster.events
        if e.pod == pod.name
        and e.what in {What.STARTED, What.EXITED, What.STARTUP_PASSED, What.POD_READY}
    ]
    assert order == [
        ("first", What.STARTED, ""),
        ("first", What.EXITED, "3"),
        ("first", What.STARTED, ""),
        ("first", What.EXITED, "0"),
        ("side", What.STARTED, ""),
        ("side", What.STARTUP_PASSED, ""),
        ("second", What.STARTED, ""),
        ("second", What.EXITED, "0"),
        ("c", What.STARTED, ""),
        (None, What.POD_READY, ""),
    ]
    assert pod.log("first") == "try\ntry\n"
    assert pod.restarts["first"] == 1


def test_image_may_stand_in_for_a_program_that_is_not_here(cluster: Cluster) -> None:
    container = {"name": "c", "image": "public/thing:2", "command": ["/thing", "--serve"]}
    pod = started(cluster, "stand-in", {"containers": [container]})
    cluster.wait(lambda: pod.log("c") == "hi\n", SOON_S)


def test_image_keeps_what_it_says_and_nothing_beside_it(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (top := tmp_path_factory.getbasetemp()).joinpath("beside").touch()
    container = {"name": "c", "image": "kept:1", "command": ["sleep", "99"]}
    pod = started(cluster, "kept", {"containers": [container]})
    assert (
        said(cluster, pod, f"cd {top}; echo */* beside*; cat */file") == "kept0/file beside*\nkept"
    )


def test_missing_config_map_keeps_the_pod_waiting_until_it_is_there(cluster: Cluster) -> None:
    volumes = [{"name": "late", "configMap": {"name": "late"}}]
    cluster.apply(
        [deployment("late", {"containers": [shell("exec sleep 99")], "volumes": volumes})]
    )
    cluster.wait(lambda: "ConfigMap 'late' not found" in cluster.report(), SOON_S)
    cluster.apply([plain("ConfigMap", "late")])
    cluster.wait(lambda: cluster.ready("late") == 1, SOON_S)


def test_unknown_image_is_an_error_that_names_it(cluster: Cluster) -> None:
    container = {"name": "c", "image": "nobody/knows:1"}
    with pytest.raises(SpecError, match="'nobody/knows:1', which the cluster was not given"):
        cluster.apply([deployment("unknown", {"containers": [container]})])
    with pytest.raises(LookupError, match="'unknown': 0 found"):
        cluster.pods("unknown")


def test_object_in_a_namespace_that_is_not_there_is_an_error(cluster: Cluster) -> None:
    item = plain("ConfigMap", "lost")
    item["metadata"]["namespace"] = "nowhere"
    with pytest.raises(SpecError, match="ConfigMap/lost: namespace 'nowhere' not found"):
        cluster.apply([item])


def test_the_host_sees_nothing_of_what_pods_write(cluster: Cluster) -> None:
    script = "echo x > /etc/k8s-runner-was-here; rm /etc/passwd; exec sleep 99"
    pod = started(cluster, "writer", {"containers": [shell(script)]})
    assert "x" in said(cluster, pod, "cat /etc/k8s-runner-was-here; ls /etc/passwd 2>/dev/null")
    assert not Path("/etc/k8s-runner-was-here").exists()
    assert Path("/etc/passwd").exists()
