"""What takes the records of ended requests: what it cannot write, it counts."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orch_sidecar.engine_state.step_history import StepHistory
from orch_sidecar.observability.request_log import log
from orch_sidecar.observability.request_log.log import RequestLog
from orch_sidecar.observability.request_log.writer import LineWriter
from tests.integration.running import eventually
from tests.orch_sidecar.observability.request_log.test_lines import served


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
    pools: Any = [SimpleNamespace(name="cloud", watcher=watcher)]
    requests = RequestLog(LineWriter(str(path)), pools, metrics)  # type: ignore[arg-type]
    monkeypatch.setattr(log, "WRITE_EVERY_S", 0.001)
    monkeypatch.setattr(log, "_PENDING_S", 0.0)
    caplog.set_level(logging.ERROR)
    running = asyncio.create_task(requests.run())
    with monkeypatch.context() as faulty:
        faulty.setattr(StepHistory, "mean_batch", lambda *_: 1 // 0)
        metrics.take([(served(), 5), (served(), 5)])
        await eventually(lambda: metrics.dropped() == 2)
    metrics.take([(served(scenario="next"), 5)])
    running.cancel()
    await requests.close()
    assert [json.loads(line)["scenario"] for line in path.read_text().splitlines()] == ["next"]
    assert metrics.dropped() == 2
    assert "2 lines of the request log were dropped" in caplog.text
