"""Images without a registry: this machine's own root file system, with parts of it masked.

An image is a thin overlay layer over `/` that hides, opens and adds files; a container's root is
that layer and one of its own for what it writes. The host's files are never changed. Where an
image stands for a program that is not on this machine, `instead` is what runs in its place.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What no image brings along: the host's scratch space, sockets and mounts, and the three files
# that a kubelet writes for every pod.
ALWAYS_MASKED = (
    *("/tmp", "/var/tmp", "/run", "/mnt", "/media", "/home"),
    *("/etc/hosts", "/etc/hostname", "/etc/resolv.conf"),
)


@dataclass(frozen=True, slots=True)
class Image:
    """What a container of this image finds.

    `masked`: absolute paths; a directory is empty in the container, a file is not there.
    `removed`: absolute paths that are not there, directories included.
    `kept`: what stays although it lies in a place that every image masks, such as a checkout in
    /home. `passable`: directories that every user may pass through (o+x), such as /root on the way
    to an interpreter. `files`: absolute path to text, mode 0755. `instead`: runs in place of
    whatever command the manifest has.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": SYSTEM_PATH})
    masked: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    passable: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    instead: tuple[str, ...] = ()


def build_layer(layer: Path, image: Image) -> None:
    """Writes the image's overlay layer into the empty directory `layer` (needs root).

    A masked directory becomes an opaque one, a masked file a whiteout: see the kernel's
    Documentation/filesystems/overlayfs.rst.
    """
    kept = [Path(path) for path in image.kept]
    always = [path for top in ALWAYS_MASKED for path in _beside(Path(top), kept)]
    for path in (*always, *image.masked):
        _mask(layer, Path(path))
    for path in image.removed:
        _remove(layer, Path(path))
    for path in image.passable:
        place = _directory(layer, Path(path))
        place.chmod(stat.S_IMODE(place.stat().st_mode) | 0o011)
    for path, text in image.files.items():
        place = _directory(layer, Path(path).parent) / Path(path).name
        place.write_text(text, encoding="utf-8")
        place.chmod(0o755)


def _directory(layer: Path, path: Path) -> Path:
    """`path` in the layer, with the owner and mode that it and its parents have on the host."""
    place = layer / path.relative_to("/")
    if path == Path("/"):
        return place
    _directory(layer, path.parent)
    if not place.exists():
        place.mkdir()
        if path.exists():
            host = path.stat()
            os.chown(place, host.st_uid, host.st_gid)
            place.chmod(stat.S_IMODE(host.st_mode))
        else:
            place.chmod(0o755)
    return place


def _mask(layer: Path, path: Path) -> None:
    path = path.parent.resolve() / path.name
    if path.is_dir() and not path.is_symlink():
        os.setxattr(_directory(layer, path), "trusted.overlay.opaque", b"y")
    else:
        _remove(layer, path)


def _remove(layer: Path, path: Path) -> None:
    path = path.parent.resolve() / path.name
    place = layer / path.relative_to("/")
    gone = any(os.path.lexists(up) and not up.is_dir() for up in (place, *place.parents))
    if os.path.lexists(path) and not gone:
        _directory(layer, path.parent)
        os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(0, 0))


def python_image(
    venv: Path, project: Path, distribution: str, *, environment: Mapping[str, str] | None = None
) -> Image:
    """The virtual environment as an image, without the project that is installed into it.

    `python3` is the environment's. Of `project` (a source tree that may hold the environment) only
    the environment is left, of root's home only the interpreter, and every file that installing
    `distribution` (as pip's RECORD lists them) put into the environment is masked: the code that
    runs in a pod can only come from what the manifest mounts.
    """
    interpreter = Path(sys.base_prefix).resolve()
    kept = (venv, interpreter)
    masked = [*_beside(project, kept), *_beside(Path.home(), kept)]
    passable = {str(path) for end in (venv, interpreter) for path in (end, *end.parents)}
    path = f"{venv}/bin:{SYSTEM_PATH}"
    return Image(
        environment={"PATH": path, **(environment or {})},
        masked=tuple(masked),
        kept=tuple(map(str, kept)),
        removed=tuple(str(path) for path in installed(venv, distribution)),
        passable=tuple(sorted(passable - {"/"})),
    )


def installed(venv: Path, distribution: str) -> list[Path]:
    """Every file that pip's RECORD lists for `distribution`, and its top-level directories.

    Raises:
        LookupError: the environment has no such distribution.
    """
    stem = distribution.replace("-", "_")
    found: set[Path] = set()
    for info in venv.glob(f"lib/python3*/site-packages/{stem}-*.dist-info"):
        site = info.parent
        for line in (info / "RECORD").read_text(encoding="utf-8").splitlines():
            name = line.rsplit(",", 2)[0].strip('"')
            found.add(Path(os.path.normpath(site / name)))
            if "/" in name and not name.startswith(".."):
                found.add(site / name.split("/")[0])
    if not found:
        raise LookupError(f"{venv} has no distribution {distribution!r}")
    # A directory comes before what is in it, which then needs nothing of its own.
    return sorted(found)


def _beside(top: Path, kept: Sequence[Path]) -> list[str]:
    """The fewest paths that hold all of `top` but the kept ones in it."""
    inside = [path for path in kept if path.is_relative_to(top)]
    if not inside:
        return [str(top)] if os.path.lexists(top) else []
    if top in inside:
        return []
    return [path for child in sorted(top.iterdir()) for path in _beside(child, inside)]
