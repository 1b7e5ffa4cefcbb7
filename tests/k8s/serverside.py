"""What a server-side apply does to an object, as far as these manifests need it. Pure.

After https://kubernetes.io/docs/reference/using-api/server-side-apply: an apply sets the fields
that it names, removes those that its manager owned alone and no longer names, and leaves all others
as they are. Lists of containers, volumes, variables, ports and mounts are merged by their keys,
other lists are one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Path = tuple[str, ...]
# List field to the key of its entries (`x-kubernetes-list-map-keys`).
_KEYED: Final = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}


def leaves(value: Any, path: Path = ()) -> dict[Path, Any]:
    """Returns the fields of an object that an apply of it owns, with their values."""
    keyed = _KEYED.get(path[-1]) if path else None
    if isinstance(value, Mapping) and value:
        entries = {str(key): item for key, item in value.items()}
    elif isinstance(value, list) and keyed is not None:
        entries = {f"{keyed}={item[keyed]}": item for item in value}
    else:
        return {path: value}
    return {
        leaf: content
        for key, item in entries.items()
        for leaf, content in leaves(item, (*path, key)).items()
    }


def apply(
    live: Mapping[Path, Any], before: Mapping[str, Any] | None, after: Mapping[str, Any]
) -> dict[Path, Any]:
    """Returns the live object after an apply of `after` by the manager that applied `before`."""
    wanted = leaves(after)
    owned = leaves(before) if before is not None else {}
    kept = {path: value for path, value in live.items() if path in wanted or path not in owned}
    return kept | wanted
