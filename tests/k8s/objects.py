"""The objects that the overlays render, and what of them points to what. Knows no cluster."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from k8s import render

ROOT: Final = Path(__file__).parents[2]
K8S: Final = ROOT / "k8s"
# The page whose commands are for people.
GUIDE: Final = ROOT / "docs" / "reference" / "kubernetes.md"
DEFAULT: Final = "gpu"  # the overlay that the flat files are rendered from
# Overlays as a team makes them, beside this file: with all components but two, and with these.
OWN: Final = ("own", "own_images", "own_keys", "own_models")
# Where they are, if not in a namespace of their own.
TEAMS: Final = {"own_keys": "team-a"}
# Overlays that are whole installations, one instead of the other.
SETS: Final = (DEFAULT, "cpu", "one-gpu", "one-gpu-home", "openshift", "two-models", *OWN)
# Applied in addition.
EXTRAS: Final = ("monitoring", "autoscaling", "autoscaling-hpa", "gateway")
# With kinds in place of Deployments, or beside them.
OTHERS: Final = ("multi-node", "kserve", "inference-pool")
# What includes components/api-keys.
WITH_KEYS: Final = ("own_keys", "kserve", "inference-pool")
DEPLOYMENTS: Final = {"home": "orch-home", "cloud": "orch-cloud", "small": "orch-small"}

LABELS: Final = tuple(
    f"app.kubernetes.io/{name}"
    for name in ("name", "instance", "version", "component", "part-of", "managed-by")
)
_HASH: Final = re.compile(r"-[a-z0-9]{10}$")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object of an overlay."""

    folder: str
    body: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def full_name(self) -> str:
        """Its name in the cluster."""
        return str(self.body["metadata"]["name"])

    @property
    def name(self) -> str:
        """Its name without the hash of its contents."""
        return _HASH.sub("", self.full_name) if self.hashed else self.full_name

    @property
    def hashed(self) -> bool:
        """Whether its name carries a hash of its contents."""
        return self.kind == "ConfigMap" and bool(self.body.get("immutable"))

    @property
    def file(self) -> str:
        """What a failing test calls it."""
        return f"{self.folder}/{self.kind}-{self.name}"


def folder_path(folder: str) -> Path:
    """The directory of an overlay."""
    return Path(__file__).with_name(folder) if folder in OWN else K8S / "overlays" / folder


@cache
def manifests(folder: str) -> tuple[Manifest, ...]:
    """What `kubectl apply -k` of that overlay applies, in its order."""
    rendered = render.kustomize(folder_path(folder))
    return tuple(Manifest(folder, body) for _, body in render.documents(rendered))


def components() -> list[str]:
    """What an overlay may include, without the components of components."""
    folders = sorted(path.parent for path in K8S.glob("components/**/kustomization.yaml"))
    found = [str(folder.relative_to(K8S)) for folder in folders]
    return [each for each in found if not each.endswith(("parameters/values", "volume/mount"))]


def all_manifests() -> list[Manifest]:
    """The distinct objects of all overlays."""
    found = [each for folder in (*SETS, *EXTRAS, *OTHERS) for each in manifests(folder)]
    return distinct(found)


def distinct(found: list[Manifest]) -> list[Manifest]:
    """Each of equal objects once."""
    return list({json.dumps(each.body, sort_keys=True): each for each in reversed(found)}.values())


def deployments() -> list[Manifest]:
    """The distinct Deployments of all installations."""
    return distinct([each for folder in SETS for each in of_kind(folder, "Deployment")])


def pools() -> list[Manifest]:
    """The distinct Deployments with engines."""
    return [each for each in deployments() if each.name in DEPLOYMENTS.values()]


def of_kind(folder: str, *kinds: str) -> list[Manifest]:
    """The objects of these kinds in an overlay."""
    return [each for each in manifests(folder) if each.kind in kinds]


def named(folder: str, kind: str, name: str) -> Manifest:
    """The one object of that kind and name. Raises ValueError if there is none, or several."""
    found = [each for each in of_kind(folder, kind) if name in (each.name, each.full_name)]
    if len(found) != 1:
        raise ValueError(f"{folder}: {len(found)} objects {kind}/{name}")
    return found[0]


def pod_spec(deployment: Manifest) -> Mapping[str, Any]:
    """The pods' specification of a Deployment."""
    spec: Mapping[str, Any] = deployment.body["spec"]["template"]["spec"]
    return spec


def pod_labels(deployment: Manifest) -> Mapping[str, str]:
    labels: Mapping[str, str] = deployment.body["spec"]["template"]["metadata"]["labels"]
    return labels


def containers(deployment: Manifest) -> list[Mapping[str, Any]]:
    """All containers of its pods, the init containers first."""
    spec = pod_spec(deployment)
    return [*spec.get("initContainers", ()), *spec["containers"]]


