"""The objects in the manifests, and what of them points to what. Reads files, knows no cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
K8S: Final = ROOT / "k8s"
SETS: Final = ("", "cpu")  # folders of which each is applied whole, one instead of the other
EXTRAS: Final = ("monitoring", "autoscaling", "gateway")  # applied in addition

LABELS: Final = tuple(
    f"app.kubernetes.io/{name}"
    for name in ("name", "instance", "version", "component", "part-of", "managed-by")
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One file, with the one object in it."""

    path: Path
    body: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def file(self) -> str:
        """Its path below k8s/; what a failing test calls it."""
        return str(self.path.relative_to(K8S))


class _UniqueKeys(yaml.CSafeLoader):
    """As the API server reads: a key that is given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise ValueError(f"{node.start_mark}: given twice: {', '.join(map(str, twice))}")
        return super().construct_mapping(node, deep)


def parsed(text: str) -> Any:
    """The one document of a manifest. Raises ValueError for several, and for repeated keys."""
    [document] = yaml.load_all(text, Loader=_UniqueKeys)  # a SafeLoader
    return document


@cache
def manifests(folder: str) -> tuple[Manifest, ...]:
    """What `kubectl apply -f` of that folder of k8s/ applies, in its order."""
    paths = sorted((K8S / folder).glob("*.yaml"))
    return tuple(Manifest(path, parsed(path.read_text(encoding="utf-8"))) for path in paths)


def all_manifests() -> list[Manifest]:
    """Those of all folders."""
    return [each for folder in (*SETS, *EXTRAS) for each in manifests(folder)]


def of_kind(folder: str, *kinds: str) -> list[Manifest]:
    """The objects of these kinds in a folder."""
    return [each for each in manifests(folder) if each.kind in kinds]


def named(folder: str, kind: str, name: str) -> Manifest:
    """The one object of that kind and name. Raises ValueError if there is none, or several."""
    found = [each for each in of_kind(folder, kind) if each.name == name]
    if len(found) != 1:
        raise ValueError(f"k8s/{folder}: {len(found)} objects {kind}/{name}")
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
    """The variables of a container, by name."""
    return {variable["name"]: variable for variable in each.get("env", ())}


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
            raise ValueError(f"{deployment.file}: envFrom {source}: name the variables")
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


def mounts(each: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """A container's mounts by path."""
    return {mount["mountPath"]: mount for mount in each.get("volumeMounts", ())}


def mount_of(each: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """The mount that a path of a container lies in."""
    there = mounts(each)
    above = [str(part) for part in (PurePosixPath(path), *PurePosixPath(path).parents)]
    return next((there[part] for part in above if part in there), None)


def folder_of(deployment: Manifest) -> str:
    """The folder of k8s/ that it is applied with."""
    return str(deployment.path.parent.relative_to(K8S)).removeprefix(".")


def named_in(text: str) -> list[str]:
    """The variables that a text refers to as `$(NAME)`."""
    return [part.partition(")")[0] for part in text.split("$(")[1:]]
