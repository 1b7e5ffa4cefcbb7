"""Predictions where other sidecars take their part of the slots that come free."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.api.refusal import Refusal
from tests.orch_sidecar.admission.examples import (
    STEP_TIME,
    class_rules,
    core_of,
    fill,
    interactive,
    queue,
    report,
    rules,
)


def test_slots_beyond_an_equal_share_go_to_other_sidecars_that_claim_some() -> None:
    """Four end after 1.4 s; two sidecars share them, and the next requests take two of four."""

    measured: dict[str, Any] = {"step_time": STEP_TIME, "prefill_tokens_per_s": 1000.0}

    def starts(**known: Any) -> list[int | None]:
        core = core_of(4, **measured)
        fill(core, interactive(max_tokens=100), *"abcd")
        core.engine_reports(report(4, **measured, **known), 0.0)
        return [
            each.predicted_start_ms for each in queue(core, interactive(max_tokens=100), *"efghi")
        ]

    alone = starts()
    assert starts(sidecars=2) == alone, "nobody else wants any"
    contended = starts(sidecars=2, contended=True)
    assert contended[:2] == alone[:2] == [1400, 1400]
    assert contended[2:4] == [alone[4]] * 2, "they wait for those before them"
    assert contended[4] is not None
    assert alone[4] is not None
    assert contended[4] > alone[4]


def test_retry_after_is_longer_while_others_take_their_part_of_what_comes_free() -> None:
    waits = []
    for contended in (False, True):
        core = core_of(8, rules(class_rules(queue_capacity=1)))
        fill(core, interactive(), *"abcdefgh")
        for second, name in enumerate("abc", 1):
            core.release(name, second, 10)
            fill(core, interactive(), name, at=second)
        core.engine_reports(report(8, sidecars=4, contended=contended), 3.0)
        queue(core, interactive(), "queued", at=3.0)
        refusal = core.arrive("refused", interactive(), 3.0)
        assert isinstance(refusal, Refusal)
        assert refusal.retry_after_ms is not None
        waits.append(refusal.retry_after_ms)
    assert waits[1] == pytest.approx(4 * waits[0], rel=0.3)
