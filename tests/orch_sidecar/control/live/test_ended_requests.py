"""The rows of the requests that ended last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.api.refusal import Reason
from orch_sidecar.control.live.ended_requests import MAX_REQUESTS, EndedRequests
from orch_sidecar.observability.mean_batches import MeanBatches
from orch_sidecar.observability.recent import RecentRequests
from orch_sidecar.observability.record import Outcome, RequestRecord
from tests.orch_sidecar.records import record_of
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
    assert len(rows.update(made, 13 * S)) == len(rows.rows) == MAX_REQUESTS
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
