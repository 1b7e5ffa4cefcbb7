"""What takes the records of ended requests: what it cannot write, it counts."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orch_sidecar.api.refusal import Reason
from orch_sidecar.observability import mean_batches
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.observability.request_log import log
from orch_sidecar.observability.request_log.log import RequestLog, line_of
from orch_sidecar.observability.request_log.writer import LineWriter
from tests.integration.running import eventually
from tests.orch_sidecar import apis
from tests.orch_sidecar.records import record_of
from vllm_plugin.contracts.profile import ServiceClass

MS = 1_000_000


def line(record: RequestRecord, ended: int, batch: float | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line_of(record, ended, batch))
    return found


def served(**more: Any) -> RequestRecord:
    record = record_of(
        endpoint=apis.CHAT, id="i", request_id="r", correlation_id="c", arrived=0,
        arrived_ns=1_700_000_000_123 * MS, model="tiny", cost=1, stream=True, pool="cloud",
        labels={"measurement_type": "batched_online"}, service_class=ServiceClass.BULK,
        queued=1 * MS, queue_position=2, admitted=12 * MS, first_byte=80 * MS, status=200,
        input_tokens=7, output_tokens=3, key="alice", trace_id=b"\xff", scenario="run",
    )  # fmt: skip
    record.outcome = Outcome.OK
    for name, value in more.items():
        setattr(record, name, value)
    return record


def test_line_of_a_served_request() -> None:
    assert line(served(), 912 * MS, 3.9) == {
        "time": "2023-11-14T22:13:20.123Z", "id": "i", "request_id": "r", "correlation_id": "c",
        "key": "alice", "method": "POST", "route": "/v1/chat/completions", "model": "tiny",
        "pool": "cloud", "measurement_type": "batched_online", "class": "bulk", "outcome": "ok",
        "status": 200, "stream": True, "sequences": 1, "position": 2, "wait_ms": 12.0,
        "ttft_ms": 80.0, "total_ms": 912.0, "prompt_tokens": 7, "tokens": 3,
        "tokens_estimated": False, "batch_mean": 3.9, "coalesced": False, "scenario": "run",
        "trace_id": "ff",
    }  # fmt: skip


def test_line_of_a_refused_request_has_its_reason_and_nothing_of_an_answer() -> None:
    record = record_of(arrived=0, arrived_ns=0)
    record.end(Reason.QUEUE_FULL, 429)
    found = line(record, 5 * MS)
    assert (found["outcome"], found["status"], found["total_ms"]) == ("queue_full", 429, 5.0)
    unknown = ("key", "model", "pool", "class", "position", "wait_ms", "ttft_ms", "tokens",
               "batch_mean", "trace_id")  # fmt: skip
    assert {found[name] for name in unknown} == {None}


def test_first_token_is_known_of_streams_that_begin_with_it() -> None:
    assert line(served(stream=False), 9)["ttft_ms"] is None
    assert line(served(status=400), 9)["ttft_ms"] is None  # an error
    of_responses = served()
    of_responses.endpoint = apis.RESPONSES
    assert line(of_responses, 9)["ttft_ms"] is None


def test_estimated_tokens_are_marked() -> None:
    found = line(served(output_tokens=None, generated_tokens=5), 9)
    assert (found["tokens"], found["tokens_estimated"]) == (5, True)


def test_model_that_utf_8_has_not_is_written_with_replacement() -> None:
    assert line(served(model="a\ud800b\u4f60"), 9)["model"] == "a?b\u4f60"


def test_model_is_cut_and_a_line_stays_one_line() -> None:
    written = line_of(served(model="a\nb" * 100), 9, None)
    assert b"\n" not in written
    assert len(json.loads(written)["model"]) == 128


class OfMetrics:
    """The part of the metrics that a log uses."""

    def log_to(self, take: Any, dropped: Any) -> None:
        self.take, self.dropped = take, dropped

    def catch_up(self) -> None:
        pass


async def test_lines_that_meet_a_fault_are_counted_and_the_next_ones_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, metrics = tmp_path / "requests.jsonl", OfMetrics()
    watcher = SimpleNamespace(document=None, beat_at=None)
    pools: Any = SimpleNamespace(all=[SimpleNamespace(name="cloud", watcher=watcher)])
    requests = RequestLog(LineWriter(str(path)), pools, metrics)  # type: ignore[arg-type]
    monkeypatch.setattr(log, "WRITE_EVERY_S", 0.001)
    monkeypatch.setattr(mean_batches, "_PENDING_S", 0.0)
    caplog.set_level(logging.ERROR)
    running = asyncio.create_task(requests.run())
    with monkeypatch.context() as faulty:
        faulty.setattr(mean_batches.MeanBatches, "of", lambda *_: 1 // 0)
        metrics.take([(served(), 5), (served(), 5)])
        await eventually(lambda: metrics.dropped() == 2)
    metrics.take([(served(scenario="next"), 5)])
    running.cancel()
    await requests.close()
    assert [json.loads(line)["scenario"] for line in path.read_text().splitlines()] == ["next"]
    assert metrics.dropped() == 2
    assert "2 lines of the request log were dropped" in caplog.text
