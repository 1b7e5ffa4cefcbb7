"""The files of ConfigMap, Secret and projected volumes, and who owns a volume.

Files lie as the kubelet's atomic writer lays them: `name -> ..data/name`, `..data -> ..<version>`,
so that a program that watches or resolves them meets the links it meets in a cluster.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.k8s.runner.environment import Content, Sources
from tests.k8s.runner.identity import Unstartable
from tests.k8s.runner.schema.part import SpecError
from tests.k8s.runner.schema.volume import KeyToPath, Projected, Volume


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    mode: int


def files_of(volume: Volume, sources: Sources) -> dict[str, File] | None:
    """The files of a volume that Kubernetes fills, by relative path; None for the other kinds.

    Raises:
        Unstartable: an object or key that is not optional does not exist.
        SpecError: a path leaves the volume.
    """
    if (config := volume.config_map) is not None:
        keys = _Keys("ConfigMap", config.name, config.items, config.optional)
        return keys.files(sources.config_map, config.default_mode)
    if (secret := volume.secret) is not None:
        keys = _Keys("Secret", secret.secret_name, secret.items, secret.optional)
        return keys.files(sources.secret, secret.default_mode)
    if volume.projected is not None:
        return _projected(volume.projected, sources)
    return None


def _projected(projected: Projected, sources: Sources) -> dict[str, File]:
    mode = projected.default_mode
    files: dict[str, File] = {}
    for source in projected.sources:
        if (config := source.config_map) is not None:
            keys = _Keys("ConfigMap", config.name, config.items, config.optional)
            files |= keys.files(sources.config_map, mode)
        elif (secret := source.secret) is not None:
            keys = _Keys("Secret", secret.name, secret.items, secret.optional)
            files |= keys.files(sources.secret, mode)
    return files


@dataclass(frozen=True, slots=True)
class _Keys:
    """Which keys of which object become files."""

    kind: str
    name: str
    items: Sequence[KeyToPath] | None
    optional: bool

    def files(self, look: Content, default_mode: int) -> dict[str, File]:
        content = look(self.name)
        if content is None:
            if self.optional:
                return {}
            raise Unstartable(f"{self.kind} {self.name!r} not found")
        if self.items is None:
            return {key: File(value, default_mode) for key, value in content.items()}
        files = {}
        for item in self.items:
            if item.key in content:
                mode = default_mode if item.mode is None else item.mode
                files[_inside(item.path)] = File(content[item.key], mode)
            elif not self.optional:
                raise Unstartable(f"{self.kind} {self.name!r} has no key {item.key!r}")
        return files


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in Path(path).parts:
        raise SpecError(f"path {path!r} of a volume's item must stay inside the volume")
    return path


def write(directory: Path, files: Mapping[str, File], group: int | None) -> None:
    """Puts the files into the empty `directory`."""
    version = directory / f"..{uuid.uuid4().hex[:12]}"
    version.mkdir(mode=0o755)
    for name, file in files.items():
        place = version / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.content)
        place.chmod(file.mode)
    own(version, group, read_only=True)
    (directory / "..data").symlink_to(version.name)
    for top in {Path(name).parts[0] for name in files}:
        (directory / top).symlink_to(f"..data/{top}")


def own(directory: Path, group: int | None, *, read_only: bool, once: bool = False) -> None:
    """fsGroup: the group owns everything in the volume, and directories pass it on.

    `once` is fsGroupChangePolicy OnRootMismatch: nothing is done where the root is right already.
    """
    if group is None:
        return
    mask = 0o440 if read_only else 0o660
    root = directory.stat()
    right = stat.S_ISGID | mask | 0o110
    if once and root.st_gid == group and root.st_mode & right == right:
        return
    for place in (directory, *directory.rglob("*")):
        os.chown(place, -1, group, follow_symlinks=False)
        if not place.is_symlink():
            extra = right if place.is_dir() else mask
            place.chmod(stat.S_IMODE(place.stat().st_mode) | extra)
