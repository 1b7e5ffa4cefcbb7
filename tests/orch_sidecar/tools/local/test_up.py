"""What `orch up` starts, without starting it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_sidecar import cli
from orch_sidecar.tools.local import up
from orch_sidecar.tools.local.stack import Plan, StackError


def test_one_beside_another_has_logs_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []

    def stack(plan: Plan) -> None:
        plans.append(plan)
        raise StackError("enough is known")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(up, "Stack", stack)
    for port, more in ((8080, ()), (8081, ()), (8081, ("--check",))):
        with pytest.raises(StackError):
            up._run(
                up.parser().parse_args(["--model", "m", *more]),
                cli.read_settings([f"--port={port}"]),
            )
    directories = [str(plan.log_directory.relative_to(tmp_path)) for plan in plans]
    assert directories == ["orch/logs/8080", "orch/logs/8081", "orch/logs/8081"]
