"""The table of thresholds."""

from __future__ import annotations

from orch_sidecar.tools.facts.labels.thresholds import THRESHOLDS
from tests.documents import ROOT, rows, section


def test_every_threshold_is_documented_with_its_value_and_reason() -> None:
    table = rows(section(ROOT / "docs/explanation/labels.md", "What a label requires"))
    assert list(table) == [
        [f"`{name}`", f"{float(each):g} {each.unit}", each.bounds]
        for name, each in THRESHOLDS.items()
    ]
