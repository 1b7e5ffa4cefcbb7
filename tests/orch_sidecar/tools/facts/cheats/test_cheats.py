"""Every cheat is refused by the gates of its row of the table, and by no other."""

from __future__ import annotations

import pytest

from tests.orch_sidecar.tools.facts.cheats import (
    Cheat,
    evidence,
    files,
    imports,
    rows,
    runs,
    spans,
    traces,
)

CHEATS = [
    pytest.param(cheat, id=f"{module.__name__.rpartition('.')[2]}: {cheat.name}")
    for module in (traces, spans, runs, imports, rows, files, evidence)
    for cheat in module.CHEATS
]


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheat_is_refused_with_the_rule_that_it_breaks(cheat: Cheat) -> None:
    said = {gate: text for gate, text in cheat.said().items() if text}
    assert said.keys() == cheat.rules.keys(), said
    for gate, rule in cheat.rules.items():
        assert rule in said[gate], said
