"""The tracing that OTEL_* variables configure, compared with what the SDK reads from them."""

from __future__ import annotations

import os
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from orch_sidecar.observability.otlp.environment import tracing_from_environment
from orch_sidecar.observability.record import Outcome
from orch_sidecar.observability.tracing import Tracing
from tests.orch_sidecar.observability.otlp.kept import attributes_of, value_of
from tests.orch_sidecar.observability.otlp.scripted import DELIVERED, ScriptedTransport
from tests.orch_sidecar.observability.otlp.sdk_spans import SdkTracing
from tests.orch_sidecar.records import record_of

COMMON: dict[str, Any] = {"measurement_type": "offline", "orch.batching": True}
RESOURCE = {
    "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=7,service.name=other,k8s.pod=%C3%A4%2C,empty="
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> ScriptedTransport:
    """Takes what each transport would send."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    taken = ScriptedTransport(DELIVERED)
    package = "orch_sidecar.observability.otlp"
    monkeypatch.setattr(f"{package}.http_transport.HttpTransport", lambda _: taken)
    monkeypatch.setattr(f"{package}.grpc_transport.GrpcTransport", lambda _: taken)
    return taken


def requests(tracing: Tracing) -> None:
    """One request that starts a generation, and one that joins it."""
    first, second = record_of(model="tiny", cost=1), record_of(model="tiny", cost=1)
    leader, follower = tracing.begin(first, {}), tracing.begin(second, {})
    assert leader is not None
    assert follower is not None
    of_generation = first.of_generation()
    generation = leader.shared(of_generation)
    follower.joined(generation)
    of_generation.admitted, of_generation.lease = first.arrived, "lease"
    generation.dispatched()
    for record, trace in ((of_generation, generation), (first, leader), (second, follower)):
        record.end(Outcome.OK, 200)
        trace.ended()


async def exported() -> None:
    """Exports the spans of the requests as the environment has it."""
    tracing = tracing_from_environment(COMMON, COMMON)
    requests(tracing)
    await tracing.shutdown()


async def of_both(taken: ScriptedTransport) -> list[ExportTraceServiceRequest]:
    """What arrives of the same requests: of this tracing, and of the SDK."""
    await exported()
    given = [os.environ.get(f"OTEL_{name}") for name in ("SERVICE_NAME", "RESOURCE_ATTRIBUTES")]
    named = {} if any(given) else {"service.name": "orch-sidecar"}
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create(named | COMMON), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    requests(SdkTracing(provider, COMMON))
    bodies = [*taken.requests, encode_spans(exporter.get_finished_spans()).SerializeToString()]
    return [ExportTraceServiceRequest.FromString(body) for body in bodies]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_SERVICE_NAME": "mine"},
        {"OTEL_SERVICE_NAME": ""},
        RESOURCE,
        RESOURCE | {"OTEL_SERVICE_NAME": "mine"},
        RESOURCE | {"OTEL_SERVICE_NAME": ""},
    ],
)
async def test_resource_scope_and_schema_urls_are_those_of_the_sdk(
    taken: ScriptedTransport, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ours, theirs = await of_both(taken)
    [own], [sdk] = ours.resource_spans, theirs.resource_spans
    for each in (own, sdk):
        each.resource.attributes.sort(key=lambda pair: pair.key)
        if "OTEL_RESOURCE_ATTRIBUTES" not in environment:  # otherwise each has an id of its own
            [instance] = [a for a in each.resource.attributes if a.key == "service.instance.id"]
            each.resource.attributes.remove(instance)
        assert len(each.scope_spans[0].spans) == 4
        del each.scope_spans[0].spans[:]
    assert own == sdk


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "3"},
        {"OTEL_ATTRIBUTE_COUNT_LIMIT": "2"},
        {"OTEL_ATTRIBUTE_COUNT_LIMIT": "2", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "5"},
        {"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "2"},
        {"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "1"},
        {"OTEL_SPAN_LINK_COUNT_LIMIT": "0"},
        {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": ""},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1"},
        {"OTEL_TRACES_SAMPLER": "nonsense"},
    ],
    ids=str,
)
async def test_limits_of_the_environment_are_those_of_the_sdk(
    taken: ScriptedTransport, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def shown(span: Span) -> tuple[Any, ...]:
        dropped = span.dropped_attributes_count, span.dropped_links_count
        return span.name, len(span.links), dropped, attributes_of(span)

    ours, theirs = (
        sorted(map(shown, request.resource_spans[0].scope_spans[0].spans), key=repr)
        for request in await of_both(taken)
    )
    assert len(ours) == 4
    assert ours == theirs


@pytest.mark.parametrize("sampler", ["always_off", "parentbased_always_off"])
async def test_sampler_of_the_environment_decides(
    taken: ScriptedTransport, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    await exported()
    assert taken.requests == []


async def test_resource_attribute_that_cannot_be_encoded_is_left_out(
    taken: ScriptedTransport, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        Resource, "create", lambda attributes: Resource({**attributes, "bad": "\ud800", "n": 1})
    )
    await exported()
    [body] = taken.requests
    [spans] = ExportTraceServiceRequest.FromString(body).resource_spans
    found = {each.key: value_of(each.value) for each in spans.resource.attributes}
    assert found == {"service.name": "orch-sidecar", "n": 1, **COMMON}
    assert "'bad' of the resource" in caplog.text


def test_without_an_endpoint_nothing_is_exported(
    taken: ScriptedTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    assert type(tracing_from_environment(COMMON, COMMON)) is Tracing


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"), ("OTEL_SPAN_LINK_COUNT_LIMIT", "-1")],
)
def test_variable_that_cannot_be_used_prevents_the_start(
    taken: ScriptedTransport, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        tracing_from_environment(COMMON, COMMON)
