"""The sidecar under the other Pythons that pyproject.toml names; vLLM's images have 3.12.

asyncio and aiohttp do much of their work in other ways from one version to the next: aiohttp
starts its tasks eagerly from 3.12 on.

The README's install commands, with pip, as far as they need no index.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.patience import HANG_S

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
    "tests/integration/test_away.py",
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


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INSTALLED = re.findall(r"pip install '([^']+)'", README)


def pip(*words: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_readme_installs_from_a_checkout_and_from_a_wheel() -> None:
    wheel = f"dist/orch_sidecar-{PROJECT['version']}-py3-none-any.whl"
    assert [".[gpu]", f"{wheel}[gpu]"] == INSTALLED


@pytest.mark.parametrize("what", INSTALLED)
def test_extra_that_is_installed_is_one_of_the_project(what: str) -> None:
    assert what[what.index("[") + 1 : -1] in PROJECT["optional-dependencies"]


def test_commands_work(tmp_path: Path) -> None:
    build = ("--no-build-isolation", "--no-deps", "--quiet")
    pip("install", "--dry-run", *build, f"{ROOT}[gpu]", cwd=tmp_path)
    pip("wheel", *build, "--wheel-dir", "dist", str(ROOT), cwd=tmp_path)
    pip("install", "--dry-run", *build, INSTALLED[-1], cwd=tmp_path)


def test_nothing_is_documented_as_on_an_index_that_is_not() -> None:
    """This project is on none: its own name installs nothing."""
    for package in ("orch_sidecar", "vllm_plugin"):
        for path in (ROOT / package).rglob("*.py"):
            assert not re.search(r"install '?orch-sidecar\[", path.read_text(encoding="utf-8")), (
                path
            )
