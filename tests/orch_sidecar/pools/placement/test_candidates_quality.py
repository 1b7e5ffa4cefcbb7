"""Two drawn pools are as good as all: in virtual time, with the sidecar's admission.

A small part of `python -m tests.benchmarks.entry.placement`; always the same requests.
"""

from __future__ import annotations

import pytest

from orch_sidecar.tools.simulate.engine import EngineShape
from tests.benchmarks.entry.virtual import Traffic, quality

EQUAL = (EngineShape(slots=8),) * 10
SLOW = EngineShape(slots=8, t0_ms=24.0, c_ms=0.6, prefill_tokens_per_s=8_000.0)
SCENES = {
    "equal": Traffic(EQUAL, seconds=6.0),
    "mixed": Traffic((*EQUAL[:5], *(SLOW,) * 5), seconds=6.0),
}


@pytest.mark.parametrize("name", SCENES)
def test_requests_start_and_end_as_early_as_if_all_pools_were_asked(name: str) -> None:
    of_all, drawn = (quality(SCENES[name], way, 1) for way in ("all", "drawn"))
    assert drawn.end_mean <= 1.05 * of_all.end_mean
    assert drawn.end_p95 <= 1.05 * of_all.end_p95
    assert drawn.first_token_p95 <= 1.25 * of_all.first_token_p95


def test_turns_are_not_as_good() -> None:
    """Else the comparison would show nothing."""
    drawn, turns = (quality(SCENES["mixed"], way, 1) for way in ("drawn", "turns"))
    assert turns.end_p95 > 1.3 * drawn.end_p95
