"""Spans by the outcome of their request, with the SDK's own provider and an exporter in memory."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from orch_sidecar.observability.otel import SpanTracing

from orch_sidecar.api.refusal import Reason
from orch_sidecar.config.resolve import NO_TYPE, unplaced_labels
from orch_sidecar.observability.record import Outcome
from tests.orch_sidecar.records import record_of
from vllm_plugin.profile import MeasurementType

# What the client did itself is no error of the span.
NO_ERRORS = {Outcome.OK, Outcome.CANCELLED, Outcome.CLIENT_ERROR}
PLACED = {"measurement_type": MeasurementType.OFFLINE.value, "orch.pool": "offline"}


@pytest.mark.parametrize("labels", [None, PLACED], ids=["unplaced", "placed"])
@pytest.mark.parametrize("outcome", [*Outcome, *Reason], ids=lambda outcome: outcome.name)
@pytest.mark.parametrize("common", [{}, {"measurement_type": MeasurementType.SINGLE_STREAM.value}])
def test_every_span_of_every_outcome_has_a_measurement_type(
    outcome: Outcome | Reason, labels: dict[str, Any] | None, common: dict[str, str]
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = SpanTracing(provider, unplaced_labels(common))
    record = record_of()
    record.cost, record.status = 1, 200
    trace = tracing.begin(record, {})
    record.labels = labels
    if labels is not None:
        record.admitted = record.identity.arrived
        trace.dispatched()
        trace.retried(Reason.ENGINE_FAILED)
        trace.dispatched()
    record.outcome = outcome
    trace.ended()
    unplaced = common.get("measurement_type", NO_TYPE)
    expected = unplaced if labels is None else labels["measurement_type"]
    spans = exporter.get_finished_spans()
    assert len(spans) == (2 if labels is None else 5)
    for span in spans:
        assert (span.attributes or {})["measurement_type"] == expected
    server = spans[-1]
    failed = outcome not in NO_ERRORS
    assert server.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)
    error = None if outcome is Outcome.OK else outcome.value
    assert (server.attributes or {}).get("error.type") == error
