"""The programs of docs/examples run as they are, against a real engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from orch_sidecar.tools.local.stack import Stack
from tests.documents import ROOT
from tests.patience import HANG_S

EXAMPLES = ROOT / "docs" / "examples"


def run(stack: Stack, *command: str) -> subprocess.CompletedProcess[str]:
    own = {
        "OPENAI_BASE_URL": f"{stack.url}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": stack.url,
        "ANTHROPIC_API_KEY": "none",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    return subprocess.run(
        command, env=os.environ | own, capture_output=True, text=True, timeout=HANG_S, check=True
    )


@pytest.mark.parametrize("name", ["openai_client", "anthropic_client", "queue_position"])
def test_a_client_prints_an_answer(cloud: Stack, name: str) -> None:
    done = run(cloud, sys.executable, str(EXAMPLES / f"{name}.py"), cloud.url)
    assert done.stdout.strip()


def test_bulk_work_prints_a_line_for_each_prompt(cloud: Stack, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"Prompt {number}" for number in range(20)), encoding="utf-8")
    done = run(cloud, sys.executable, str(EXAMPLES / "bulk_work.py"), str(prompts))
    assert done.stdout.count("\n") == 20


def test_keys_for_a_team_are_a_file_of_keys(cloud: Stack, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    run(cloud, "sh", str(EXAMPLES / "team_keys.sh"), str(file))
    entries = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert [entry["name"] for entry in entries] == ["alice", "bob", "nightly"]


# Says that it runs, and that it was told to end, a moment after that.
SCRIPTED_ORCH = """#!/bin/sh
trap 'sleep 0.1; echo "$1 ended"; exit' TERM
echo "$1 runs"
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_start_of_one_machine_ends_its_sidecar_and_then_its_engine(
    tmp_path: Path, number: signal.Signals
) -> None:
    """These two are scripted: their own ends are tested elsewhere."""
    scripted = tmp_path / "orch"
    scripted.write_text(SCRIPTED_ORCH, encoding="utf-8")
    scripted.chmod(0o755)
    own = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    start = ["sh", str(EXAMPLES / "one_machine.sh"), "tiny"]
    command = [
        "env",
        "--default-signal=INT",
        *start,
    ]  # what runs tests in the background ignores it
    running = subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert {running.stdout.readline() for _ in "12"} == {"engine runs\n", "sidecar runs\n"}
    running.send_signal(number)
    printed, _ = running.communicate(timeout=HANG_S)
    assert (running.returncode, printed) == (128 + number, "sidecar ended\nengine ended\n")
