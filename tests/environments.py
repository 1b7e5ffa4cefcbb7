"""Environments with the packages of this one, but without this project."""

from __future__ import annotations

import os
import sys
import venv
from pathlib import Path

_OURS = ("_editable_impl_orch", "orch_sidecar", "orch_vllm_plugin", "vllm_plugin")
_PYTHON = Path(os.__file__).parent.name


def site_packages(binaries: Path) -> Path:
    """Returns where the packages of an environment are."""
    return binaries.parent / "lib" / _PYTHON / "site-packages"


def without_this_project(home: Path) -> Path:
    """Makes the environment in an empty directory, and returns that of its programs."""
    venv.create(home, symlinks=True)
    [packages] = [Path(path) for path in sys.path if path.endswith(f"{_PYTHON}/site-packages")]
    for path in packages.iterdir():
        if not path.name.startswith(_OURS):
            (site_packages(home / "bin") / path.name).symlink_to(path)
    return home / "bin"