def container(deployment: Manifest, name: str) -> Mapping[str, Any]:
    """The container of that name. Raises ValueError if there is none."""
    [found] = [each for each in containers(deployment) if each["name"] == name]
    return found


def serves(each: Mapping[str, Any], deployment: Manifest) -> bool:
    """Whether a container is there while the pod is: a main one, or a native sidecar."""
    return each in pod_spec(deployment)["containers"] or each.get("restartPolicy") == "Always"


def environment(each: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The variables that a container names itself."""
    return {variable["name"]: variable for variable in each.get("env", ())}


def from_config_maps(each: Mapping[str, Any], folder: str) -> dict[str, str]:
    """The variables that a container has from ConfigMaps."""
    found: dict[str, str] = {}
    for source in each.get("envFrom", ()):
        found |= named(folder, "ConfigMap", source["configMapRef"]["name"]).body["data"]
    return found


def ports_of(deployment: Manifest) -> dict[str, int]:
    """The named ports of its pods."""
    return {
        port["name"]: port["containerPort"]
        for each in containers(deployment)
        for port in each.get("ports", ())
    }


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a selector (`matchLabels`, or a Service's) selects what has these labels."""
    unknown = set(selector) - {"matchLabels"} if "matchLabels" in selector else set()
    if unknown:
        raise ValueError(f"selector with {', '.join(unknown)}: only matchLabels is understood")
    wanted: Mapping[str, str] = selector.get("matchLabels", selector)
    return wanted.items() <= labels.items()


_SUFFIXES: Final = {"": 1.0, "m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def quantity(text: str) -> float:
    """A quantity of Kubernetes as a number. Raises ValueError for a suffix that is not known."""
    match = re.fullmatch(r"([0-9.]+)(\D*)", text)
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"{text!r} is no quantity with one of {', '.join(_SUFFIXES)}")
    return float(match[1]) * _SUFFIXES[match[2]]


def references(deployment: Manifest) -> Iterator[tuple[str, str, str | None, bool]]:
    """What its pods read: kind, name, key (None: all of it), and whether they can do without."""
    spec = pod_spec(deployment)
    for each in containers(deployment):
        for variable in each.get("env", ()):
            source = variable.get("valueFrom", {})
            for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
                if field in source:
                    ref = source[field]
                    yield kind, ref["name"], ref["key"], ref.get("optional", False)
        for source in each.get("envFrom", ()):
            yield "ConfigMap", source["configMapRef"]["name"], None, False
    for volume in spec.get("volumes", ()):
        sources = volume["projected"]["sources"] if "projected" in volume else [volume]
        for source in sources:
            if "configMap" in source:
                ref = source["configMap"]
                yield "ConfigMap", ref["name"], None, ref.get("optional", False)
            if "secret" in source:
                ref = source["secret"]
                name = ref.get("secretName") or ref["name"]
                yield "Secret", name, None, ref.get("optional", False)
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            yield "PersistentVolumeClaim", claim, None, False


def credentials(monitor: Manifest) -> list[Mapping[str, str]]:
    """The keys of Secrets that a monitor sends: one for each of its endpoints that has any."""
    spec = monitor.body["spec"]
    endpoints = spec.get("podMetricsEndpoints") or spec["endpoints"]
    return [each["authorization"]["credentials"] for each in endpoints if "authorization" in each]


def constants(each: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a container that have a value of their own."""
    return {name: one["value"] for name, one in environment(each).items() if "value" in one}


def mounts(each: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """A container's mounts by path."""
    return {mount["mountPath"]: mount for mount in each.get("volumeMounts", ())}


def mount_of(each: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """The mount that a path of a container lies in."""
    there = mounts(each)
    above = [str(part) for part in (PurePosixPath(path), *PurePosixPath(path).parents)]
    return next((there[part] for part in above if part in there), None)


def named_in(text: str) -> list[str]:
    """The variables that a text refers to as `$(NAME)`."""
    return [part.partition(")")[0] for part in text.split("$(")[1:]]


def composed(
    folder: Path,
    resources: Sequence[str],
    components: Sequence[str] = (),
    parameters: Mapping[str, str] | None = None,
) -> dict[str, Manifest]:
    """What an overlay of one's own, written to `folder`, renders; by kind and name.

    It is made of parts of k8s/. Raises CalledProcessError where kustomize refuses it.
    """
    own: dict[str, Any] = {
        "resources": [os.path.relpath(K8S / each, folder) for each in resources],
        "components": [os.path.relpath(K8S / each, folder) for each in components],
    }
    if parameters:
        merged = {"name": "orch-parameters", "namespace": "orch", "behavior": "merge"}
        literals = [f"{name}={value}" for name, value in parameters.items()]
        own["configMapGenerator"] = [{**merged, "literals": literals}]
    folder.mkdir(exist_ok=True)
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    found = [Manifest("composed", body) for _, body in render.documents(render.kustomize(folder))]
    return {f"{each.kind}/{each.name}": each for each in found}
