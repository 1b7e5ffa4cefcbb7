"""Reports of measurements in a real browser: readable on any screen, harmless, accessible."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe

from orch_sidecar.tools.bench.report.run import compare_report, run_report
from orch_sidecar.tools.bench.report.sweep import sweep_report
from tests.integration.browser.conftest import Open
from tests.orch_sidecar.tools.bench.report.sample_reports import hostile, online, sweep

PAGES = {
    "run": lambda: run_report(hostile()).html,
    "sweep": lambda: sweep_report(sweep()).html,
    "compare": lambda: compare_report(online(), hostile()).html,
}

# Texts of pictures that reach beyond their picture, where they are not shown.
CUT = """[...document.querySelectorAll(".chart text")].filter((text) => {
  const own = text.getBoundingClientRect(), all = text.closest("svg").getBoundingClientRect();
  return own.left < all.left - 1 || own.right > all.right + 1;
}).map((text) => text.textContent)"""


@pytest.mark.long
@pytest.mark.parametrize("width", [375, 1100])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
async def test_report_is_accessible_and_loads_nothing(
    open_page: Open, tmp_path: Path, name: str, scheme: str, width: int
) -> None:
    path = tmp_path / "report.html"
    path.write_text(PAGES[name](), encoding="utf-8")
    view = {"width": width, "height": 800}
    page = await open_page(path.as_uri(), viewport=view, color_scheme=scheme)
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    size = "[document.documentElement.scrollWidth, performance.getEntriesByType('resource').length]"
    assert await page.evaluate(size) == [width, 0]
    assert await page.evaluate(CUT) == []
