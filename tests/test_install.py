"""The README's install commands, with pip, as far as they need no index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.patience import HANG_S

ROOT = Path(__file__).parents[1]
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
