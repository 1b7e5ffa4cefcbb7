"""The rows of the requests that ended last, and how fast these were."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import orch_sidecar
from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.api.refusal import Reason
from orch_sidecar.control.ended_requests import (
    MAX_ROWS,
    EndedRequests,
    end_of,
    latency_by_class,
    quantiles,
)
from orch_sidecar.observability.recent import MAX_REQUESTS, MeanBatches, RecentRequests
from orch_sidecar.observability.record import Outcome, RequestRecord
from tests.orch_sidecar import apis
from tests.orch_sidecar.records import record_of
from tests.orch_sidecar.snapshots import CLOUD
from vllm_plugin.contracts.profile import ServiceClass

S = 1_000_000_000


def record(**more: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "id": "1f" * 16, "arrived": 10 * S, "arrived_ns": 1_000 * S, "model": "tiny", "cost": 1,
        "pool": "cloud", "service_class": ServiceClass.BULK, "admitted": 10 * S + S // 2,
        "first_byte": 11 * S, "outcome": Outcome.OK, "status": 200, "input_tokens": 7,
        "output_tokens": 30, "generated_tokens": 30, "trace_id": b"\xff", "key": "chat",
    }  # fmt: skip
    return record_of(**(values | more))


def table(batches: MeanBatches | None = None) -> EndedRequests:
    made = MeanBatches() if batches is None else batches
    return EndedRequests(made, lambda pool, model: (pool, model) == ("cloud", "tiny"))


def report(batches: MeanBatches, at: float, steps: dict[str, list[float]]) -> None:
    watcher = SimpleNamespace(document={"epoch": "a", "steps_by_batch": steps}, beat_at=at)
    batches.read([SimpleNamespace(name="cloud", watcher=watcher)])  # type: ignore[list-item]


def recent(*records: RequestRecord) -> RecentRequests:
    made = RecentRequests()
    made.add([(each, 13 * S) for each in records])
    return made


def test_row_has_what_became_of_a_request_and_none_of_its_text() -> None:
    [row] = table().update(recent(record()), 13 * S)
    assert row == {
        "number": 1, "id": "1f" * 16, "pool": "cloud", "class": "bulk", "key": "chat",
        "model": "tiny", "route": "/v1/chat/completions", "ended_at": 1_003_000,
        "outcome": "ok", "status": 200,
        "text": "", "wait_ms": 500.0, "first_byte_ms": 1000.0, "total_ms": 3000.0,
        "prompt_tokens": 7, "tokens": 30, "estimated": False, "batch": None, "coalesced": False,
        "trace_id": "ff",
    }  # fmt: skip


def test_tokens_that_were_not_reported_are_marked_as_estimated() -> None:
    [row] = table().update(recent(record(output_tokens=None, generated_tokens=28)), 13 * S)
    assert (row["tokens"], row["estimated"]) == (28, True)


def test_model_that_no_pool_serves_is_text_of_a_client_and_is_not_shown() -> None:
    rows = table().update(recent(record(model="my secret prompt"), record(pool=None)), 13 * S)
    assert [row["model"] for row in rows] == [None, None]


def test_refusal_has_its_reason_in_words() -> None:
    refused = record(
        outcome=Reason.DO_NOT_QUEUE, status=429, admitted=None, first_byte=None, trace_id=b""
    )
    [row] = table().update(recent(refused), 13 * S)
    assert (row["outcome"], row["status"]) == ("do_not_queue", 429)
    assert "asked not to wait" in row["text"]
    assert (row["wait_ms"], row["first_byte_ms"], row["trace_id"]) == (None, None, None)


def test_each_row_comes_once_and_requests_for_no_generation_do_not_come() -> None:
    rows, made = table(), recent(record(), record(endpoint=ENDPOINTS["/v1/models"]))
    assert [row["number"] for row in rows.update(made, 13 * S)] == [1]
    assert rows.update(made, 13 * S + 2 * S // 10) == []
    made.add([(record(), 14 * S)])
    assert [row["number"] for row in rows.update(made, 14 * S)] == [3]
    assert [row["number"] for row in rows.rows] == [1, 3]


def test_table_and_its_changes_are_bounded() -> None:
    rows, made = table(), RecentRequests()
    for _ in range(10):
        made.add([(record(), 13 * S)] * 100)
    assert len(rows.update(made, 13 * S)) == len(rows.rows) == MAX_ROWS
    assert rows.rows[-1]["number"] == 1000


def test_row_comes_again_with_its_mean_batch_once_the_engine_has_reported_it() -> None:
    batches = MeanBatches()
    rows, made = table(batches), recent(record())
    report(batches, 10.0, {"1": [10, 0.1]})
    assert [row["batch"] for row in rows.update(made, 13 * S)] == [None]
    assert rows.update(made, 13 * S + 1) == []
    report(batches, 14.0, {"1": [10, 0.1], "4": [90, 1.0]})
    [row] = rows.update(made, 14 * S)
    assert (row["number"], row["batch"]) == (1, 4.0)
    assert rows.rows == [row]
    assert rows.update(made, 15 * S) == []


def test_mean_batch_that_never_becomes_known_is_not_waited_for() -> None:
    batches = MeanBatches()
    rows, made = table(batches), recent(record())
    report(batches, 10.0, {})
    assert len(rows.update(made, 13 * S)) == 1
    assert rows.update(made, 17 * S) == []
    assert rows._pending == []


def test_mean_batch_of_a_stream_is_that_from_its_first_token() -> None:
    batches, streamed = MeanBatches(), record(stream=True, first_byte=12 * S)
    report(batches, 10.0, {"1": [10, 0.1]})
    report(batches, 12.0, {"1": [110, 0.1]})
    report(batches, 14.0, {"1": [110, 0.1], "4": [90, 1.0]})
    rows = table(batches).update(recent(streamed, record(first_byte=12 * S)), 14 * S)
    assert [row["batch"] for row in rows] == [4.0, 2.1]


@pytest.mark.parametrize("outcome", [*Outcome, *Reason], ids=str)
def test_every_end_of_a_request_has_words(outcome: Outcome | Reason) -> None:
    assert bool(end_of(outcome)) is (outcome is not Outcome.OK)


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
    found = latency_by_class(requests, (INTERACTIVE, BULK), CLOUD.admission, 103 * S)
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
    [found] = latency_by_class(others, (INTERACTIVE,), CLOUD.admission, 101 * S).values()
    assert (found["requests"], found["ttft_ms"], found["tpot_ms"]) == (0, None, None)


def test_answers_that_are_not_streams_are_counted_with_their_tokens() -> None:
    answers = [
        ended(100, 0.1, 1.0),
        ended(100, 1.0, 1.0, stream=False),
        ended(100, 0.1, 1.0, endpoint=apis.RESPONSES, output_tokens=None, generated_tokens=5),
        ended(100, 1.0, 1.0, stream=False, output_tokens=None),
        ended(100, 1.0, 1.0, stream=False, coalesced=True),
    ]
    [found] = latency_by_class(answers, (INTERACTIVE,), CLOUD.admission, 101 * S).values()
    assert (found["answers"], found["tokens"], found["requests"]) == (4, 27, 1)


def test_page_says_how_many_answers_its_speed_is_of_at_most() -> None:
    page = (Path(orch_sidecar.__file__).parent / "ui" / "index.html").read_text()
    assert f"at most the last {MAX_REQUESTS};" in page


def test_tokens_of_a_stream_without_usage_are_estimated() -> None:
    streams = [ended(100, 0.1, 1.1, output_tokens=None, generated_tokens=21)]
    [found] = latency_by_class(streams, (INTERACTIVE,), CLOUD.admission, 101 * S).values()
    assert found["tpot_ms"] == [50.0, 50.0]


def test_time_per_token_is_of_single_sequences_that_were_counted_and_read() -> None:
    streams = [
        ended(100, 0.1, 1.0, cost=2),
        ended(100, 0.1, 1.0, output_tokens=None),
        ended(100, 0.1, 1.0, output_tokens=None, generated_tokens=1),
        ended(100, 0.1, 1.0, output_tokens=1),
        ended(100, 0.1, 1.0, client_limited=True),
    ]
    [found] = latency_by_class(streams, (INTERACTIVE,), CLOUD.admission, 101 * S).values()
    assert (found["requests"], found["ttft_ms"], found["tpot_ms"]) == (5, [100.0, 100.0], None)
