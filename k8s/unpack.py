"""Lays the project's wheel out in a directory of a pod: run by its init container, from a
ConfigMap, by whatever python3 the image has.

    python3 -I unpack.py PARTS TARGET

PARTS holds the wheel in parts (wheel.0, wheel.1, ...) and its checksum (sha256). No network, no
pip: a pure wheel is a zip of what belongs on PYTHONPATH, entry points included.
"""

from __future__ import annotations

import compileall
import hashlib
import io
import sys
import zipfile
from pathlib import Path


def join(parts: Path) -> bytes:
    """The wheel. Raises ValueError if the parts are not those of the checksum."""
    found = sorted(parts.glob("wheel.*"), key=lambda path: int(path.suffix[1:]))
    wheel = b"".join(path.read_bytes() for path in found)
    wanted = (parts / "sha256").read_text(encoding="utf-8").strip()
    got = hashlib.sha256(wheel).hexdigest()
    if got != wanted:
        names = ", ".join(path.name for path in found) or "nothing"
        raise ValueError(
            f"{parts}: {names} joined have sha256 {got}, must have {wanted}: the ConfigMaps "
            "orch-wheel and orch-wheel-* are of different builds; apply all of them"
        )
    return wheel


def main(parts: Path, target: Path) -> None:
    """Unpacks, and compiles: the containers that import from there may not write."""
    with zipfile.ZipFile(io.BytesIO(join(parts))) as archive:
        archive.extractall(target)
        print(f"{len(archive.namelist())} files in {target}")
    if not compileall.compile_dir(target, quiet=1):
        raise ValueError(f"{target}: not all of it is Python that {sys.version.split()[0]} reads")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} PARTS TARGET")
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        sys.exit(f"unpack: {error}")
