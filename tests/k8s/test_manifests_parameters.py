"""Parameters are in one place and reach what they are for; components build by themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from k8s import render
from tests.k8s.objects import (
    DEPLOYMENTS,
    GUIDE,
    K8S,
    ROOT,
    Manifest,
    all_manifests,
    components,
    composed,
    container,
    mounts,
    pod_spec,
    references,
)
from tests.k8s.test_manifests_schema import FOREIGN, check, minors

PAGE: Final = ROOT / "docs" / "how-to" / "kubernetes.md"
DEFAULTS: Final = dict(
    line.split("=", 1)
    for line in (K8S / "base/parameters/parameters.env").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)
GPU: Final = "installations/gpu"
PARAMETERS: Final = "components/parameters"
POOL: Final = "Deployment/orch-cloud"
ENGINE: Final = "spec.template.spec.containers.vllm"
MATCH: Final = (
    "spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    ".nodeSelectorTerms.0.matchExpressions.0"
)
NUMBERS: Final = ("REPLICAS", "MIN_REPLICAS", "MAX_REPLICAS")
# Each parameter, a value, the object that has it then, and where; of several places one.
PLACES: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("MODEL", "team/model", "ConfigMap/orch-model", "data.MODEL"),
    ("REVISION", "main", "ConfigMap/orch-model", "data.REVISION"),
    ("SERVED_NAME", "ours", "ConfigMap/orch-model", "data.SERVED_NAME"),
    ("MAX_MODEL_LEN", "8192", "ConfigMap/orch-model", "data.MAX_MODEL_LEN"),
    ("TENSOR_PARALLEL_SIZE", "2", "ConfigMap/orch-model", "data.TENSOR_PARALLEL_SIZE"),
    ("PIPELINE_PARALLEL_SIZE", "2", "ConfigMap/orch-model", "data.PIPELINE_PARALLEL_SIZE"),
    ("HF_SECRET", "hub", POOL,
     "spec.template.spec.initContainers.download.env.HF_TOKEN.valueFrom.secretKeyRef.name"),
    ("NVIDIA_GPUS", "4", POOL, f"{ENGINE}.resources.limits.nvidia.com/gpu"),
    ("AMD_GPUS", "5", POOL, f"{ENGINE}.resources.requests.amd.com/gpu"),
    ("GAUDI_GPUS", "6", POOL, f"{ENGINE}.resources.limits.habana.ai/gaudi"),
    ("CPU", "7", POOL, f"{ENGINE}.resources.requests.cpu"),
    ("MEMORY", "40Gi", POOL, f"{ENGINE}.resources.requests.memory"),
    ("MEMORY_LIMIT", "80Gi", POOL, f"{ENGINE}.resources.limits.memory"),
    ("SHM", "9Gi", POOL, "spec.template.spec.volumes.shm.emptyDir.sizeLimit"),
    ("PROFILE", "offline.yaml", POOL, f"{ENGINE}.env.ORCH_PROFILE.value"),
    ("REPLICAS", "3", POOL, "spec.replicas"),
    ("IMAGE", "registry.example.com/rocm:1", POOL, f"{ENGINE}.image"),
    ("ENTRY_IMAGE", "registry.example.com/cpu:1", "Deployment/orch-entry",
     "spec.template.spec.containers.sidecar.image"),
    ("PULL_SECRET", "registry", "Deployment/orch-entry",
     "spec.template.spec.imagePullSecrets.0.name"),
    ("STORAGE", "90Gi", "PersistentVolumeClaim/orch-models-home",
     "spec.resources.requests.storage"),
    ("STORAGE_CLASS", "fast", "PersistentVolumeClaim/orch-models-home", "spec.storageClassName"),
    ("NODE_LABEL", "nvidia.com/gpu.product", POOL, f"{MATCH}.key"),
    ("NODE_VALUE", "NVIDIA-L4", POOL, f"{MATCH}.values.0"),
    ("TOLERATION", "gpu", POOL, "spec.template.spec.tolerations.0.key"),
    ("PRIORITY_CLASS", "serving", POOL, "spec.template.spec.priorityClassName"),
    ("RUNTIME_CLASS", "nvidia", POOL, "spec.template.spec.runtimeClassName"),
    ("MODEL_CLAIM", "weights", POOL,
     "spec.template.spec.volumes.model.persistentVolumeClaim.claimName"),
    ("HOST", "llm.example.org", "Ingress/orch", "spec.tls.0.hosts.0"),
    ("TLS_ISSUER", "ours", "Gateway/orch", "metadata.annotations.cert-manager.io/cluster-issuer"),
    ("INGRESS_CLASS", "traefik", "Ingress/orch", "spec.ingressClassName"),
    ("GATEWAY_CLASS", "istio", "Gateway/orch", "spec.gatewayClassName"),
    ("MONITORING_NAMESPACE", "observability", "NetworkPolicy/orch-pools",
     "spec.ingress.0.from.1.namespaceSelector.matchLabels.kubernetes.io/metadata.name"),
    ("MONITORING_RELEASE", "prometheus", "PodMonitor/orch-pools", "metadata.labels.release"),
    ("PROMETHEUS_URL", "http://prometheus:9090", "ScaledObject/orch-cloud",
     "spec.triggers.0.metadata.serverAddress"),
    ("MIN_REPLICAS", "2", "HorizontalPodAutoscaler/orch-cloud", "spec.minReplicas"),
    ("MAX_REPLICAS", "8", "ScaledObject/orch-cloud", "spec.maxReplicaCount"),
    # Of components that are built one at a time.
    ("MODEL_IMAGE", "registry.example.com/m:2", "", "components/model-volume/image"),
    ("NODE_CACHE", "/mnt/nvme", "", "components/node-cache"),
)  # fmt: skip


def at(body: Any, path: str) -> Any:
    """What an object has at a path: keys, indices, names of list items; a key may have dots."""
    found, steps = body, path.split(".")
    while steps:
        if isinstance(found, list):
            step = steps.pop(0)
            found = found[int(step)] if step.isdigit() else next(
                each for each in found if each["name"] == step
            )  # fmt: skip
            continue
        count = next(n for n in range(1, len(steps) + 1) if ".".join(steps[:n]) in found)
        found = found[".".join(steps[:count])]
        steps = steps[count:]
    return found


def test_every_parameter_is_in_the_readme_and_in_these_tests() -> None:
    assert [name for name, *_ in PLACES] == [each for each, *_ in PLACES if each in DEFAULTS]
    assert {name for name, *_ in PLACES} == set(DEFAULTS)
    named = set(re.findall(r"`([A-Z_]+)`", GUIDE.read_text(encoding="utf-8")))
    assert set(DEFAULTS) <= named


def test_every_parameter_reaches_what_it_is_for(tmp_path: Path) -> None:
    found = composed(
        tmp_path,
        [GPU, "overlays/monitoring", "overlays/autoscaling", "overlays/autoscaling-hpa"],
        ["components/model-volume/claim", "components/ingress", "components/gateway", PARAMETERS],
        {name: value for name, value, *_ in PLACES},
    )
    for name, value, key, path in PLACES:
        if key:
            reached = at(found[key].body, path)
            assert isinstance(reached, int if name in NUMBERS else str), name
            reached = str(reached)
            assert reached.removeprefix("/etc/orch/profiles/") == value, name
    for each in found.values():
        if each.kind not in FOREIGN:
            check(each.body, minors()[-1])  # numbers are numbers, quantities are texts
    pools = [found[f"Deployment/orch-{name}"] for name in ("home", "cloud")]
    for one in (one for pool in pools for one in pod_spec(pool)["initContainers"]):
        assert one["image"] == "registry.example.com/rocm:1"


def test_parameters_of_a_model_in_an_image_or_on_nodes_reach_their_volumes(tmp_path: Path) -> None:
    values = {name: value for name, value, key, _ in PLACES if not key} | {"STORAGE": "90Gi"}
    image = composed(tmp_path, [GPU], ["components/model-volume/image"], values)[POOL]
    reference = at(image.body, "spec.template.spec.volumes.model.image.reference")
    assert reference == values["MODEL_IMAGE"]
    for name in ("download", "vllm"):
        assert mounts(container(image, name))["/model"]["readOnly"]
    found = composed(tmp_path, [GPU], ["components/node-cache"], values)
    volume = found["PersistentVolume/orch-models-node"].body["spec"]
    assert (volume["local"]["path"], volume["capacity"]["storage"]) == ("/mnt/nvme", "90Gi")
    claim = found["PersistentVolumeClaim/orch-models-node"].body["spec"]
    assert claim["volumeName"] == "orch-models-node"
    for field in ("accessModes", "storageClassName"):
        assert claim[field] == volume[field], "they do not bind otherwise"
    assert claim["resources"]["requests"] == volume["capacity"]
    assert ("PersistentVolumeClaim", "orch-models-node", None, False) in [*references(found[POOL])]


def test_none_leaves_its_field_out_and_nothing_of_it_behind(tmp_path: Path) -> None:
    """`none` over a value: the lower overlay has all of them."""
    optional = [name for name, value in DEFAULTS.items() if value == "none"]
    optional += ["NVIDIA_GPUS", "TOLERATION"]
    lower = tmp_path / "lower"
    given = {name: value for name, value, *_ in PLACES if name in optional}
    composed(lower, [GPU], [PARAMETERS], given)
    lower_path = os.path.relpath(lower, K8S)
    found = composed(tmp_path / "own", [lower_path], [PARAMETERS], dict.fromkeys(optional, "none"))
    for name, _, key, path in PLACES:
        if name in optional:
            with pytest.raises((KeyError, StopIteration, IndexError)):
                at(found[key].body, path)
    left = [each for each in (*all_manifests(), *found.values()) if "orch/" in annotations_of(each)]
    assert left == []


def annotations_of(each: Manifest) -> str:
    return str(each.body["metadata"].get("annotations"))


def test_parameters_themselves_never_reach_a_cluster() -> None:
    assert "orch-parameters" not in {each.name for each in all_manifests()}


@pytest.fixture
def documented() -> str:
    """The kustomization that the page shows for a larger model."""
    text = PAGE.read_text(encoding="utf-8")
    [block] = re.findall(r"^ +```yaml\n(.*?)^ +```", text, re.MULTILINE | re.DOTALL)
    return str(block)


def test_llama_over_four_gpus_is_an_edit_of_at_most_six_lines_in_one_place(
    documented: str, tmp_path: Path
) -> None:
    """In an overlay of one's own, or in the file of parameters itself: the same pods."""
    own = yaml.safe_load(documented)
    [edit] = [each["literals"] for each in own["configMapGenerator"]]
    assert 0 < len(edit) <= 6
    for kind in ("resources", "components"):
        own[kind] = [os.path.relpath(ROOT / "my-overlay" / each, tmp_path) for each in own[kind]]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    found = {}
    for _, body in render.documents(render.kustomize(tmp_path)):
        each = Manifest("documented", body)
        check(body, minors()[-1])
        found[f"{each.kind}/{each.name}"] = each
    for name in ("orch-home", "orch-cloud"):
        engine = container(found[f"Deployment/{name}"], "vllm")
        assert {engine["resources"][kind]["nvidia.com/gpu"] for kind in engine["resources"]} == {
            "4"
        }
        assert "--tensor-parallel-size=$(TENSOR_PARALLEL_SIZE)" in engine["args"]
        assert ("ConfigMap", found["ConfigMap/orch-model"].full_name, None, False) in [
            *references(found[f"Deployment/{name}"])
        ]
    model = found["ConfigMap/orch-model"].body["data"]
    assert model["MODEL"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert model["TENSOR_PARALLEL_SIZE"] == "4"
    edited = {each.name: each.body for each in edited_in_place(tmp_path, edit)}
    assert edited == {each.name: each.body for each in found.values() if each.kind == "Deployment"}


def edited_in_place(tmp_path: Path, edit: list[str]) -> Iterator[Manifest]:
    """The Deployments of a checkout whose file of parameters has these lines."""
    copied = tmp_path / "k8s"
    shutil.copytree(K8S, copied, ignore=shutil.ignore_patterns("*.py", "images"))
    file = copied / "base" / "parameters" / "parameters.env"
    text = file.read_text(encoding="utf-8")
    for line in edit:
        text, count = re.subn(rf"^{line.partition('=')[0]}=.*$", line, text, flags=re.MULTILINE)
        assert count == 1, line
    file.write_text(text, encoding="utf-8")
    for _, body in render.documents(render.kustomize(copied / "installations" / "gpu")):
        if body["kind"] == "Deployment":
            yield Manifest("edited", body)


# Those that build on parameters have them without being told.
WITH_PARAMETERS: Final = (
    *("gateway", "images", "ingress", "kserve", "model-volume/claim", "model-volume/image"),
    *("model", "multi-node", "node-cache", "parameters", "shared-models"),
)


@pytest.mark.parametrize("component", components())
def test_component_builds_alone_with_all_that_its_pods_read(component: str, tmp_path: Path) -> None:
    found = composed(tmp_path, [GPU], [component], {"SERVED_NAME": "ours"})
    for each in found.values():
        if each.kind not in FOREIGN:
            check(each.body, minors()[0])
    served = found["ConfigMap/orch-model"].body["data"]["SERVED_NAME"]
    assert (served == "ours") == (component.removeprefix("components/") in WITH_PARAMETERS)
    there = {(each.kind, each.full_name) for each in found.values()}
    for pool in (found.get(f"Deployment/{name}") for name in DEPLOYMENTS.values()):
        needed = {(kind, one) for kind, one, *_ in references(pool)} if pool else set()
        assert {(kind, one) for kind, one in needed if kind in ("ConfigMap",)} <= there


@pytest.mark.parametrize("last", ["multi-node", "kserve"])
def test_parameters_reach_pools_of_other_kinds_and_are_refused_after_them(
    last: str, tmp_path: Path
) -> None:
    values = {"MODEL": "team/model", "NVIDIA_GPUS": "2", "SERVED_NAME": "ours"}
    found = composed(tmp_path, [GPU], [f"components/{last}"], values)
    if last == "multi-node":
        template = found["LeaderWorkerSet/orch-cloud-nodes"].body["spec"]["leaderWorkerTemplate"]
        engines = [
            template[f"{each}Template"]["spec"]["containers"][0] for each in ("leader", "worker")
        ]
    else:
        spec = found["LLMInferenceService/orch-cloud"].body["spec"]
        assert spec["model"] == {"uri": "hf://team/model", "name": "ours"}
        engines = spec["template"]["containers"]
    for engine in engines:
        assert engine["resources"]["limits"]["nvidia.com/gpu"] == "2"
    with pytest.raises(subprocess.CalledProcessError):
        composed(tmp_path, [GPU], [f"components/{last}", PARAMETERS], values)


def test_engines_over_several_nodes_read_a_model_of_ones_own_and_ask_for_keys(
    tmp_path: Path,
) -> None:
    parts = ["shared-models", "model-volume/claim", "multi-node", "api-keys"]
    values = {"MODEL": "/model", "MODEL_CLAIM": "weights"}
    found = composed(tmp_path, [GPU], [f"components/{each}" for each in parts], values)
    template = found["LeaderWorkerSet/orch-cloud-nodes"].body["spec"]["leaderWorkerTemplate"]
    for kind in ("leader", "worker"):
        spec = template[f"{kind}Template"]["spec"]
        assert at(spec, "volumes.model.persistentVolumeClaim.claimName") == "weights"
        assert "/model" in mounts(spec["containers"][0])
        names = [each["name"] for each in spec["initContainers"]]
        assert ("sidecar" in names) == (kind == "leader")
    sidecar = at(template, "leaderTemplate.spec.initContainers.sidecar")
    assert "/etc/orch/keys" in mounts(sidecar)


def test_models_at_one_entry_have_parameters_of_their_own(tmp_path: Path) -> None:
    values = {"MODEL": "team/model", "NVIDIA_GPUS": "2", "IMAGE": "registry.example.com/v:1"}
    found = composed(tmp_path, ["installations/two-models"], [PARAMETERS], values)
    models = {
        name: found[f"ConfigMap/{map_}"].body["data"]["MODEL"]
        for name, map_ in (("cloud", "orch-model"), ("small", "orch-model-small"))
    }
    assert models == {"cloud": "team/model", "small": "Qwen/Qwen3-0.6B"}
    gpus = {
        name: at(found[f"Deployment/orch-{name}"].body, f"{ENGINE}.resources.limits.nvidia.com/gpu")
        for name in ("home", "cloud", "small")
    }
    assert gpus == {"home": "2", "cloud": "2", "small": "1"}
    for name, config_map in (("orch-cloud", "orch-model"), ("orch-small", "orch-model-small")):
        read = {one for kind, one, *_ in references(found[f"Deployment/{name}"])}
        assert found[f"ConfigMap/{config_map}"].full_name in read
