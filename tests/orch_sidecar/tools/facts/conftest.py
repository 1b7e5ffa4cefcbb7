"""The command `orch facts`, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orch_sidecar.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `orch facts` and returns exit code, output, errors."""

    def facts(*words: str | Path) -> tuple[int, str, str]:
        code: str | int | None = 0
        try:
            main(["facts", *map(str, words)])
        except SystemExit as exit_:
            code = exit_.code
        out, err = capsys.readouterr()
        assert isinstance(code, int), code
        return code, out, err

    return facts
