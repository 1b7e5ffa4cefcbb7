"""The sidecar under the other Pythons that pyproject.toml names; vLLM's images have 3.12.

asyncio and aiohttp do much of their work in other ways from one version to the next: aiohttp
starts its tasks eagerly from 3.12 on.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
NAMED: Final = re.findall(r'Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
OTHERS: Final = [each for each in NAMED if each != f"3.{sys.version_info.minor}"]
TOOLS: Final = ("h11", "hypothesis", "pytest", "pytest-asyncio", "pytest-timeout")
# A request's whole way, and the ends of it that differ most.
TESTS: Final = (
    *(f"tests/orch_sidecar/{name}" for name in ("wire", "proxy", "pools", "splitting", "control")),
    "tests/integration/test_transparency.py",
    "tests/integration/test_cancel.py",
    "tests/integration/test_disconnects.py",
    "tests/integration/test_back_pressure.py",
    "tests/integration/test_drain.py",
    "tests/integration/test_headless.py",
    "tests/integration/test_tiers.py",
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


@pytest.fixture(params=OTHERS)
def python(request: pytest.FixtureRequest) -> Path:
    found = interpreter(request.param)
    if found is None:
        pytest.skip(f"there is no Python {request.param} on this machine")
    return found


def test_sources_compile_without_a_warning_under_another_python(
    python: Path, tmp_path: Path
) -> None:
    options = ["-W", "error", "-X", f"pycache_prefix={tmp_path}", "-m", "compileall", "-q"]
    done = subprocess.run(
        [str(python), *options, "orch_sidecar", "vllm_plugin"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_sidecar_serves_under_another_python(python: Path, tmp_path: Path) -> None:
    venv = str(tmp_path / "venv")
    own = str(tmp_path / "venv" / "bin" / "python")
    install = [own, "-m", "pip", "install", "--quiet", str(ROOT), *TOOLS]
    run = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    for command in ([str(python), "-m", "venv", venv], install, run):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
