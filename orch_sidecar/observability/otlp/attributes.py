"""The attributes of a finished request's spans, and OpenTelemetry's limits of them.

Pure. No attribute contains prompt text or keys. Names that begin with `gen_ai.` are those of
OpenTelemetry's conventions, in development (open-telemetry/semantic-conventions-genai with the
schema gen-ai/1.42.0, docs/gen-ai/client-inference.md). Attributes are set in steps, as they become
known: a limit drops those that were set first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from orch_sidecar.api.refusal import well_formed
from orch_sidecar.observability.otlp.protobuf import Integers, before_float, before_text, double
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.observability.request_metrics import PROVIDER

# A client may send any text as the name of a model.
MAX_MODEL_CHARS: Final = 200

# Caused by the client: these do not set the error status of a span.
CLIENT_OUTCOMES: Final = frozenset({Outcome.CANCELLED, Outcome.CLIENT_ERROR})

LEASE: Final = "orch.lease"
LAST_TOKEN: Final = "orch.last_token_s"  # noqa: S105 (no password)
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
_FANOUT: Final = Integers("orch.fanout")
_MAX_TOKENS: Final = Integers("gen_ai.request.max_tokens")
_INPUT_TOKENS: Final = Integers("gen_ai.usage.input_tokens")
_OUTPUT_TOKENS: Final = Integers("gen_ai.usage.output_tokens")
_CACHED_TOKENS: Final = Integers("gen_ai.usage.cache_read.input_tokens")
_REASONING_TOKENS: Final = Integers("gen_ai.usage.reasoning.output_tokens")
_FIRST_BYTE: Final = before_float("orch.first_byte_s")
_LAST_TOKEN: Final = before_float(LAST_TOKEN)
_FIRST_CHUNK: Final = before_float(FIRST_CHUNK)

Attributes = Mapping[str, Any]


class Limits(NamedTuple):
    """Limits of a span; None is no limit. `value_chars`: of texts."""

    attributes: int | None = None
    value_chars: int | None = None
    links: int | None = None


def model_name(record: RequestRecord) -> str:
    """Returns the model as spans have it."""
    return well_formed(record.model[:MAX_MODEL_CHARS])


def of_record(record: RequestRecord, labels: Attributes) -> dict[str, Any]:
    """Returns the attributes of a record that has ended. `labels`: of its pool and class."""
    return constant(record, labels) | _known(
        ("orch.request_id", record.request_id),
        ("orch.correlation_id", record.correlation_id),
        ("orch.fanout", record.fanout or None),
        ("gen_ai.request.max_tokens", record.max_tokens),
        ("gen_ai.usage.input_tokens", record.input_tokens),
        ("gen_ai.usage.output_tokens", record.output_tokens),
        ("gen_ai.usage.cache_read.input_tokens", record.cached_tokens),
        ("gen_ai.usage.reasoning.output_tokens", record.reasoning_tokens),
        ("orch.first_byte_s", record.seconds_to(record.first_byte)),
    )


def constant(record: RequestRecord, labels: Attributes) -> dict[str, Any]:
    """Returns those that are equal for many requests."""
    attributes: dict[str, Any] = {
        **labels,
        "http.request.method": record.method,
        "http.route": record.endpoint.path,
        "orch.outcome": record.outcome.value,
    }
    if record.status:
        attributes["http.response.status_code"] = record.status
    if record.cost:
        attributes |= {
            "gen_ai.operation.name": record.endpoint.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model_name(record),
            "orch.cost": record.cost,
            "orch.stream": record.stream,
        }
        if record.stream:  # the conventions want it of streams only
            attributes["gen_ai.request.stream"] = True
    return attributes | _known(("orch.scenario", record.scenario))


def of_server(record: RequestRecord) -> dict[str, Any]:
    """Returns the attributes that only the server span has."""
    return _known(
        ("orch.placement", record.placement),
        ("orch.coalesced", record.coalesced or None),
        ("orch.parts", record.parts or None),
        ("orch.run", record.run),
        (LAST_TOKEN, record.seconds_to(record.last_token)),
        (FIRST_CHUNK, record.seconds_to(record.first_byte) if record.stream else None),
    )


def of_error(record: RequestRecord) -> dict[str, Any]:
    """Returns what is set last, where the outcome is not `ok`."""
    return {} if record.outcome is Outcome.OK else {"error.type": record.outcome.value}


def own(record: RequestRecord) -> bytes:
    """Encodes the attributes that differ from request to request, of engine and server spans: those
    of `of_record` without `constant`."""
    first_byte = record.first_byte
    request_id = correlation_id = record.request_id.encode()
    before_request, before_correlation = _before_ids(len(request_id))
    if record.correlation_id is not record.request_id:  # as a client rarely wants it
        correlation_id = record.correlation_id.encode()
        _, before_correlation = _before_ids(len(correlation_id))
    before_first = first = b""
    if first_byte is not None:
        before_first, first = _FIRST_BYTE, double((first_byte - record.arrived) / 1e9)
    cached_tokens, reasoning_tokens = record.cached_tokens, record.reasoning_tokens
    if record.fanout or cached_tokens is not None or reasoning_tokens is not None:
        rare = _FANOUT[record.fanout or None]
        rare += _CACHED_TOKENS[cached_tokens] + _REASONING_TOKENS[reasoning_tokens]
        before_first = rare + before_first
    return b"".join(
        (
            before_request, request_id, before_correlation, correlation_id,
            _MAX_TOKENS[record.max_tokens],
            _INPUT_TOKENS[record.input_tokens],
            _OUTPUT_TOKENS[record.output_tokens],
            before_first, first,
        )
    )  # fmt: skip


@cache  # of lengths: ids have 32 characters, those of clients up to 128
def _before_ids(length: int) -> tuple[bytes, bytes]:
    return before_text("orch.request_id", length), before_text("orch.correlation_id", length)


def own_of_server(record: RequestRecord) -> bytes:
    """Encodes those of `of_server` that differ from request to request."""
    arrived, known = record.arrived, b""
    if record.last_token is not None:
        known = _LAST_TOKEN + double((record.last_token - arrived) / 1e9)
    if record.stream and record.first_byte is not None:
        known += _FIRST_CHUNK + double((record.first_byte - arrived) / 1e9)
    return known


def bounded(steps: Iterable[Attributes], limits: Limits) -> tuple[dict[str, Any], int]:
    """Returns the attributes that are left of these steps, and how many were dropped.

    As the SDK does it (opentelemetry.attributes.BoundedAttributes): where a limit is reached, the
    attribute that was set first is dropped; setting one again makes it the last.
    """
    kept: dict[str, Any] = {}
    dropped, most, chars = 0, limits.attributes, limits.value_chars
    for step in steps:
        if most == 0:
            dropped += len(step)
            continue
        for name, value in step.items():
            kept.pop(name, None)
            if most is not None and len(kept) >= most:
                del kept[next(iter(kept))]
                dropped += 1
            kept[name] = value[:chars] if isinstance(value, str) else value
    return kept, dropped


def _known(*items: tuple[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in items if value is not None}
