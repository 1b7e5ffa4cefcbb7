"""A container's environment, as the kubelet puts it together. Pure.

Later wins: the image's variables, envFrom in its order, env in its order.
References `$(VAR)` see what stands before them, but never the image's own variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.k8s.runner.expand import expanded
from tests.k8s.runner.identity import Identity, Unstartable
from tests.k8s.runner.schema.container import Container, EnvFrom, EnvVar, KeyRef

Content = Callable[[str], Mapping[str, bytes] | None]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where values come from: by name, the content of the pod's namespace's objects, or None."""

    config_map: Content
    secret: Content


def declared(container: Container, identity: Identity, sources: Sources) -> dict[str, str]:
    """What the manifest gives the container.

    Raises:
        Unstartable: a ConfigMap, Secret or key that is not optional does not exist.
    """
    found: dict[str, str] = {}
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
