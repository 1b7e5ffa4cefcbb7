"""The programs of docs/examples run as they are, against a real engine."""

from __future__ import annotations

import os
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
