"""A container's environment, as the kubelet puts it together. Pure.

Later wins: the image's variables, the service links, envFrom in its order, env in its order.
References `$(VAR)` see what stands before them, but never the image's own variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tests.k8s.runner.expand import expanded
from tests.k8s.runner.identity import Identity, Unstartable
from tests.k8s.runner.schema.container import Container, EnvFrom, EnvVar, KeyRef
from tests.k8s.runner.schema.objects import Service

Content = Callable[[str], Mapping[str, bytes] | None]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where values come from: by name, the content of the pod's namespace's objects, or None."""

    config_map: Content
    secret: Content


def service_links(services: Iterable[tuple[Service, str]]) -> dict[str, str]:
    """The variables that every container gets for every Service with an address of its own.

    A service `vllm` puts VLLM_PORT=tcp://… into every pod of its namespace: a trap for programs
    that read variables of that name, and one that only shows where the links are really there.
    """
    links: dict[str, str] = {}
    for service, address in services:
        ports = service.spec.ports
        if not ports:
            continue
        name = re.sub("-", "_", service.metadata.name).upper()
        links[f"{name}_SERVICE_HOST"] = address
        links[f"{name}_SERVICE_PORT"] = str(ports[0].port)
        links[f"{name}_PORT"] = f"tcp://{address}:{ports[0].port}"
        for port in ports:
            if port.name:
                plain = port.name.replace("-", "_").upper()
                links[f"{name}_SERVICE_PORT_{plain}"] = str(port.port)
            stem = f"{name}_PORT_{port.port}_TCP"
            links[stem] = f"tcp://{address}:{port.port}"
            links[f"{stem}_PROTO"] = "tcp"
            links[f"{stem}_PORT"] = str(port.port)
            links[f"{stem}_ADDR"] = address
    return links


def declared(
    container: Container, identity: Identity, sources: Sources, links: Mapping[str, str]
) -> dict[str, str]:
    """What the manifest gives the container, the service links included.

    Raises:
        Unstartable: a ConfigMap, Secret or key that is not optional does not exist.
    """
    found = dict(links)
    for source in container.env_from:
        found |= _all_of(source, sources)
    for variable in container.env:
        value = _value(variable, identity, sources, found)
        if value is not None:
            found[variable.name] = value
    return found


def _all_of(source: EnvFrom, sources: Sources) -> dict[str, str]:
    reference = source.config_map_ref or source.secret_ref
    assert reference is not None
    kind = "ConfigMap" if source.config_map_ref else "Secret"
    look = sources.config_map if source.config_map_ref else sources.secret
    content = look(reference.name)
    if content is None:
        if reference.optional:
            return {}
        raise Unstartable(f"{kind} {reference.name!r} not found")
    return {source.prefix + key: value.decode() for key, value in content.items()}


def _value(
    variable: EnvVar, identity: Identity, sources: Sources, before: Mapping[str, str]
) -> str | None:
    """The variable's value; None where an optional reference finds nothing: it is not set."""
    origin = variable.value_from
    if origin is None:
        return expanded(variable.value or "", before)
    if origin.field_ref is not None:
        return identity.field(origin.field_ref.field_path)
    if origin.config_map_key_ref is not None:
        return _key(origin.config_map_key_ref, "ConfigMap", sources.config_map)
    assert origin.secret_key_ref is not None
    return _key(origin.secret_key_ref, "Secret", sources.secret)


def _key(reference: KeyRef, kind: str, look: Content) -> str | None:
    content = look(reference.name)
    if content is not None and reference.key in content:
        return content[reference.key].decode()
    if reference.optional:
        return None
    missing = f"has no key {reference.key!r}" if content is not None else "not found"
    raise Unstartable(f"{kind} {reference.name!r} {missing}")
