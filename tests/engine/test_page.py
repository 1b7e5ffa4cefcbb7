"""The page in front of real engines, in a real browser: the program that makes its pictures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.benchmarks import screenshots
from tests.integration.browser.conftest import CHROMIUM, NOT_INSTALLED


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason=NOT_INSTALLED)
def test_page_shows_what_real_engines_do(tmp_path: Path) -> None:
    """Eight streams are eight cells, those behind them a queue; an engine that ends is down."""
    asyncio.run(screenshots.run(tmp_path))
    assert {path.name for path in tmp_path.glob("*.png")} == {"home.png", "cloud.png", "down.png"}
