"""The sidecar under the Python that vLLM's images have, which is newer than this project's oldest.

asyncio and aiohttp do much of their work in other ways from one version to the next: aiohttp
starts its tasks eagerly from 3.12 on.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
OF_THE_IMAGE: Final = "3.12"
TOOLS: Final = ("h11", "hypothesis", "pytest", "pytest-asyncio", "pytest-timeout")
# A request's whole way, and the ends of it that differ most.
FILES: Final = (
    "test_transparency.py",
    "test_cancel.py",
    "test_disconnects.py",
    "test_back_pressure.py",
    "test_drain.py",
    "test_headless.py",
    "test_tiers.py",
)


def interpreter(version: str) -> Path | None:
    """One that works: on the path, or beside the one that runs this (as pyenv has them)."""
    beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}*/bin/python{version}"))
    found = shutil.which(f"python{version}")
    for path in [*beside, *([Path(found)] if found else [])]:
        check = [str(path), "-c", "import ssl, venv, ensurepip"]
        if subprocess.run(check, capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.fixture
def python() -> Path:
    """The Python of the images, where it is another one than that of the tests."""
    if sys.version_info[:2] >= tuple(map(int, OF_THE_IMAGE.split("."))):
        pytest.skip(f"the tests themselves run under Python {OF_THE_IMAGE} or newer")
    found = interpreter(OF_THE_IMAGE)
    if found is None:
        pytest.skip(f"there is no Python {OF_THE_IMAGE} on this machine")
    return found


def test_sources_compile_without_a_warning_under_the_python_of_the_image(
    python: Path, tmp_path: Path
) -> None:
    options = ["-W", "error", "-X", f"pycache_prefix={tmp_path}", "-m", "compileall", "-q"]
    done = subprocess.run(
        [str(python), *options, "orch_sidecar", "vllm_plugin"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_sidecar_serves_under_the_python_of_the_image(python: Path, tmp_path: Path) -> None:
    venv = str(tmp_path / "venv")
    own = str(tmp_path / "venv" / "bin" / "python")
    install = [own, "-m", "pip", "install", "--quiet", str(ROOT), *TOOLS]
    run = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run += [str(Path("tests", "integration", name)) for name in FILES]
    for command in ([str(python), "-m", "venv", venv], install, run):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
