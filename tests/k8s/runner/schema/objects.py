"""The objects a manifest holds, by kind.

Kinds in `WITHOUT_EFFECT` are accepted by name and kept as they are: nothing here evicts, scales by
itself, filters connections or asks an API server who it is.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field

from tests.k8s.runner.schema.part import Part, SpecError, Unused, read
from tests.k8s.runner.schema.pod import PodSpec

WITHOUT_EFFECT = (
    *("HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget", "PriorityClass"),
    *("PodMonitor", "ServiceAccount", "ServiceMonitor"),
)


class Metadata(Part):
    name: str
    namespace: str = "default"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Object(Part):
    api_version: str
    kind: str
    metadata: Metadata


class Namespace(Object):
    spec: Unused = None


class ConfigMap(Object):
    data: dict[str, str] = Field(default_factory=dict)
    binary_data: dict[str, str] = Field(default_factory=dict)
    immutable: bool = False

    def content(self) -> dict[str, bytes]:
        """Every key with its bytes."""
        said = {key: text.encode() for key, text in self.data.items()}
        return said | _decoded(self.binary_data, f"ConfigMap/{self.metadata.name}: binaryData")


class Secret(Object):
    type: str = "Opaque"
    data: dict[str, str] = Field(default_factory=dict)
    string_data: dict[str, str] = Field(default_factory=dict)
    immutable: bool = False

    def content(self) -> dict[str, bytes]:
        """Every key with its bytes; stringData wins, as on the API server."""
        said = _decoded(self.data, f"Secret/{self.metadata.name}: data")
        return said | {key: text.encode() for key, text in self.string_data.items()}


class ClaimObject(Object):
    spec: Unused


class ServiceSpec(Part):
    """Pods are found under a Service's name, and reached at their own ports."""

    selector: dict[str, str] = Field(min_length=1)
    publish_not_ready_addresses: bool = False
    ports: Unused = None
    type: Unused = None
    cluster_ip: Unused = Field(default=None, alias="clusterIP")
    session_affinity: Unused = None
    ip_families: Unused = None
    ip_family_policy: Unused = None
    internal_traffic_policy: Unused = None


class Service(Object):
    spec: ServiceSpec


class Template(Part):
    class Meta(Part):
        labels: dict[str, str] = Field(default_factory=dict)
        annotations: dict[str, str] = Field(default_factory=dict)

    metadata: Meta = Meta()
    spec: PodSpec


class LabelSelector(Part):
    match_labels: dict[str, str] = Field(default_factory=dict)


class DeploymentSpec(Part):
    selector: LabelSelector
    template: Template
    replicas: int = Field(default=1, ge=0)
    strategy: Unused = None
    revision_history_limit: Unused = None
    progress_deadline_seconds: Unused = None
    min_ready_seconds: Literal[0] = 0


class Deployment(Object):
    spec: DeploymentSpec


class Other(Object):
    """An object without effect: any content."""

    model_config = ConfigDict(extra="allow")


KINDS: dict[str, type[Object]] = {
    "Namespace": Namespace,
    "ConfigMap": ConfigMap,
    "Secret": Secret,
    "PersistentVolumeClaim": ClaimObject,
    "Service": Service,
    "Deployment": Deployment,
    **dict.fromkeys(WITHOUT_EFFECT, Other),
}


def parse(data: Mapping[str, Any]) -> Object:
    """One object of a manifest.

    Raises:
        SpecError: the kind is not one of `KINDS`, or a field is unknown, missing or wrong.
    """
    kind = data.get("kind")
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    where = f"{kind}/{name}"
    if not isinstance(kind, str) or kind not in KINDS:
        raise SpecError(f"{where}: kind {kind!r} is not one of {', '.join(sorted(KINDS))}")
    known = read(KINDS[kind], data, where)
    if isinstance(known, ConfigMap | Secret):
        known.content()
    if isinstance(known, Deployment):
        wanted, labels = known.spec.selector.match_labels, known.spec.template.metadata.labels
        if not wanted or any(labels.get(key) != value for key, value in wanted.items()):
            raise SpecError(f"{where}: spec.selector {wanted} does not match the labels {labels}")
    return known


def _decoded(data: Mapping[str, str], where: str) -> dict[str, bytes]:
    content = {}
    for key, text in data.items():
        try:
            content[key] = base64.b64decode("".join(text.split()), validate=True)
        except binascii.Error as wrong:
            raise SpecError(f"{where}.{key} is not base64: {wrong}") from wrong
    return content
