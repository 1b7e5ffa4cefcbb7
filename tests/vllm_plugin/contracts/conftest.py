"""A path for a custom profile."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Returns the path of a custom profile."""
    return tmp_path / "mine.yaml"
