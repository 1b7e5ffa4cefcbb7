"""The runner starts pods as a kubelet does: environment, files, rights, order, names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.k8s.asking import SOON_S, said, started
from tests.k8s.runner.cluster import Cluster, NotReached
from tests.k8s.runner.events import What
from tests.k8s.runner.image import Image
from tests.k8s.runner.schema.part import SpecError
from tests.k8s.runner.tiny import SHELL, deployment, plain, shell

SLEEP = f"sleep 4711.{os.getpid()}"  # a command line that nothing else has
FINE = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster({SHELL: Image()}, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_container_gets_the_declared_environment_command_and_directory(cluster: Cluster) -> None:
    cluster.apply([plain("ConfigMap", "env-map", data={"A": "1"})])
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
    projected = [
        {"configMap": {"name": "files", "items": [{"key": "b.txt", "path": "deep/b"}]}},
        {"secret": {"name": "secret"}},
        {"secret": {"name": "none", "optional": True}},
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
    assert said(cluster, pod, "cat /v/one.txt") == "one"
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


def test_service_is_found_by_name_and_its_pods_come_and_go(cluster: Cluster) -> None:
    body = {"selector": {"app": "found"}, "clusterIP": "None", "publishNotReadyAddresses": True}
    cluster.apply([plain("Service", "found", spec=body)])
    pod = started(cluster, "asking", {"containers": [shell("exec sleep 99")]})
    assert said(cluster, pod, "getent hosts found") == ""
    found = started(cluster, "found", {"containers": [shell(FINE)]})
    for name in ("found", "found.default", "found.default.svc.cluster.local"):
        assert said(cluster, pod, f"getent ahostsv4 {name}").split()[0] == found.ip
    cluster.scale("found", 0)
    cluster.wait(lambda: not cluster.pods("found"), SOON_S)
    cluster.wait(lambda: said(cluster, pod, "getent hosts found") == "", SOON_S)


def test_what_does_not_come_is_an_error_with_logs_and_probes(cluster: Cluster) -> None:
    probe = {"httpGet": {"port": 1, "path": "/x"}, "periodSeconds": 1}
    container = shell("echo last words; exec sleep 99", readinessProbe=probe)
    cluster.apply([deployment("never", {"containers": [container]})])
    with pytest.raises(NotReached) as wrong:
        cluster.wait(lambda: cluster.ready("never") == 1, 1.0)
    assert "| last words" in str(wrong.value)
    assert "readiness probe: GET http://10." in str(wrong.value)
    cluster.scale("never", 0)


def test_field_that_the_runner_does_not_do_is_an_error_that_names_it(cluster: Cluster) -> None:
    container = shell("true", stdin=True)
    with pytest.raises(SpecError, match=r"spec\.template\.spec\.containers\[0\]\.stdin"):
        cluster.apply([deployment("odd", {"containers": [container]})])
