"""Services at work: their addresses, names and forwarded ports, as pods come and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.k8s.runner import endpoints
from tests.k8s.runner.endpoints import Backend
from tests.k8s.runner.environment import service_links
from tests.k8s.runner.forward import Forward
from tests.k8s.runner.network import Network
from tests.k8s.runner.schema.objects import Service
from tests.k8s.runner.store import Store

Key = tuple[str, str]


class Services:
    """`pods` gives the pods as they are now."""

    def __init__(self, store: Store, network: Network, pods: Callable[[], list[Backend]]) -> None:
        self._store, self._network, self._pods = store, network, pods
        self._addresses: dict[Key, str] = {}
        self._forwards: dict[tuple[Key, int], Forward] = {}

    async def give_addresses(self) -> None:
        """Gives every Service that is not headless its cluster address."""
        for service in self._store.all(Service):
            if not service.headless and _key(service) not in self._addresses:
                self._addresses[_key(service)] = await self._network.service_address()

    async def sync(self) -> None:
        """Points every Service's ports to the pods that are its endpoints now."""
        pods = self._pods()
        for service in self._store.all(Service):
            if service.headless:
                continue
            address = self._addresses.get(_key(service))
            if address is None:
                continue
            chosen = endpoints.backends(service, pods)
            for port in service.spec.ports:
                where = (_key(service), port.port)
                if where not in self._forwards:
                    self._forwards[where] = Forward(address, port.port)
                targets = [(pod.ip, endpoints.target_port(port, pod)) for pod in chosen]
                known = [(ip, number) for ip, number in targets if number is not None]
                await self._forwards[where].point(known)

    def address(self, service: Service) -> str:
        """The cluster address.

        Raises:
            LookupError: the Service is headless.
        """
        if service.headless:
            raise LookupError(f"Service {service.metadata.name!r} is headless: it has no address")
        return self._addresses[_key(service)]

    def lookup(self, name: str) -> list[str]:
        """What the cluster's DNS knows under a full name; empty where it knows nothing."""
        for service in self._store.all(Service):
            if endpoints.host_name(service) != name:
                continue
            if not service.headless:
                return [self._addresses[_key(service)]]
            return [pod.ip for pod in endpoints.backends(service, self._pods())]
        return []

    def links(self, namespace: str) -> Mapping[str, str]:
        """The service variables that a container started now gets."""
        return service_links(
            (service, self._addresses[_key(service)])
            for service in self._store.all(Service, namespace)
            if _key(service) in self._addresses
        )

    async def close(self) -> None:
        for forward in self._forwards.values():
            await forward.close()


def _key(service: Service) -> Key:
    return service.metadata.namespace, service.metadata.name
