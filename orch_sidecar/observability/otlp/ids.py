"""Makes the ids of traces and spans: random ones many at once, and none of Python to take one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from struct import unpack
from typing import Final

from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from orch_sidecar.observability.otlp.encoder import SPAN_ID, START, TRACE_ID, ChildIds, RequestIds

_AT_ONCE: Final = 512


def random_spans() -> Iterator[bytes]:
    """Returns endless ids of spans, one by one."""
    return iter(lambda: os.urandom(8), b"")


def requests_of(ids: IdGenerator) -> Iterator[RequestIds]:
    """Returns endless ids of traces, of that generator. The SDK's own, which makes random ones, is
    not asked for each."""
    if type(ids) is RandomIdGenerator:
        return chain.from_iterable(iter(_fresh_requests, None))
    traces = iter(lambda: ids.generate_trace_id().to_bytes(16), b"")
    return map(request_ids, traces, random_spans())


def request_ids(trace_id: bytes, server_id: bytes) -> RequestIds:
    return trace_id, server_id + TRACE_ID + trace_id


def random_children() -> Iterator[ChildIds]:
    """Returns endless ids of spans of admission and engine."""
    return chain.from_iterable(iter(_fresh_children, None))


def _fresh_requests() -> Iterator[RequestIds]:
    block = _random_with(bytes(8) + TRACE_ID + bytes(16))
    return zip(unpack("10x16s" * _AT_ONCE, block), unpack("26s" * _AT_ONCE, block), strict=True)


def _fresh_children() -> Iterator[ChildIds]:
    waits, engines = (_random_with(SPAN_ID + bytes(8) + START) for _ in range(2))
    divided = [unpack("11s" * _AT_ONCE, block) for block in (waits, engines)]
    return zip(*divided, unpack("2x8sx" * _AT_ONCE, engines), strict=True)


def _random_with(tags: bytes) -> bytearray:
    """Returns random octets many times, but for those that are not 0 in `tags`."""
    block = bytearray(os.urandom(len(tags) * _AT_ONCE))
    for at, octet in enumerate(tags):
        if octet:
            block[at :: len(tags)] = bytes((octet,)) * _AT_ONCE
    return block
