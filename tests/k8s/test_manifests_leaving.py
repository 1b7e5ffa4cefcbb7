"""How pods leave, how they are replaced, and which pods may reach them."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.k8s.objects import (
    DEPLOYMENTS,
    SETS,
    Manifest,
    container,
    environment,
    named,
    of_kind,
    pod_labels,
    pod_spec,
    pools,
    ports_of,
    selects,
)
from tests.patience import HANG_S

# For what no limit counts: an engine needs 6 s to end its processes, a sidecar 1 s, traces flush.
SPARE_S: Final = 20

# Installations that one node is enough for.
ONE_MACHINE: Final = ("cpu", "one-gpu", "one-gpu-home", "own_images", "own_keys", "own_models")

every_set = pytest.mark.parametrize("folder", SETS)
POOLS: Final = pools()
every_pool = pytest.mark.parametrize("deployment", POOLS, ids=lambda each: each.file)


def after(flag: str, words: list[str]) -> str:
    """The value after a flag of a command line, as `--flag value` or `--flag=value`."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    raise ValueError(f"{flag} is not among {words}")


@every_pool
def test_grace_is_longer_than_all_that_leaves_one_after_the_other(deployment: Manifest) -> None:
    """The kubelet: preStop and TERM of the engine, then TERM of the native sidecar, then KILL."""
    engine, sidecar = container(deployment, "vllm"), container(deployment, "sidecar")
    hook = engine["lifecycle"]["preStop"]["exec"]["command"]
    draining = float(after("--within", hook))
    stopping = float(after("--shutdown-timeout", engine["args"]))
    leaving = float(environment(sidecar)["ORCH_DRAIN_TIMEOUT_S"]["value"])
    assert min(draining, stopping, leaving) > 0
    grace = pod_spec(deployment)["terminationGracePeriodSeconds"]
    assert grace >= draining + stopping + leaving + SPARE_S


@every_pool
def test_engine_leaves_before_the_sidecar_that_drains_it(deployment: Manifest) -> None:
    sidecar = container(deployment, "sidecar")
    assert sidecar in pod_spec(deployment)["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    admin = after(
        "--admin", container(deployment, "vllm")["lifecycle"]["preStop"]["exec"]["command"]
    )
    host, port = (environment(sidecar)[f"ORCH_ADMIN_{name}"]["value"] for name in ("HOST", "PORT"))
    assert admin == f"http://{host}:{port}"
    assert host == "127.0.0.1", "only the pod itself may drain it"


@every_pool
def test_nothing_depends_on_the_order_of_the_init_containers(deployment: Manifest) -> None:
    """A patch that names one of them puts it first."""
    assert {each["name"] for each in pod_spec(deployment)["initContainers"]} == {
        "unpack", "sidecar", "download",
    }  # fmt: skip
    filled = {
        mount["name"]: each["name"]
        for each in pod_spec(deployment)["initContainers"]
        for mount in each["volumeMounts"]
        if not mount.get("readOnly")
    }
    for each in pod_spec(deployment)["initContainers"]:
        for mount in each["volumeMounts"]:
            assert filled.get(mount["name"], each["name"]) == each["name"], mount


