"""One request and its times."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.tools.bench.load.call import Call, Fate
from tests.orch_sidecar.tools.bench.sample_results import answered, refused


@pytest.mark.parametrize(
    ("stated", "latency_s", "late_s"),
    [
        # From when it was due, or in a closed loop sent; late against when there was room.
        ({"sent_s": 1.5}, 0.2, 0.5),
        ({"due": False, "sent_s": 1.04}, 0.16, 0.04),
    ],
)
def test_latency_counts_from_the_schedule_or_from_the_sending(
    stated: dict[str, Any], latency_s: float, late_s: float
) -> None:
    call = answered(1.0, **stated)
    assert call.served is not None
    assert call.served.latency_s == pytest.approx(latency_s)
    assert call.late_s == pytest.approx(late_s)
    assert Call(due_s=1.0).late_s is None


def test_gaps_are_between_events() -> None:
    assert answered(0.0, tokens=3).gaps_s == pytest.approx([0.01, 0.01])
    assert answered(0.0, tokens=1).gaps_s == []


def test_only_answers_of_a_known_length_count() -> None:
    assert refused(0.0).served is None
    assert answered(0.0, fate=Fate.CUT).served is None
    assert answered(0.0, output_tokens=None).served is None
    unknown = answered(0.0, input_tokens=None).served
    assert unknown is not None
    assert unknown.input_tokens == 0
