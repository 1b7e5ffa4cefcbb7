"""Parts and multiples of a trace."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.traces import InvalidTrace, Trace, TracedRequest

TRACE = Trace(
    "some.csv",
    "0" * 64,
    (TracedRequest(0.0, 64, 8, (1, 2)), TracedRequest(2.0, 32, 6, (1,)), TracedRequest(5.0, 1, 1)),
    block_tokens=32,
)


def test_window_counts_its_times_from_its_start() -> None:
    found = TRACE.window(1.5, 5.0)
    assert found.requests == (TracedRequest(0.5, 32, 6, (1,)),)
    assert (found.name, found.sha256) == (TRACE.name, TRACE.sha256)


def test_window_without_end_goes_to_the_last_request() -> None:
    assert [each.at_s for each in TRACE.window(2.0).requests] == [0.0, 3.0]


def test_window_without_requests_is_an_error() -> None:
    with pytest.raises(InvalidTrace, match=r"some.csv: no request arrived from 6 to 9 s.* 5 s of"):
        TRACE.window(6, 9)


def test_factors_multiply_times_lengths_and_blocks() -> None:
    found = TRACE.scaled(time=0.5, lengths=0.25)
    assert found.requests == (
        TracedRequest(0.0, 16, 2, (1, 2)),
        TracedRequest(1.0, 8, 2, (1,)),
        TracedRequest(2.5, 1, 1),
    )
    assert found.block_tokens == 8
