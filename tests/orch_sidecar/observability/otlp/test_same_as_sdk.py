"""The spans of random requests, field by field those that the SDK's tracer and encoder make."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)

from orch_sidecar.observability.otlp import spans as own_spans
from orch_sidecar.observability.otlp.attributes import Limits
from tests.fuzz import examples
from tests.orch_sidecar.observability.otlp import sdk_spans
from tests.orch_sidecar.observability.otlp.kept import Kept, attributes_of, spans_in, tracing_to
from tests.orch_sidecar.observability.otlp.requests import Clock, Ids, World, worlds
from tests.orch_sidecar.observability.otlp.sdk_spans import SdkTracing

CLOCK = Clock()

# All of OTEL_TRACES_SAMPLER.
SAMPLERS: dict[str, Sampler] = {
    "always_on": ALWAYS_ON,
    "always_off": ALWAYS_OFF,
    "parentbased_always_on": DEFAULT_ON,
    "parentbased_always_off": DEFAULT_OFF,
    "traceidratio": TraceIdRatioBased(0.5),
    "parentbased_traceidratio": ParentBasedTraceIdRatio(0.5),
}
UNLIMITED = SpanLimits()
# The context of a trace that is not sampled, by its parts before and after the id of a span.
_UNSAMPLED = re.compile(r"(traceparent: .{36})[0-9a-f]{16}(-0[02]\r\n)")
LIMITS = st.builds(
    SpanLimits,
    max_span_attributes=st.sampled_from([None, 0, 1, 3, 8, 15, 20, 31, 32, SpanLimits.UNSET]),
    max_span_attribute_length=st.sampled_from([None, None, 0, 1, 5, 64, 200]),
    max_links=st.sampled_from([None, 0, 1]),
)


@pytest.fixture(autouse=True, scope="module")
def same_time() -> Iterator[None]:
    """The same time for both; and the SDK logs each attribute that it drops or cuts."""
    logger = logging.getLogger("opentelemetry")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_spans, "time", CLOCK)
        patch.setattr(sdk_spans, "time", CLOCK)
        patch.setattr("opentelemetry.sdk.trace.time_ns", CLOCK.time_ns)
        patch.setattr(logger, "disabled", True)
        patch.setattr(logger, "propagate", False)
        for name, each in logging.Logger.manager.loggerDict.items():
            if name.startswith("opentelemetry.") and isinstance(each, logging.Logger):
                patch.setattr(each, "disabled", True)
        yield


def by_id(spans: list[Span]) -> dict[bytes, Span]:
    """Spans by their id, with their attributes in one order: it has no meaning."""
    for span in spans:
        attributes_of(span)
        span.attributes.sort(key=lambda each: each.key)
    found = {span.span_id: span for span in spans}
    assert len(found) == len(spans)
    return found


def without_unsampled_ids(headers: list[str]) -> list[str]:
    """What is not sampled has ids that nobody sees again."""
    return [_UNSAMPLED.sub(r"\1 \2", lines) for lines in headers]


def assert_same(world: SimpleNamespace, sampler: Sampler, limits: SpanLimits) -> None:
    exporter, kept = InMemorySpanExporter(), Kept()
    ids = [Ids(world.trace_ids, random=world.random) for _ in range(2)]
    provider = TracerProvider(sampler, Resource({}), False, id_generator=ids[0], span_limits=limits)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    own_limits = Limits(
        limits.max_span_attributes, limits.max_span_attribute_length, limits.max_links
    )
    theirs = World(SdkTracing(provider, world.unplaced), ids[0], CLOCK, world.labels)
    own = tracing_to(kept, world.unplaced, own_limits, sampler, ids[1], iter(ids[1].span_id, b""))
    ours = World(own, ids[1], CLOCK, world.labels)
    for each in (theirs, ours):
        each.live(world.lives)
    assert without_unsampled_ids(ours.headers) == without_unsampled_ids(theirs.headers)
    assert ours.trace_ids == theirs.trace_ids
    expected = by_id(spans_in(encode_spans(exporter.get_finished_spans()).SerializeToString()))
    assert by_id(kept.spans()) == expected
    assert kept.invalid == []


@settings(max_examples=examples(1200))
@given(world=worlds())
def test_spans_are_the_same_as_those_of_the_sdk(world: SimpleNamespace) -> None:
    assert_same(world, DEFAULT_ON, UNLIMITED)


@settings(max_examples=examples(800))
@given(world=worlds(), sampler=st.sampled_from(sorted(SAMPLERS)), limits=LIMITS)
def test_spans_are_the_same_with_any_sampler_and_limits(
    world: SimpleNamespace, sampler: str, limits: SpanLimits
) -> None:
    assert_same(world, SAMPLERS[sampler], limits)
