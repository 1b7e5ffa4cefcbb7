"""Engines over several nodes, and engines of KServe: kinds that have no schema here.

Their shape is written from https://lws.sigs.k8s.io and config/llmisvcconfig of kserve/kserve; the
pods in them are validated as those of a Deployment.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import pytest

from orch_sidecar.api.endpoints import ENDPOINTS
from tests.k8s.objects import (
    Manifest,
    container,
    manifests,
    named,
    of_kind,
    pod_labels,
    references,
    selects,
)
from tests.k8s.test_manifests_schema import check, minors

NODES: Final = named("multi-node", "LeaderWorkerSet", "orch-cloud-nodes")
TEMPLATE: Final = NODES.body["spec"]["leaderWorkerTemplate"]
SERVICE: Final = named("kserve", "LLMInferenceService", "orch-cloud")


def as_deployment(template: Mapping[str, Any], folder: str) -> Manifest:
    """A Deployment of these pods, which the helpers and the schema know."""
    body = copy.deepcopy(dict(named("gpu", "Deployment", "orch-cloud").body))
    labels = template.get("metadata", {}).get("labels", {"app": "x"})
    body["spec"]["template"] = {"metadata": {"labels": labels}, "spec": template["spec"]}
    body["spec"]["selector"] = {"matchLabels": labels}
    return Manifest(folder, body)


LEADER: Final = as_deployment(TEMPLATE["leaderTemplate"], "multi-node")
WORKER: Final = as_deployment(TEMPLATE["workerTemplate"], "multi-node")
SERVED: Final = as_deployment({"spec": SERVICE.body["spec"]["template"]}, "kserve")
every_pod = pytest.mark.parametrize(
    "pod", [LEADER, WORKER, SERVED], ids=["leader", "worker", "kserve"]
)


@every_pod
@pytest.mark.parametrize("minor", minors())
def test_pods_are_valid(pod: Manifest, minor: str) -> None:
    check(pod.body, minor)


@every_pod
def test_names_with_hashes_are_those_of_objects_that_there_are(pod: Manifest) -> None:
    there = {(each.kind, each.full_name) for each in manifests(pod.folder)}
    needed = [(kind, name) for kind, name, _, optional in references(pod) if not optional]
    found = [each for each in needed if each[0] != "Secret"]  # operators make those
    assert ("ConfigMap", named(pod.folder, "ConfigMap", "orch-model").full_name) in found
    assert set(found) <= there


def test_set_has_the_fields_of_its_kind() -> None:
    assert NODES.body["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    assert set(NODES.body["spec"]) == {"leaderWorkerTemplate"}
    assert set(TEMPLATE) == {"size", "restartPolicy", "leaderTemplate", "workerTemplate"}
    assert of_kind("multi-node", "Deployment")
    assert "orch-cloud" not in {each.name for each in of_kind("multi-node", "Deployment")}


def test_only_leaders_are_in_a_service_and_in_the_budget() -> None:
    for each in of_kind("multi-node", "Service", "PodDisruptionBudget"):
        selector = each.body["spec"]["selector"]
        assert not selects(selector, pod_labels(WORKER)), each.file
    cloud = named("multi-node", "Service", "orch-cloud").body["spec"]["selector"]
    assert selects(cloud, pod_labels(LEADER))


def test_set_creates_a_service_that_is_not_the_entry_s() -> None:
    """The controller creates a headless Service with the set's name, for all its pods."""
    assert NODES.name not in {each.name for each in of_kind("multi-node", "Service")}


def test_pods_of_the_set_reach_each_other_at_every_port() -> None:
    [policy] = [
        each.body["spec"]
        for each in of_kind("multi-node", "NetworkPolicy")
        if each.name == "orch-cloud-nodes"
    ]
    pods = {"matchLabels": {"leaderworkerset.sigs.k8s.io/name": NODES.name}}
    assert policy["podSelector"] == pods
    assert policy["ingress"] == [{"from": [{"podSelector": pods}]}]


