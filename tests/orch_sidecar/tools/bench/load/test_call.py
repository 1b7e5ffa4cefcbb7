"""One request and its times."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.bench.load.call import Call, Fate
from tests.orch_sidecar.tools.bench.sample_results import answered, refused


def test_latency_of_a_scheduled_request_counts_from_when_it_was_due() -> None:
    served = answered(1.0, sent_s=1.5).served
    assert served is not None
    assert served.latency_s == pytest.approx(0.2)
    assert served.ttft_s == pytest.approx(0.1)


def test_latency_of_a_closed_loop_counts_from_when_it_was_sent() -> None:
    served = answered(1.0, due=False, sent_s=1.04).served
    assert served is not None
    assert served.latency_s == pytest.approx(0.16)


def test_lateness_is_against_the_schedule_or_against_when_there_was_room() -> None:
    assert answered(1.0, sent_s=1.25).late_s == 0.25
    assert answered(1.0, due=False, sent_s=1.5).late_s == 0.5
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
