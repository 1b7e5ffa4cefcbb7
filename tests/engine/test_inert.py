"""An engine with the plugin installed, and no profile selected, is one without the plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.tools.local.stack import free_port
from orch_sidecar.tools.local.up import tiny_model
from tests.engine import inert_probe
from tests.environments import site_packages, without_this_project
from tests.import_graph import ROOT
from tests.patience import READY_WITHIN_S


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with vLLM, and without the plugin."""
    return without_this_project(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the plugin."""
    binaries = without_this_project(tmp_path_factory.mktemp("installed"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages(binaries))
    return binaries


def run(binaries: Path, *words: str) -> None:
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


def parts(binaries: Path, place: Path, port: int) -> dict[str, Any]:
    """What a server is made of that shows no statistics and exports traces."""
    found = place / f"{binaries.parent.name}.json"
    run(
        binaries,
        inert_probe.__file__,
        str(found),
        *("--model", str(tiny_model()), "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--disable-log-stats"),
        *("--otlp-traces-endpoint", "http://127.0.0.1:9"),
    )
    text = found.read_text(encoding="utf-8").replace(str(binaries.parent), "ENVIRONMENT")
    document: dict[str, Any] = json.loads(text)
    return document


def test_without_a_profile_the_engine_is_what_it_is_without_the_plugin(
    bare: Path, installed: Path, tmp_path: Path
) -> None:
    port = free_port()
    without, with_plugin = parts(bare, tmp_path, port), parts(installed, tmp_path, port)
    assert without["statistics"] == [False, "None"]
    assert without["stat loggers"] == [], "with a profile there is one: see test_home"
    assert without["routes"]
    assert without["metrics"]
    assert with_plugin == without
