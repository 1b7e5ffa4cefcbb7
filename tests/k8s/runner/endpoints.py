"""Which pods a Service stands for, and under which port. Pure: pods are values here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.k8s.runner.schema.objects import Service, ServicePort


@dataclass(frozen=True, slots=True)
class Backend:
    """A pod as a Service sees it. `ports` are its containers' named ports."""

    ip: str
    namespace: str
    labels: Mapping[str, str]
    ports: Mapping[str, int]
    ready: bool
    terminating: bool


def backends(service: Service, pods: Iterable[Backend]) -> list[Backend]:
    """The pods that get the service's traffic, and whose addresses a headless one is.

    A terminating pod is out at once, however ready it still says it is; with
    publishNotReadyAddresses every matching pod counts for as long as it has an address.
    """
    wanted = service.spec.selector.items()
    matching = [
        pod
        for pod in pods
        if pod.namespace == service.metadata.namespace and wanted <= pod.labels.items()
    ]
    if service.spec.publish_not_ready_addresses:
        return matching
    return [pod for pod in matching if pod.ready and not pod.terminating]


def target_port(port: ServicePort, pod: Backend) -> int | None:
    """Where the pod takes what arrives at the service's port; None where no port has the name."""
    target = port.target_port if port.target_port is not None else port.port
    return pod.ports.get(target) if isinstance(target, str) else target


def host_name(service: Service) -> str:
    """The service's full name in the cluster's domain."""
    return f"{service.metadata.name}.{service.metadata.namespace}.svc.cluster.local"
