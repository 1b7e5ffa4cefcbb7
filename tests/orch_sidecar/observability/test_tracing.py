"""Traces without an exporter, and the id of a sampled trace, read without OpenTelemetry."""

from __future__ import annotations

import pytest

from orch_sidecar.observability.tracing import SpanCounts, Tracing, sampled_trace

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.mark.parametrize("flags", ["01", "03", "ff"])
def test_id_of_a_sampled_trace_is_read(flags: str) -> None:
    assert sampled_trace(f"00-{TRACE}-{PARENT}-{flags}") == bytes.fromhex(TRACE)


@pytest.mark.parametrize(
    "header",
    [
        f"00-{TRACE}-{PARENT}-00",
        f"00-{TRACE}-{PARENT}-02",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE[1:]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}-01\n",
        f"00-{TRACE}-{PARENT}-01, 00-{TRACE}-{PARENT}-01",
        f"\u0660\u0660-{TRACE}-{PARENT}-01",  # digits, but not of ASCII
        "",
        "nonsense",
    ],
)
def test_unsampled_or_invalid_trace_context_has_no_id(header: str) -> None:
    assert sampled_trace(header) == b""


async def test_without_an_exporter_no_spans_are_counted_and_nothing_is_sent_at_the_end() -> None:
    tracing = Tracing()
    assert tracing.spans is None
    await tracing.shutdown()


def test_every_reason_to_drop_a_span_is_counted_from_the_start() -> None:
    assert SpanCounts().dropped == dict.fromkeys(
        ["queue_full", "rejected", "undelivered", "invalid"], 0
    )
    assert SpanCounts().dropped is not SpanCounts().dropped
