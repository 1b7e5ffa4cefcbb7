"""An engine with the plugin installed, and no profile selected, is one without the plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orch_sidecar.tools.local.stack import free_port
from orch_sidecar.tools.local.up import tiny_model
from tests.engine import inert_probe
from tests.environments import without_this_project
from tests.patience import READY_WITHIN_S

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = out.glob("*.whl")
    return path


def run(binaries: Path, *words: str) -> None:
    """Runs Python there, with nothing set that is ours or vLLM's."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ORCH_", "OTEL_", "VLLM_", "PYTHON"))
    }
    own = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [str(binaries / "python"), *words]
    done = subprocess.run(
        command,
        env=clean | own,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_profile_the_engine_is_what_it_is_without_the_plugin(
    wheel: Path, tmp_path: Path
) -> None:
    """One that shows no statistics and exports traces."""
    packages = tmp_path / "packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    run(
        without_this_project(tmp_path / "environment"),
        inert_probe.__file__,
        *(str(packages), str(tmp_path)),
        *("--model", str(tiny_model()), "--port", str(free_port())),
        *("--dtype", "float32", "--enforce-eager", "--disable-log-stats"),
        *("--otlp-traces-endpoint", "http://127.0.0.1:9"),
    )
    without, with_plugin = (
        json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("without", "with")
    )
    assert without["statistics"] == [False, "None"]
    assert without["stat loggers"] == [], "with a profile there is one: see test_home"
    assert without["routes"]
    assert without["metrics"]
    assert with_plugin == without
