"""Random events: the same ones lead to the same decisions."""

from __future__ import annotations

import os
import subprocess
import sys

from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.controller import AdmissionController
from tests.orch_sidecar.admission.examples import rules
from tests.orch_sidecar.admission.random_log import RandomLog


def test_decisions_depend_on_no_hash_and_no_address() -> None:
    command = [sys.executable, "-m", "tests.orch_sidecar.admission.random_log", "1", "2"]
    first, second = (
        subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    )
    assert len(first.splitlines()) > 3000
    assert first == second


def test_every_constraint_blocks_some_of_the_requests() -> None:
    lines: list[str] = []
    for seed in range(12):
        RandomLog(seed, lines.append).run(300)
    constraints: AdmissionConstraints = AdmissionController(rules()).constraints
    assert {word for line in lines for word in line.split()[1:2]} >= set(constraints.reasons)
