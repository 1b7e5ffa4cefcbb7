"""What tests of the harness ask of a cluster."""

from __future__ import annotations

from typing import Any, Final

from tests.k8s.runner.cluster import Cluster
from tests.k8s.runner.tiny import deployment
from tests.k8s.runner.view import Pod

SOON_S: Final = 15.0


def started(
    cluster: Cluster, name: str, pod: dict[str, Any], *, within_s: float = SOON_S, **spec: Any
) -> Pod:
    """Applies a Deployment and waits for its pods to be ready. Returns the first."""
    cluster.apply([deployment(name, pod, **spec)])
    cluster.wait(lambda: cluster.ready(name) == spec.get("replicas", 1), within_s)
    return cluster.pods(name)[0]


def said(cluster: Cluster, pod: Pod, script: str, container: str = "c") -> str:
    """What a shell script prints in a container."""
    return cluster.exec(pod.name, container, ["sh", "-c", script]).output
