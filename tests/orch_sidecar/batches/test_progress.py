"""How far batches are, and when they will end."""

from __future__ import annotations

import time
from typing import Any

import pytest

from orch_sidecar.batches.ledger import EndedRow, OpenBatch
from orch_sidecar.batches.progress import Progress

ALICE = bytes(32)
NOW = 1_795_853_190.0


def batch(completed: int, failed: int = 0, **more: Any) -> OpenBatch:
    values: dict[str, Any] = {
        "id": "batch_1", "owner": ALICE.hex(), "status": "in_progress", "input_file_id": "file-1",
        "models": ["tiny"],
        "total": 100, "completed": completed, "failed": failed, "expires_at": 2**40,
        "in_progress_at": 1, "taken_by": None,
    }  # fmt: skip
    return OpenBatch(**values | more)


def seen(progress: Progress) -> dict[str, Any]:
    [row] = progress.rows({ALICE: "alice"})
    return row


def test_rows_per_second_and_the_end_follow_from_the_last_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    progress = Progress()
    progress.look({"batch_1": batch(0)}, 0.0)
    assert (seen(progress)["rows_per_s"], seen(progress)["ends_at"]) == (None, None)
    progress.look({"batch_1": batch(10)}, 10.0)
    progress.look({"batch_1": batch(10)}, 90.0)
    progress.look({"batch_1": batch(38, 2)}, 105.0)
    row = seen(progress)
    assert (row["key"], row["completed"], row["failed"], row["total"]) == ("alice", 38, 2, 100)
    assert row["rows_per_s"] == round(30 / 95, 2)
    assert row["ends_at"] == round(1000 * (NOW + 60 * 95 / 30))


def test_batch_ends_by_its_window_at_the_latest() -> None:
    progress = Progress()
    expires = int(time.time()) + 5
    progress.look({"batch_1": batch(0, expires_at=expires)}, 0.0)
    progress.look({"batch_1": batch(1, expires_at=expires)}, 10.0)
    assert seen(progress)["ends_at"] == 1000 * expires


def test_metrics_count_batches_and_rows() -> None:
    progress = Progress()
    progress.look({"batch_1": batch(40, 2)}, 0.0)
    answer = EndedRow("batch_1", 1, b"{}", ok=True)
    progress.count([answer, answer, answer._replace(ok=False), answer._replace(answer=None)])
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in progress.collect()
        for sample in family.samples
    }
    assert found["orch_batches", "in_progress"] == 1
    assert found["orch_batches", "validating"] == 0
    assert found["orch_batch_rows_left",] == 58
    outcomes = ("completed", "failed", "again")
    assert [found["orch_batch_rows_total", each] for each in outcomes] == [2, 1, 1]
