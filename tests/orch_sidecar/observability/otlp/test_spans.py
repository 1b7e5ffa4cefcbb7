"""Spans by the outcome of their request; when a trace leaves, and when it is lost."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from orch_sidecar.api.refusal import Reason
from orch_sidecar.config.configuration import NO_TYPE, unplaced_labels
from orch_sidecar.observability.otlp.encoder import MAX_ATTRIBUTES, SpanEncoder
from orch_sidecar.observability.otlp.spans import SpanTracing
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.observability.tracing import Trace
from tests.orch_sidecar.observability.otlp.kept import Kept, attributes_of, tracing_to
from tests.orch_sidecar.records import record_of
from vllm_plugin.contracts.profile import MeasurementType

# What the client did itself is no error of the span.
NO_ERRORS = {Outcome.OK, Outcome.CANCELLED, Outcome.CLIENT_ERROR}
PLACED = {"measurement_type": MeasurementType.OFFLINE.value, "orch.pool": "offline"}
UNPLACED = {"measurement_type": NO_TYPE}
SURROGATE = "half \ud800 a pair"


@pytest.fixture
def kept() -> Kept:
    return Kept()


def begun(tracing: SpanTracing, **more: Any) -> tuple[RequestRecord, Trace]:
    """A request that was dispatched."""
    record = record_of(**({"cost": 1, "labels": PLACED, "lease": "lease"} | more))
    trace = tracing.begin(record, {})
    record.admitted = record.arrived
    trace.dispatched()
    return record, trace


def end(record: RequestRecord, trace: Trace, outcome: Outcome | Reason = Outcome.OK) -> None:
    record.end(outcome, 200)
    trace.ended()


@pytest.mark.parametrize("labels", [None, PLACED], ids=["unplaced", "placed"])
@pytest.mark.parametrize("outcome", [*Outcome, *Reason], ids=lambda outcome: outcome.name)
@pytest.mark.parametrize("common", [{}, {"measurement_type": MeasurementType.SINGLE_STREAM.value}])
def test_every_span_of_every_outcome_has_a_measurement_type(
    kept: Kept, outcome: Outcome | Reason, labels: dict[str, Any] | None, common: dict[str, str]
) -> None:
    tracing = tracing_to(kept, unplaced_labels(common))
    record = record_of()
    record.cost, record.status = 1, 200
    trace = tracing.begin(record, {})
    record.labels = labels
    if labels is not None:
        record.admitted = record.arrived
        trace.dispatched()
        trace.retried(Reason.ENGINE_FAILED)
        trace.dispatched()
    record.outcome = outcome
    trace.ended()
    unplaced = common.get("measurement_type", NO_TYPE)
    expected = unplaced if labels is None else labels["measurement_type"]
    spans = kept.spans()
    assert len(spans) == (2 if labels is None else 5)
    for span in spans:
        assert attributes_of(span)["measurement_type"] == expected
    server = spans[-1]
    failed = outcome not in NO_ERRORS
    code = Status.STATUS_CODE_ERROR if failed else Status.STATUS_CODE_UNSET
    assert server.status.code == code
    error = None if outcome is Outcome.OK else outcome.value
    assert attributes_of(server).get("error.type") == error


def test_no_span_has_more_attributes_than_the_quick_way_allows(kept: Kept) -> None:
    labels = {f"label.{number}": "x" for number in range(6)}
    record, trace = begun(tracing_to(kept, UNPLACED))
    record.labels, record.placement, record.coalesced, record.run = labels, "x", True, "x"
    record.scenario, record.max_tokens, record.input_tokens, record.output_tokens = "x", 1, 1, 1
    record.first_byte = record.last_token = record.admitted
    record.stream = True
    end(record, trace, Outcome.ENGINE_ERROR)
    assert max(len(span.attributes) for span in kept.spans()) <= MAX_ATTRIBUTES


def test_trace_leaves_when_its_last_part_has_ended(kept: Kept) -> None:
    tracing = tracing_to(kept, UNPLACED)
    record = record_of(cost=1)
    request = tracing.begin(record, {})
    of_generation = record.of_generation()
    generation = request.shared(of_generation)
    of_generation.admitted = of_generation.arrived
    generation.dispatched()
    record.end(Outcome.CANCELLED)
    request.ended()
    assert kept.traces == []
    end(of_generation, generation)
    [(_, count)] = kept.traces
    assert count == len(kept.spans()) == 3


def test_nothing_is_encoded_of_a_trace_that_is_not_sampled(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encoded(*_: object) -> bytes:
        raise AssertionError("it was encoded")

    for name in ("of_record", "wait", "engine", "server"):
        monkeypatch.setattr(SpanEncoder, name, encoded)
    record, trace = begun(tracing_to(kept, UNPLACED, sampler=ALWAYS_OFF))
    trace.retried(Reason.ENGINE_FAILED)
    end(record, trace)
    assert record.trace_id == b""
    assert (kept.traces, kept.invalid) == ([], [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 1 << 63),
        ("input_tokens", -(1 << 63) - 1),
        ("output_tokens", 1 << 20_000),
        ("status", 1 << 64),
        ("cost", 1 << 64),
        ("scenario", SURROGATE),
        ("placement", SURROGATE),
        ("run", SURROGATE),
        ("lease", SURROGATE),
        ("labels", {"orch.pool": SURROGATE}),
        ("request_id", SURROGATE),
        ("correlation_id", SURROGATE),
        ("method", SURROGATE),
        ("arrived_ns", -1),
        ("arrived_ns", 1 << 64),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else "",
)
def test_record_that_cannot_be_encoded_costs_itself_alone(
    kept: Kept, field: str, value: Any
) -> None:
    tracing = tracing_to(kept, UNPLACED)
    for bad in (False, True, True, False):
        record, trace = begun(tracing, **({field: value} if bad else {}))
        record.end(Outcome.OK)
        trace.ended()
    assert [count for _, count in kept.traces] == [3, 3]
    assert len(kept.spans()) == 6
    assert kept.invalid == [3, 3]


def test_equal_labels_at_another_address_are_not_confused(kept: Kept) -> None:
    """What is prepared belongs to labels by their identity: it must not outlive them."""
    tracing = tracing_to(kept, UNPLACED)
    for number in range(2000):
        record, trace = begun(tracing)
        record.labels = {"orch.pool": str(number)}
        end(record, trace)
    servers = kept.spans()[2::3]
    assert [attributes_of(span)["orch.pool"] for span in servers] == [
        str(number) for number in range(2000)
    ]


def test_prepared_attributes_are_bounded(kept: Kept) -> None:
    """A client chooses the name of a model."""
    encoder = SpanEncoder(UNPLACED)
    for number in range(5000):
        encoder.of_record(record_of(model=f"{number}", cost=1), b"")
    assert len(encoder._prepared) <= 512
