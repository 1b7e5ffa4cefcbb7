"""The record of a request: ids and times."""

from __future__ import annotations

import pytest

from orch_sidecar.observability.record import RequestRecord, accept_id, new_ids
from tests.orch_sidecar.records import record_of

MS = 1_000_000  # nanoseconds


def exchange_of(*, stream: bool = False) -> RequestRecord:
    return record_of(arrived=5_000 * MS, arrived_ns=1_700_000_000_000 * MS, stream=stream)


@pytest.mark.parametrize(
    "given",
    ["a", "0", "3f2b1c9e-0d5a-4c0e-9b61-1d0f7f7b2a10", "req_1:2.3-4", "A" * 128],
)
def test_safe_ids_are_accepted_unchanged(given: str) -> None:
    assert accept_id(given) == given


@pytest.mark.parametrize(
    "given",
    [
        None, "", "A" * 129, " a", "a ", "a b", "a\n", "a\r\nX: y", "-a", ".a", "é", "a/b", "a%20",
        "<a>", "a\x00", '"', "a,b", "٣",
    ],
)  # fmt: skip
def test_other_ids_are_rejected(given: str | None) -> None:
    assert accept_id(given) is None


def test_own_ids_are_unguessable_and_acceptable() -> None:
    several = [*new_ids(), *new_ids()]
    ids = set(several)
    assert len(ids) == len(several)
    for own in ids:
        assert len(bytes.fromhex(own)) == 16
        assert accept_id(own) == own


def test_wall_clock_of_a_moment_follows_the_monotonic_clock() -> None:
    record = exchange_of()
    assert record.at_ns(record.arrived) == record.arrived_ns
    assert record.at_ns(5_250 * MS) == record.arrived_ns + 250 * MS


@pytest.mark.parametrize(
    ("stream", "answered"),
    [(True, b"ttft;dur=400.00"), (False, b"engine;dur=150.00")],
    ids=["stream", "complete response"],
)
def test_server_timing_has_the_queue_and_ttft_or_engine(stream: bool, answered: bytes) -> None:
    record = exchange_of(stream=stream)
    record.admitted = record.arrived + 250 * MS
    record.first_byte = record.arrived + 400 * MS
    assert record.server_timing() == b"queue;dur=250.00, " + answered


def test_server_timing_without_admission_has_no_queueing() -> None:
    record = exchange_of()
    assert record.server_timing() == b"queue;dur=0.00"
    record.first_byte = record.arrived + 3 * MS
    assert record.server_timing() == b"queue;dur=0.00, engine;dur=3.00"


def test_server_timing_of_a_request_that_waited_in_vain_has_its_wait() -> None:
    record = exchange_of()
    record.arrived -= 250 * MS
    record.queued = record.arrived
    waited_ms = float(record.server_timing().removeprefix(b"queue;dur="))
    assert 250.0 <= waited_ms <= record.spent_ms() + 0.01
