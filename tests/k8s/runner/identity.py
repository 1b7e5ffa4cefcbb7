"""What a pod can learn about itself: the downward API's fields. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.k8s.runner.schema.part import SpecError


class Unstartable(RuntimeError):
    """A container cannot be made as things stand (a ConfigMap is missing …); it is tried again."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A pod's metadata and where it runs."""

    name: str
    namespace: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    service_account: str
    node_name: str
    host_ip: str
    pod_ip: str

    def field(self, path: str) -> str:
        """The value of a fieldRef's fieldPath.

        Raises:
            SpecError: the downward API has no such field.
        """
        simple = {
            "metadata.name": self.name,
            "metadata.namespace": self.namespace,
            "metadata.uid": self.uid,
            "metadata.labels": _lines(self.labels),
            "metadata.annotations": _lines(self.annotations),
            "spec.nodeName": self.node_name,
            "spec.serviceAccountName": self.service_account,
            "status.hostIP": self.host_ip,
            "status.podIP": self.pod_ip,
            "status.podIPs": self.pod_ip,
        }
        if path in simple:
            return simple[path]
        found = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
        if found is None:
            raise SpecError(f"fieldPath {path!r} is not a field of the downward API")
        return (self.labels if found[1] == "labels" else self.annotations).get(found[2], "")


def _lines(pairs: Mapping[str, str]) -> str:
    """One `key="value"` per line, sorted, as downward API files have them."""
    return "\n".join(f"{key}={json.dumps(value)}" for key, value in sorted(pairs.items()))
