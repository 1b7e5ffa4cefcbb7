"""The objects that were applied, by kind, namespace and name, and the directories of claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.k8s.runner.environment import Sources
from tests.k8s.runner.schema.objects import (
    ClaimObject,
    ConfigMap,
    Namespace,
    Object,
    Secret,
)
from tests.k8s.runner.schema.part import SpecError

AnyObject = TypeVar("AnyObject", bound=Object)


class Store:
    """Applied objects. A claim's directory is made with it and lives as long as the cluster."""

    def __init__(self, claims: Path) -> None:
        self._claims = claims
        self._objects: dict[tuple[str, str, str], Object] = {}

    def apply(self, parsed: Sequence[Object]) -> None:
        """Takes all objects or, where one has no namespace to be in, none.

        Raises:
            SpecError: an object's namespace does not exist.
        """
        known = {name for kind, _, name in self._objects if kind == "Namespace"} | {"default"}
        known |= {item.metadata.name for item in parsed if isinstance(item, Namespace)}
        for item in parsed:
            if item.metadata.namespace not in known and not isinstance(item, Namespace):
                raise SpecError(
                    f"{item.kind}/{item.metadata.name}: namespace "
                    f"{item.metadata.namespace!r} not found"
                )
        for item in parsed:
            self.put(item)

    def put(self, item: Object) -> None:
        """Takes one object in place of the one of its kind and name."""
        self._objects[item.kind, item.metadata.namespace, item.metadata.name] = item
        if isinstance(item, ClaimObject):
            path = self._claims / f"{item.metadata.namespace}_{item.metadata.name}"
            path.mkdir(parents=True, exist_ok=True)

    def all(self, model: type[AnyObject], namespace: str | None = None) -> list[AnyObject]:
        """Every object of a kind, in the order in which they came."""
        return [
            item
            for item in self._objects.values()
            if isinstance(item, model) and namespace in (None, item.metadata.namespace)
        ]

    def one(self, model: type[AnyObject], name: str, namespace: str | None = None) -> AnyObject:
        """The object of that name; without a namespace it must be the only one.

        Raises:
            LookupError: there is none, or several namespaces have one.
        """
        found = [item for item in self.all(model, namespace) if item.metadata.name == name]
        if len(found) != 1:
            places = [item.metadata.namespace for item in found]
            raise LookupError(f"{model.__name__} {name!r}: {len(found)} found in {places}")
        return found[0]

    def sources(self, namespace: str) -> Sources:
        """ConfigMaps and Secrets of a namespace, as its pods refer to them."""

        def config_map(name: str) -> Mapping[str, bytes] | None:
            item = self._objects.get(("ConfigMap", namespace, name))
            return item.content() if isinstance(item, ConfigMap) else None

        def secret(name: str) -> Mapping[str, bytes] | None:
            item = self._objects.get(("Secret", namespace, name))
            return item.content() if isinstance(item, Secret) else None

        return Sources(config_map, secret)

    def claim(self, namespace: str, name: str) -> Path | None:
        """The directory of a PersistentVolumeClaim; None where there is no such claim."""
        if ("PersistentVolumeClaim", namespace, name) not in self._objects:
            return None
        return self._claims / f"{namespace}_{name}"
