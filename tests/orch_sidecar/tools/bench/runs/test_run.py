"""How much of a run is over."""

from __future__ import annotations

import io

import pytest

from orch_sidecar.tools.bench.runs.run import RunProgress


def test_run_is_over_when_requests_and_time_are() -> None:
    with RunProgress("x", 4, 10.0, io.StringIO()) as progress:
        for now_s, share in ((1.0, 0.1), (2.0, 0.2), (9.0, 0.75), (9.5, 0.95), (20.0, 1.0)):
            progress.ended(now_s)
            assert progress.share == pytest.approx(share)
    assert progress.detail == "5 requests"
