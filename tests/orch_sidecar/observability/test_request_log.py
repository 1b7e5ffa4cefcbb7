"""The log of requests: its lines, and the thread that writes them, which is never in the way."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orch_sidecar.api.refusal import Reason
from orch_sidecar.observability import recent, request_log
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.observability.request_log import Line, LineWriter, RequestLog, line_of
from tests.integration.running import eventually
from tests.orch_sidecar import apis
from tests.orch_sidecar.records import record_of
from vllm_plugin.contracts.profile import ServiceClass

MS = 1_000_000


def line(record: RequestRecord, ended: int, batch: float | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line_of(record, ended, batch))
    return found


def served(**more: Any) -> RequestRecord:
    given = {
        "id": "i", "request_id": "r", "correlation_id": "c", "arrived": 0,
        "arrived_ns": 1_700_000_000_123 * MS, "model": "tiny", "cost": 1, "stream": True,
        "pool": "cloud", "labels": {"measurement_type": "batched_online"},
        "service_class": ServiceClass.BULK, "queued": 1 * MS, "queue_position": 2,
        "admitted": 12 * MS, "first_byte": 80 * MS, "status": 200, "input_tokens": 7,
        "output_tokens": 3, "key": "alice", "trace_id": b"\xff", "scenario": "run",
        "outcome": Outcome.OK,
    }  # fmt: skip
    return record_of(**(given | more))


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
    assert line(served(endpoint=apis.RESPONSES), 9)["ttft_ms"] is None


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
    monkeypatch.setattr(request_log, "WRITE_EVERY_S", 0.001)
    monkeypatch.setattr(recent, "_PENDING_S", 0.0)
    caplog.set_level(logging.ERROR)
    running = asyncio.create_task(requests.run())
    with monkeypatch.context() as faulty:
        faulty.setattr(recent.MeanBatches, "of", lambda *_: 1 // 0)
        metrics.take([(served(), 5), (served(), 5)])
        await eventually(lambda: metrics.dropped() == 2)
    metrics.take([(served(scenario="next"), 5)])
    running.cancel()
    await requests.close()
    assert [json.loads(line)["scenario"] for line in path.read_text().splitlines()] == ["next"]
    assert metrics.dropped() == 2
    assert "2 lines of the request log were dropped" in caplog.text


def lines(*texts: str) -> list[Line]:
    return [partial(str.encode, text) for text in texts]


def read(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_lines_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("before\n")
    writer = LineWriter(str(path))
    writer.write(lines("1", "2"))
    writer.write(lines("3"))
    writer.close(10.0)
    assert read(path) == ["before", "1", "2", "3"]
    assert writer.dropped == 0


def test_file_that_was_moved_away_is_followed_by_a_new_one(tmp_path: Path) -> None:
    path, moved = tmp_path / "requests.jsonl", tmp_path / "requests.jsonl.1"
    writer, written = LineWriter(str(path)), threading.Event()
    writer.write([*lines("1"), lambda: written.set() or b"2"])  # type: ignore[func-returns-value]
    assert written.wait(10.0)
    while not path.read_text().endswith("2\n"):
        pass
    path.rename(moved)
    writer.write(lines("3"))
    writer.close(10.0)
    assert (read(moved), read(path)) == (["1", "2"], ["3"])


def test_new_file_is_its_owners_alone_and_one_that_is_there_keeps_its_mode(
    tmp_path: Path,
) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.touch(0o640)
    for path in (there, new):
        LineWriter(str(path)).close(10.0)
    assert [path.stat().st_mode & 0o777 for path in (there, new)] == [0o640, 0o600]


def test_lines_beyond_the_bound_are_dropped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    writer, go = LineWriter(str(path), most=3), threading.Event()
    writer.write([lambda: (go.wait() and b"1") or b""])  # the thread is blocked
    writer.write(lines("2", "3", "4", "5"))
    writer.write(lines("6"))
    assert writer.dropped == 3
    go.set()
    writer.close(10.0)
    assert read(path) == ["1", "2", "3"]


def test_lines_that_cannot_be_written_are_dropped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "requests.jsonl"
    writer = LineWriter(str(path))
    path.unlink()
    folder.rmdir()
    writer.write(lines("1"))
    writer.write(lines("2"))
    while writer.dropped < 2:
        pass
    folder.mkdir()
    writer.write(lines("3"))
    writer.close(10.0)
    assert read(path) == ["3"]
    assert caplog.text.count("the request log cannot be written") == 1


def test_line_that_cannot_be_made_costs_no_other_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "requests.jsonl"
    writer = LineWriter(str(path))
    writer.write([*lines("1"), lambda: b"%d" % cast_error(), *lines("2")])
    writer.write(lines("3"))
    writer.close(10.0)
    assert (read(path), writer.dropped) == (["1", "2", "3"], 1)
    assert "could not be made: ValueError('a fault')" in caplog.text
    assert "Traceback" not in caplog.text


def cast_error() -> int:
    raise ValueError("a fault")


def test_file_that_cannot_be_opened_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"ORCH_REQUEST_LOG.*give a file that can be written"):
        LineWriter(str(tmp_path / "nowhere" / "requests.jsonl"))


def test_standard_output_is_one_of_the_places(capfd: pytest.CaptureFixture[str]) -> None:
    writer = LineWriter("-")
    writer.write(lines("1"))
    writer.close(10.0)
    assert capfd.readouterr().out == "1\n"


def test_line_that_was_cut_by_a_full_disk_does_not_spoil_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "requests.jsonl", os.write
    calls: list[bytes] = []

    def on_a_full_disk(fd: int, data: bytes) -> int:
        calls.append(bytes(data))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:6] if len(calls) == 1 else data)

    monkeypatch.setattr(os, "write", on_a_full_disk)
    writer = LineWriter(str(path))
    writer.write(lines("111", "222", "333"))
    while writer.dropped < 2:
        pass
    writer.write(lines("444"))
    writer.close(10.0)
    assert (read(path), writer.dropped) == (["111", "22", "444"], 2)
