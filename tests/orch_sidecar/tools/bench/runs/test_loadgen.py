"""The figures of MLCommons' load generator beside ours."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest

from orch_sidecar.tools.bench.load.call import Call, Fate
from orch_sidecar.tools.bench.runs.loadgen import Loadgen
from tests.orch_sidecar.tools.bench.sample_results import SINGLE

# Ten requests, issued each second from second 1; the n-th takes n hundred ms, and its first token a
# tenth of that.
CALLS = [
    Call(
        free_s=float(number), sent_s=number + 0.01, ended_s=number + number / 10,
        fate=Fate.ANSWERED, status=200, input_tokens=4, output_tokens=11,
        first_s=number + number / 100,
        event_s=array("d", [number + number / 100]),
    )
    for number in range(1, 11)
]  # fmt: skip
VALUES = {
    "result_validity": "VALID",
    "result_completed_tokens_per_second": 10.5,
    "result_mean_latency_ns": 551_000_000,
    "result_90.00_percentile_latency_ns": 1_000_000_000,
    "result_first_token_mean_latency_ns": 55_000_000,
    "result_time_per_output_token_50.00_percentile_ns": 54_000_000,
}


def logged(folder: Path, **values: object) -> Path:
    lines = [
        f":::MLLOG {json.dumps({'key': key, 'value': value})}"
        for key, value in {**VALUES, **values}.items()
    ]
    (folder / "mlperf_log_detail.txt").write_text("\n".join(lines))
    return folder


def test_both_are_defined_alike(tmp_path: Path) -> None:
    test = Loadgen(SINGLE, logged(tmp_path))
    test.began_s = 0.5
    found = test.compared(CALLS)
    assert found is not None
    assert found.valid
    ours = {name: each for name, (_, each) in found.figures.items()}
    assert ours == pytest.approx(
        {
            "tokens/s": 110 / (11.0 - 0.5),
            "latency mean, ms": 550.0,  # from when the query was issued, not sent
            "latency p90, ms": 1000.0,  # the value at the rank, not between two
            "TTFT mean, ms": 55.0,
            "TPOT p50, ms": 54.0,
        }
    )
    assert max(abs(own / theirs - 1) for theirs, own in found.figures.values()) < 0.005


def test_nothing_is_compared_where_a_request_was_not_answered(tmp_path: Path) -> None:
    refused = Call(free_s=2.0, sent_s=2.0, ended_s=2.1, fate=Fate.REFUSED, status=429)
    folder = logged(tmp_path, result_validity="INVALID")
    found = Loadgen(SINGLE, folder).compared([*CALLS, refused])
    assert found is not None
    assert (found.valid, found.figures) == (False, {})


def test_test_that_did_not_end_has_no_figures(tmp_path: Path) -> None:
    test = Loadgen(SINGLE, tmp_path)
    assert test.compared(CALLS) is None
    (tmp_path / "mlperf_log_detail.txt").write_text(':::MLLOG {"key": "a", "value": 1}\n')
    assert test.compared(CALLS) is None


def test_query_is_due_when_its_schedule_says_so_and_not_before_the_run(tmp_path: Path) -> None:
    late = '{"name":"Sample","args":{"sample_seq":%d,"query_id":7,"issue_start_ns":250000000}}\n'
    (tmp_path / "mlperf_log_trace.json").write_text(late % 1 + late % 2)
    calls = [Call(due_s=1.0), Call(due_s=1.0), Call(due_s=0.1)]
    Loadgen(SINGLE, tmp_path)._correct_due_times(calls)
    assert [call.due_s for call in calls] == [1.0, 0.75, 0.0]
