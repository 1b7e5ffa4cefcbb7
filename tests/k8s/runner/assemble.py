"""From a container's spec to the process and root file system it gets.

Reads the machine's user database (it is the images', too); touches nothing.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.k8s.runner.environment import Sources, declared
from tests.k8s.runner.expand import expanded
from tests.k8s.runner.identity import Identity, Unstartable
from tests.k8s.runner.image import Image
from tests.k8s.runner.schema.container import Container
from tests.k8s.runner.schema.part import SpecError
from tests.k8s.runner.schema.pod import PodSecurity, PodSpec
from tests.k8s.runner.script import Bind, Process, Rights


@dataclass(frozen=True, slots=True)
class Place:
    """Where a volume's content lies on this machine, and whether the volume is read-only."""

    path: str
    read_only: bool


def process(
    container: Container,
    spec: PodSpec,
    image: Image,
    identity: Identity,
    sources: Sources,
) -> Process:
    """The container's command with its environment and rights.

    Raises:
        Unstartable: something it refers to is missing, or it must not run as root and would.
        SpecError: there is no command.
    """
    said = declared(container, identity, sources)
    rights = _rights(container, spec.security_context, image)
    own = {"HOSTNAME": identity.name, "HOME": _home(rights.user)}
    return Process(
        command=_command(container, image, said),
        environment={**own, **image.environment, **said},
        working_dir=container.working_dir or image.working_dir,
        rights=rights,
    )


def _command(container: Container, image: Image, variables: Mapping[str, str]) -> tuple[str, ...]:
    if image.instead:
        return image.instead
    arguments = [expanded(text, variables) for text in container.args or []]
    if container.command:
        return (*(expanded(text, variables) for text in container.command), *arguments)
    if not image.entrypoint:
        raise SpecError(
            f"container {container.name!r} has no command, and image {container.image!r} is given "
            "without an entrypoint"
        )
    return (*image.entrypoint, *arguments)


def _rights(container: Container, pod: PodSecurity, image: Image) -> Rights:
    """The container's security context over the pod's over the image's."""
    own = container.security_context
    user = next(u for u in (own.run_as_user, pod.run_as_user, image.user) if u is not None)
    non_root = own.run_as_non_root if own.run_as_non_root is not None else pod.run_as_non_root
    if non_root and user == 0:
        raise Unstartable(
            f"container {container.name!r} has runAsNonRoot, and its image runs as root"
        )
    group = own.run_as_group if own.run_as_group is not None else pod.run_as_group
    account = _account(user)
    if group is None:
        group = account.pw_gid if account is not None else 0
    groups = set(os.getgrouplist(account.pw_name, group)) if account is not None else {group}
    groups |= set(pod.supplemental_groups)
    if pod.fs_group is not None:
        groups.add(pod.fs_group)
    return Rights(
        user=user,
        group=group,
        groups=tuple(sorted(groups)),
        no_new_privileges=not own.allow_privilege_escalation,
        drop=tuple(own.capabilities.drop),
        add=tuple(own.capabilities.add),
    )


def _account(user: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(user)
    except KeyError:
        return None


def _home(user: int) -> str:
    account = _account(user)
    return account.pw_dir if account is not None else "/"


def binds(
    container: Container, places: Mapping[str, Place], files: Mapping[str, str], shm: str
) -> tuple[Bind, ...]:
    """Everything that is mounted into the container.

    `places` are the pod's volumes by name, `files` what the kubelet writes (path to source).

    Raises:
        Unstartable: a subPath of a read-only volume does not exist.
    """
    found = [Bind(source, target, is_file=True) for target, source in files.items()]
    for mount in container.volume_mounts:
        place = places[mount.name]
        source = place.path
        if mount.sub_path:
            source = _sub_path(place, mount.sub_path)
        found.append(
            Bind(
                source=source,
                target=os.path.normpath(mount.mount_path),
                read_only=mount.read_only or place.read_only,
                is_file=Path(source).is_file(),
            )
        )
    if all(bind.target != "/dev/shm" for bind in found):
        found.append(Bind(shm, "/dev/shm"))
    return tuple(found)


def _sub_path(place: Place, sub_path: str) -> str:
    """A path inside a volume; the kubelet makes the directory where the volume can be written."""
    if sub_path.startswith("/") or ".." in sub_path.split("/"):
        raise SpecError(f"subPath {sub_path!r} must be relative and stay inside its volume")
    path = os.path.realpath(f"{place.path}/{sub_path}")
    if not path.startswith(os.path.realpath(place.path) + "/"):
        raise SpecError(f"subPath {sub_path!r} leads out of its volume, to {path}")
    if not os.path.lexists(path):
        if place.read_only:
            raise Unstartable(f"subPath {sub_path!r} does not exist in its volume")
        Path(path).mkdir(parents=True)
    return path