def test_sidecar_that_a_patch_puts_first_unpacks_the_code_that_it_runs(tmp_path: Path) -> None:
    """With a Python that notes what it is asked to run."""
    cloud = named("own_keys", "Deployment", "orch-cloud")
    assert pod_spec(cloud)["initContainers"][0]["name"] == "sidecar", "a component's patch names it"
    sidecar = container(cloud, "sidecar")
    assert "/etc/orch/code" in {mount["mountPath"] for mount in sidecar["volumeMounts"]}
    (tmp_path / "code.tar.bz2").touch()
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    words = [*sidecar["command"], *sidecar["args"]]
    done = subprocess.run(
        [word.replace("/etc/orch/code", str(tmp_path)) for word in words],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert done == [
        f"-I -m tarfile --filter data --extract {tmp_path}/code.tar.bz2 /opt/orch",
        "-I -m compileall -q /opt/orch",
        "-m orch_sidecar sidecar",
    ]


@every_set
def test_entry_leaves_the_service_before_it_drains(folder: str) -> None:
    entry = named(folder, "Deployment", "orch-entry")
    word, seconds = container(entry, "sidecar")["lifecycle"]["preStop"]["exec"]["command"]
    settings = yaml.safe_load(named(folder, "ConfigMap", "orch-entry").body["data"]["sidecar.yaml"])
    assert word == "sleep"
    needed = float(seconds) + settings["drain_timeout_s"] + SPARE_S
    assert pod_spec(entry)["terminationGracePeriodSeconds"] >= needed


@every_set
def test_pools_are_updated_without_a_spare_gpu_unless_there_is_one(folder: str) -> None:
    strategies = {
        each.name: each.body["spec"]["strategy"] for each in of_kind(folder, "Deployment")
    }
    in_place = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
    surge = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert strategies["orch-entry"] == surge
    for name in set(strategies) & {"orch-home", "orch-cloud"}:
        spare = folder == "own" and name == "orch-cloud"
        assert strategies[name] == (surge if spare else in_place)


@every_set
def test_budgets_protect_cloud_and_entry_and_let_a_node_be_drained(folder: str) -> None:
    budgets = {each.name: each.body["spec"] for each in of_kind(folder, "PodDisruptionBudget")}
    there = {each.name for each in of_kind(folder, "Deployment")}
    if folder in ONE_MACHINE:
        assert not budgets, "no replacement becomes ready while the only node is drained"
        return
    assert set(budgets) == there & {"orch-cloud", "orch-entry"}
    assert all(spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow" for spec in budgets.values())
    assert all(
        spec["maxUnavailable"] == 1 for name, spec in budgets.items() if name == "orch-cloud"
    )
    replicas = named(folder, "Deployment", "orch-entry").body["spec"]["replicas"]
    assert 1 <= budgets["orch-entry"]["minAvailable"] < replicas


# Clients, by the labels of the pod and of its namespace.
OTHERS: Final = ({"app": "shop"}, {"kubernetes.io/metadata.name": "shop"})
# A load balancer with IP targets: no pod, so that no selector matches it.
BALANCER: Final[tuple[dict[str, str], dict[str, str]]] = ({}, {})
PROMETHEUS: Final = ({"app": "prometheus"}, {"kubernetes.io/metadata.name": "monitoring"})
OURS: Final = {"kubernetes.io/metadata.name": "orch"}


def reaches(
    folder: str, source: tuple[Mapping[str, str], Mapping[str, str]], target: Manifest, port: int
) -> bool:
    """Whether the NetworkPolicies of a folder let a pod reach a port of a Deployment's pods."""
    applying = [
        policy.body["spec"]
        for policy in of_kind(folder, "NetworkPolicy")
        if selects(policy.body["spec"]["podSelector"], pod_labels(target))
    ]
    assert all(spec["policyTypes"] == ["Ingress"] for spec in applying)
    rules = [rule for spec in applying for rule in spec.get("ingress", ())]
    return not applying or any(
        any(each["port"] == port for each in rule["ports"])
        and ("from" not in rule or any(_is(peer, *source) for peer in rule["from"]))
        for rule in rules
    )


def _is(peer: Mapping[str, Any], pod: Mapping[str, str], namespace: Mapping[str, str]) -> bool:
    """A peer without a namespaceSelector is in the policy's own namespace."""
    there = selects(peer.get("namespaceSelector", OURS), namespace)
    return there and selects(peer.get("podSelector", {}), pod)


@every_set
def test_only_the_entry_and_prometheus_reach_pools_and_nobody_engines(folder: str) -> None:
    entry = named(folder, "Deployment", "orch-entry")
    found = [each for each in of_kind(folder, "Deployment") if each.name in DEPLOYMENTS.values()]
    assert found
    for pool in found:
        http_port = ports_of(pool)["http"]
        asking = {"others": OTHERS, "prometheus": PROMETHEUS, "entry": (pod_labels(entry), OURS)}
        asking["pool"] = (pod_labels(pool), OURS)
        asking["stranger"] = ({"app": "job"}, OURS)
        # An entry's labels are worth nothing in a namespace of somebody else.
        asking["impostor"] = (pod_labels(entry), OTHERS[1])
        reached = {
            source for source, each in asking.items() if reaches(folder, each, pool, http_port)
        }
        assert reached == {"entry", "prometheus"}
        for port in (8000, 9080):
            assert not [each for each in asking.values() if reaches(folder, each, pool, port)]


@every_set
def test_everybody_reaches_the_entry_and_only_this_namespace_jaeger(folder: str) -> None:
    entry = named(folder, "Deployment", "orch-entry")
    for asking in (OTHERS, BALANCER):
        assert reaches(folder, asking, entry, ports_of(entry)["http"])
        assert not reaches(folder, asking, entry, 9080)
    if folder == "own":
        return  # traces leave for a collector
    jaeger = named(folder, "Deployment", "orch-jaeger")
    for name in ("otlp-grpc", "otlp-http", "ui"):
        assert reaches(folder, (pod_labels(entry), OURS), jaeger, ports_of(jaeger)[name])
        assert not reaches(folder, OTHERS, jaeger, ports_of(jaeger)[name])


@every_set
def test_a_pod_of_orch_that_no_policy_names_is_not_reached_and_others_are(folder: str) -> None:
    """A team's namespace has pods that are none of our business."""
    part_of = {"app.kubernetes.io/part-of": "orch"}
    deny = named(folder, "NetworkPolicy", "orch-deny").body["spec"]
    assert deny == {"podSelector": {"matchLabels": part_of}, "policyTypes": ["Ingress"]}
    for each in of_kind(folder, "Deployment"):
        assert selects(deny["podSelector"], pod_labels(each)), each.file
    for policy in of_kind(folder, "NetworkPolicy"):
        assert not selects(policy.body["spec"]["podSelector"], {"app": "shop"}), policy.file


class _Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(self.server.answer if self.path == "/health" else 404)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


@pytest.fixture
def engine() -> Iterator[http.server.HTTPServer]:
    """Something that answers `/health` with its attribute `answer`."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Health) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def probe(port: int) -> int:
    """The exit code of the engine's probe against that port, run as it is declared."""
    words = container(POOLS[0], "vllm")["livenessProbe"]["exec"]["command"]
    assert sum(word.count("8000") for word in words) == 1
    command = [sys.executable, *(word.replace("8000", str(port)) for word in words[1:])]
    assert words[0] == "python3"
    return subprocess.run(command, capture_output=True, timeout=HANG_S).returncode


def test_engines_probe_passes_when_it_is_well_and_fails_when_not(
    engine: http.server.HTTPServer,
) -> None:
    engine.answer = 200  # type: ignore[attr-defined]
    assert probe(engine.server_port) == 0
    engine.answer = 503  # type: ignore[attr-defined]
    assert probe(engine.server_port) != 0


def test_engines_probe_fails_where_nothing_listens() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Health) as free:
        port = free.server_port
    assert probe(port) != 0
