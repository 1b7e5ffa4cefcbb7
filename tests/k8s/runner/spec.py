"""What a container runs with, read from its manifest: command, variables, user, files. Pure.

Variables as the kubelet puts them together: the image's, then envFrom, then env. `$(VAR)` is
replaced by a variable that stands before it; an unknown one stays, and `$$` is one dollar sign.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.k8s.runner.image import Image
from tests.k8s.runner.script import Process, Rights

Spec = Mapping[str, Any]
# The content of a ConfigMap or Secret by kind and name, or None.
Content = Callable[[str, str], Mapping[str, bytes] | None]
_REFERENCE: Final = re.compile(r"\$(?:(?P<dollar>\$)|\((?P<name>[^)]*)\))")


class Missing(RuntimeError):
    """Something that a pod reads does not exist."""


def content(body: Spec) -> dict[str, bytes]:
    """Returns every key of a ConfigMap or Secret with its bytes."""
    data, secret = body.get("data", {}), body["kind"] == "Secret"
    encoded = body.get("binaryData", {}) | (data if secret else {})
    plain = body.get("stringData", {}) | ({} if secret else data)
    decoded = {key: base64.b64decode("".join(text.split())) for key, text in encoded.items()}
    return decoded | {key: text.encode() for key, text in plain.items()}


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Returns the text with every reference to one of `variables` replaced by its value."""

    def put(found: re.Match[str]) -> str:
        return "$" if found["dollar"] else variables.get(found["name"], found[0])

    return _REFERENCE.sub(put, text)


def _read(look: Content, kind: str, ref: Spec) -> Mapping[str, bytes]:
    """Returns an object's content; nothing where it is optional. Raises Missing."""
    name = ref.get("secretName") or ref["name"]
    found = look(kind, name)
    if found is None and not ref.get("optional"):
        raise Missing(f"{kind} {name!r} does not exist")
    return found or {}


def variables(container: Spec, fields: Mapping[str, str], look: Content) -> dict[str, str]:
    """Returns what the manifest sets; `fields` are the pod's, by fieldPath. Raises Missing."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        items = _read(look, "ConfigMap", source["configMapRef"]).items()
        found |= {key: value.decode() for key, value in items}
    for variable in container.get("env", ()):
        origin = variable.get("valueFrom")
        if origin is None:
            found[variable["name"]] = expanded(variable.get("value", ""), found)
        elif "fieldRef" in origin:
            found[variable["name"]] = fields[origin["fieldRef"]["fieldPath"]]
        else:
            [(field, ref)] = origin.items()
            kind = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}[field]
            value = _read(look, kind, ref).get(ref["key"])
            if value is not None:
                found[variable["name"]] = value.decode()
            elif not ref.get("optional"):
                raise Missing(f"{kind} {ref['name']!r} has no key {ref['key']!r}")
    return found


def process(
    container: Spec, pod: Spec, image: Image, name: str, given: Mapping[str, str]
) -> Process:
    """Returns the container's command with its environment and rights."""
    words = [*container.get("command", ()), *container.get("args", ())]
    own = {"HOSTNAME": name, "HOME": "/"}
    return Process(
        command=image.instead or tuple(expanded(word, given) for word in words),
        environment={**own, **image.environment, **given},
        working_dir=container.get("workingDir", "/"),
        rights=_rights(container.get("securityContext", {}), pod.get("securityContext", {})),
    )


def _rights(own: Spec, pod: Spec) -> Rights:
    user = own.get("runAsUser", pod.get("runAsUser", 0))
    if user == 0 and pod.get("runAsNonRoot"):
        raise Missing("a user: runAsNonRoot is set, and the container would run as root")
    group = pod.get("runAsGroup", 0)
    return Rights(
        user=user,
        group=group,
        groups=tuple(sorted({group, pod.get("fsGroup", group)})),
        no_new_privileges=not own.get("allowPrivilegeEscalation", True),
        capabilities="ALL" not in own.get("capabilities", {}).get("drop", ()),
    )


def files(volume: Spec, look: Content) -> dict[str, tuple[bytes, int]] | None:
    """Returns content and mode of the files that a volume begins with; None: it is writable.

    Raises Missing.
    """
    sources = volume["projected"]["sources"] if "projected" in volume else [volume]
    kinds = {"configMap": "ConfigMap", "secret": "Secret"}
    chosen = [(kinds[name], each[name]) for each in sources for name in kinds if name in each]
    if not chosen:
        return None
    return {
        key: (value, ref.get("defaultMode", 0o644))
        for kind, ref in chosen
        for key, value in _read(look, kind, ref).items()
    }