def test_workers_run_the_leader_s_engine_without_its_sidecar() -> None:
    leader, worker = (each.body["spec"]["template"]["spec"] for each in (LEADER, WORKER))
    assert [each["name"] for each in leader["initContainers"]] == ["unpack", "sidecar", "download"]
    assert [each["name"] for each in worker["initContainers"]] == ["unpack", "download"]
    [one], [other] = leader["containers"], worker["containers"]
    assert other["args"] == [*one["args"], "--headless"]
    assert {name for name in one if one[name] != other.get(name)} == {
        "args", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle",
    }  # fmt: skip
    instance = "app.kubernetes.io/instance"
    assert pod_labels(LEADER)[instance] == pod_labels(WORKER)[instance] == "cloud", "the profile"


def test_every_node_mounts_the_volume_of_models() -> None:
    [claim] = of_kind("multi-node", "PersistentVolumeClaim")
    assert claim.body["spec"]["accessModes"] == ["ReadWriteMany"]


def test_kserve_reaches_the_sidecar_where_it_looks_for_the_engine() -> None:
    assert SERVICE.body["apiVersion"] == "serving.kserve.io/v1alpha1"
    assert set(SERVICE.body["spec"]) == {"model", "storageInitializer", "router", "template"}
    spec = SERVICE.body["spec"]["template"]
    [engine] = spec["containers"]
    [sidecar] = [each for each in spec["initContainers"] if each["name"] == "sidecar"]
    assert engine["name"] == "main"
    assert {"--host=127.0.0.1", "--port=8001"} <= set(engine["args"])
    assert [port["containerPort"] for port in sidecar["ports"]] == [8000]
    variables = {each["name"]: each.get("value") for each in sidecar["env"]}
    assert variables["ORCH_PORT"] == "8000"
    assert variables["ORCH_ENGINE_URL"] == "http://127.0.0.1:8001"
    assert variables["POOL"] == "cloud"
    assert not [each for each in of_kind("kserve", "Deployment") if each.name == "orch-entry"]


# What config-llm-template.yaml of KServe has in `main`, in one release or another.
TEMPLATE_OF_KSERVE: Final[dict[str, Any]] = {
    "startupProbe": {"initialDelaySeconds": 10, "periodSeconds": 10, "failureThreshold": 60},
    "readinessProbe": {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
    "livenessProbe": {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 3},
    "securityContext": {"runAsNonRoot": False, "seccompProfile": {"type": "RuntimeDefault"}},
}


def merged(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """A strategic merge of fields that are no lists."""
    found = {**theirs, **ours}
    for name in theirs.keys() & ours.keys():
        if isinstance(theirs[name], Mapping):
            found[name] = merged(theirs[name], ours[name])
    return found


def test_kserve_downloads_nothing_and_its_pod_is_as_restricted_as_the_namespace_asks() -> None:
    """Its init container has no securityContext. The field is that of LLMInferenceServiceSpec."""
    assert SERVICE.body["spec"]["storageInitializer"] == {"enabled": False}
    [engine] = SERVICE.body["spec"]["template"]["containers"]
    context = merged(TEMPLATE_OF_KSERVE["securityContext"], engine["securityContext"])
    assert context["runAsNonRoot"] is True
    assert context["allowPrivilegeEscalation"] is False


def test_probes_of_kserve_are_those_of_the_pool_asked_of_the_sidecar() -> None:
    """KServe merges them into its own, which have httpGet, /health and shorter thresholds."""
    [engine] = SERVICE.body["spec"]["template"]["containers"]
    paths = {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/health"}
    usual = container(named("gpu", "Deployment", "orch-cloud"), "vllm")
    for name, path in paths.items():
        own = {"httpGet": {"path": "/health", "port": 8000, "scheme": "HTTPS"}}
        probe = merged(own | TEMPLATE_OF_KSERVE[name], engine[name])
        assert probe["httpGet"] == {"path": path, "port": 8000, "scheme": "HTTP"}
        assert path in ENDPOINTS
        assert "exec" not in probe
        times = ("periodSeconds", "timeoutSeconds", "failureThreshold")
        assert {each: probe[each] for each in times} == {each: usual[name][each] for each in times}
    start = engine["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 1800


def test_model_that_kserve_shows_is_the_engine_s() -> None:
    model = named("kserve", "ConfigMap", "orch-model").body["data"]
    shown = SERVICE.body["spec"]["model"]
    assert shown == {"uri": f"hf://{model['MODEL']}", "name": model["SERVED_NAME"]}
