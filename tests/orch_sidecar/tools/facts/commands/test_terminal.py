"""Printing with any encoding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_unencodable_name_does_not_fail(tmp_path: Path, encoding: str) -> None:
    table = tmp_path / "t.csv"
    table.write_text("model_id,x\u2026\n", encoding="utf-8")
    words = [sys.executable, "-m", "orch_sidecar", "facts", "check", str(table)]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(words, capture_output=True, env=environment, timeout=60)
    assert done.returncode == 1, done.stderr
    expected = "x\u2026" if encoding == "utf-8" else "x\\u2026"
    assert expected in done.stdout.decode(encoding)
