"""How fast the last requests were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orch_sidecar
from orch_sidecar.api.refusal import Reason
from orch_sidecar.control.live.latency import of_classes, quantiles
from orch_sidecar.observability.recent import MAX_REQUESTS
from orch_sidecar.observability.record import Outcome, RequestRecord
from tests.orch_sidecar import apis
from tests.orch_sidecar.records import record_of
from tests.orch_sidecar.snapshots import CLOUD
from vllm_plugin.contracts.profile import ServiceClass

S = 1_000_000_000
INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK


def ended(at_s: float, ttft_s: float, took_s: float, **more: Any) -> tuple[RequestRecord, int]:
    """A complete stream that ended at `at_s`."""
    at = round(at_s * S)
    arrived = at - round(took_s * S)
    values: dict[str, Any] = {
        "arrived": arrived, "first_byte": arrived + round(ttft_s * S), "stream": True, "cost": 1,
        "service_class": INTERACTIVE, "outcome": Outcome.OK, "output_tokens": 11,
    }  # fmt: skip
    return record_of(**(values | more)), at


def test_quantiles_are_values_that_occurred() -> None:
    assert quantiles([]) is None
    assert quantiles([5.0]) == [5.0, 5.0]
    assert quantiles([float(n) for n in range(100, 0, -1)]) == [50.0, 95.0]


def test_speed_is_by_class_and_stands_beside_the_limits_of_the_profile() -> None:
    requests = [
        ended(100, 0.2, 1.2),
        ended(101, 0.4, 2.4),
        ended(102, 0.1, 1.1, service_class=BULK, output_tokens=2),
    ]
    found = of_classes(requests, (INTERACTIVE, BULK), CLOUD.admission, 103 * S)
    assert found == {
        "interactive": {
            "answers": 2, "tokens": 22, "requests": 2,
            "ttft_ms": [200.0, 400.0], "ttft_slo_ms": 10_000,
            "tpot_ms": [100.0, 200.0], "tpot_slo_ms": 200,
        },
        "bulk": {
            "answers": 1, "tokens": 2, "requests": 1,
            "ttft_ms": [100.0, 100.0], "ttft_slo_ms": None,
            "tpot_ms": [1000.0, 1000.0], "tpot_slo_ms": 1000,
        },
    }  # fmt: skip


def test_what_is_no_measure_of_the_engine_is_not_counted() -> None:
    others = [
        ended(30, 0.1, 1.0),  # more than a minute ago
        ended(100, 0.1, 1.0, outcome=Reason.SLO_MISS),
        ended(100, 0.1, 1.0, stream=False),
        ended(100, 0.1, 1.0, first_byte=None),
        ended(100, 0.1, 1.0, coalesced=True),
        ended(100, 0.1, 1.0, endpoint=apis.RESPONSES),  # whose first byte is no token
    ]
    [found] = of_classes(others, (INTERACTIVE,), CLOUD.admission, 101 * S).values()
    assert (found["requests"], found["ttft_ms"], found["tpot_ms"]) == (0, None, None)


def test_answers_that_are_not_streams_are_counted_with_their_tokens() -> None:
    answers = [
        ended(100, 0.1, 1.0),
        ended(100, 1.0, 1.0, stream=False),
        ended(100, 0.1, 1.0, endpoint=apis.RESPONSES, output_tokens=None, generated_tokens=5),
        ended(100, 1.0, 1.0, stream=False, output_tokens=None),
        ended(100, 1.0, 1.0, stream=False, coalesced=True),
    ]
    [found] = of_classes(answers, (INTERACTIVE,), CLOUD.admission, 101 * S).values()
    assert (found["answers"], found["tokens"], found["requests"]) == (4, 27, 1)


def test_page_says_how_many_answers_its_speed_is_of_at_most() -> None:
    page = (Path(orch_sidecar.__file__).parent / "ui" / "index.html").read_text()
    assert f"at most the last {MAX_REQUESTS};" in page


def test_tokens_of_a_stream_without_usage_are_estimated() -> None:
    streams = [ended(100, 0.1, 1.1, output_tokens=None, generated_tokens=21)]
    [found] = of_classes(streams, (INTERACTIVE,), CLOUD.admission, 101 * S).values()
    assert found["tpot_ms"] == [50.0, 50.0]


def test_time_per_token_is_of_single_sequences_that_were_counted_and_read() -> None:
    streams = [
        ended(100, 0.1, 1.0, cost=2),
        ended(100, 0.1, 1.0, output_tokens=None),
        ended(100, 0.1, 1.0, output_tokens=None, generated_tokens=1),
        ended(100, 0.1, 1.0, output_tokens=1),
        ended(100, 0.1, 1.0, client_limited=True),
    ]
    [found] = of_classes(streams, (INTERACTIVE,), CLOUD.admission, 101 * S).values()
    assert (found["requests"], found["ttft_ms"], found["tpot_ms"]) == (5, [100.0, 100.0], None)
