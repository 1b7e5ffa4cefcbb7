"""Rewrites heads: the client's request for the engine, the engine's response for the client.

Pure: bytes and values. Fields that concern one connection are not forwarded, nor are those that
would steer the engine past admission; the ids are this sidecar's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from orch_sidecar.api.headers import (
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    AUTHORIZATION,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    EXPECT,
    FORWARDED,
    HOP_BY_HOP,
    HOST,
    OPTION_ALIASES,
    ORIGIN,
    TRACEPARENT,
    TRACESTATE,
    TRANSFER_ENCODING,
    VIA,
    X_ACCEL_BUFFERING,
    X_AMZN_SAGEMAKER,
    X_API_KEY,
    X_CORRELATION_ID,
    X_DATA_PARALLEL_RANK,
    X_FORWARDED,
    X_MEASUREMENT_TYPE,
    X_ORCH,
    X_ORCH_PREDICTED_START_MS,
    X_ORCH_QUEUE_POSITION,
    X_ORCH_REQUEST_ID,
    X_REQUEST_ID,
    X_SESSION_ID,
    X_VLLM_PRIORITY,
    field_line,
    raw,
)
from orch_sidecar.wire.http1 import Head

Fields = Sequence[tuple[bytes, bytes]]

# Set by this sidecar on its responses, or decided by it alone (`auth.browsers`).
_OURS: Final = frozenset(
    map(
        raw,
        (
            X_REQUEST_ID, X_CORRELATION_ID, X_ORCH_REQUEST_ID, X_ORCH_QUEUE_POSITION,
            X_ORCH_PREDICTED_START_MS, X_MEASUREMENT_TYPE, ACCESS_CONTROL_ALLOW_ORIGIN,
            ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_EXPOSE_HEADERS,
        ),
    )
)  # fmt: skip
_NOT_FORWARDED_BACK: Final = HOP_BY_HOP | _OURS

# Usual values of `Connection`, which name no field.
_CONNECTION_OPTIONS: Final = frozenset({b"close", b"keep-alive"})

# Request headers that are not forwarded: those of the connection, those that would steer the
# engine past admission, those of proxies, by which an engine on this host would not know this
# sidecar, and those that this sidecar sets or decides about. Nor are those that begin with one of
# the prefixes.
NOT_FORWARDED: Final = HOP_BY_HOP.union(
    map(
        raw,
        (
            HOST, CONTENT_LENGTH, EXPECT, X_VLLM_PRIORITY, X_DATA_PARALLEL_RANK, X_SESSION_ID,
            X_REQUEST_ID, X_CORRELATION_ID, TRACEPARENT, TRACESTATE, FORWARDED, VIA, ORIGIN,
        ),
    )
)  # fmt: skip
OPTION_PREFIX: Final = raw(X_ORCH)
# With the last one SageMaker's clients name adapters and sessions that are not in the body.
_PREFIXES_NOT_FORWARDED: Final = (OPTION_PREFIX, raw(X_FORWARDED), raw(X_AMZN_SAGEMAKER))
# Clients' keys: not forwarded if the engine has a key of its own, or if they are for this sidecar.
# The first one counts.
_KEYS: Final = tuple(map(raw, (AUTHORIZATION, X_API_KEY)))
# Options besides those with OPTION_PREFIX: ids, the encoding of the body; and the names that other
# gateways use for such options.
_OPTIONS: Final = frozenset(
    map(raw, (X_REQUEST_ID, X_CORRELATION_ID, CONTENT_ENCODING, TRANSFER_ENCODING))
)
_ALIASES: Final = frozenset(map(raw, OPTION_ALIASES))
_CONNECTION: Final = raw(CONNECTION)
_HOST: Final = raw(HOST)
_UPGRADE: Final = b"upgrade"
_TRANSFER_ENCODING: Final = raw(TRANSFER_ENCODING)
_TRACEPARENT: Final = raw(TRACEPARENT)
_CONTENT_LENGTH: Final = raw(CONTENT_LENGTH)
_CONTENT_TYPE: Final = raw(CONTENT_TYPE)
# Whoever reads a second one decides otherwise than who reads the first.
_ONCE: Final = (_HOST, _CONTENT_TYPE, _CONTENT_LENGTH, _TRANSFER_ENCODING)
_EVENT_STREAM: Final = b"text/event-stream"
_AUTHORIZATION: Final = field_line(AUTHORIZATION, "%b")
_CHUNKED: Final = b"%b: chunked" % raw(TRANSFER_ENCODING)
_BUFFERING: Final = raw(X_ACCEL_BUFFERING)


@dataclass(frozen=True, slots=True)
class HeaderNames:
    """What the names of a client's header fields decide.

    `has_options`: some are for this sidecar, besides the API key. `asks_for_options`: some of these
    are options of how to serve the request (`read_options`). `forwarded`,
    `forwarded_without_credentials`: the places of the fields that are. `has_connection`:
    `Connection` is present. `chunked`: so is `Transfer-Encoding`, which then ends in `chunked`.
    `traced`: so is `traceparent`. `host`, `content_type`, `content_length`, `credential`: the
    places of these fields, the last one with the client's key; -1 of an absent one. `fault`: why
    no request can have these. `unusual`: there is such a fault, no `Host`, or an `Upgrade`.
    """

    has_options: bool
    asks_for_options: bool
    forwarded: tuple[int, ...]
    forwarded_without_credentials: tuple[int, ...]
    has_connection: bool
    host: int
    chunked: bool
    traced: bool
    content_type: int
    content_length: int
    credential: int
    fault: str | None
    unusual: bool


def request_head(
    line: bytes,
    client: Fields,
    ours: bytes,
    authorization: bytes | None,
    strip_keys: bool = False,
    names: HeaderNames | None = None,
) -> bytes:
    """Returns the request head for the engine: the client's fields as far as forwarded, and ours.

    `ours`: complete lines. With an `authorization` for the engine, or with `strip_keys`, the
    client's keys are not forwarded. `names`: of the client's fields, if known already.
    """
    if names is None:
        names = header_names(b"\n".join([name for name, _ in client]))
    forwarded = names.forwarded
    if strip_keys or authorization is not None:
        forwarded = names.forwarded_without_credentials
    if names.has_connection:
        named = {
            token.strip()
            for name, value in client
            if name.lower() == _CONNECTION
            for token in value.lower().split(b",")
        } - _CONNECTION_OPTIONS
        if named:
            forwarded = tuple(at for at in forwarded if client[at][0].lower() not in named)
    theirs = b"\r\n".join([b": ".join(client[at]) for at in forwarded])
    if authorization is not None:
        ours += _AUTHORIZATION % authorization
    end = b"\r\n"
    return b"".join((line, end, theirs, end if theirs else b"", ours, end))


# A client sends the same names in every request; one text is looked up faster than a tuple.
@lru_cache(maxsize=256)
def header_names(names: bytes) -> HeaderNames:
    """Returns what the names of a client's header fields decide. `names`: joined by line ends."""
    lower = names.lower().split(b"\n")
    forwarded = tuple(
        at
        for at, name in enumerate(lower)
        if name and name not in NOT_FORWARDED and not name.startswith(_PREFIXES_NOT_FORWARDED)
    )
    repeated = [name for name in _ONCE if lower.count(name) > 1]
    asks_for_options = any(name in _ALIASES or name.startswith(OPTION_PREFIX) for name in lower)
    return HeaderNames(
        asks_for_options or any(name in _OPTIONS for name in lower),
        asks_for_options,
        forwarded,
        tuple(at for at in forwarded if lower[at] not in _KEYS),
        _CONNECTION in lower,
        lower.index(_HOST) if _HOST in lower else -1,
        _TRANSFER_ENCODING in lower,
        _TRACEPARENT in lower,
        lower.index(_CONTENT_TYPE) if _CONTENT_TYPE in lower else -1,
        lower.index(_CONTENT_LENGTH) if _CONTENT_LENGTH in lower else -1,
        next((lower.index(name) for name in _KEYS if name in lower), -1),
        f"{repeated[0].decode()} is there twice" if repeated else None,
        bool(repeated) or _HOST not in lower or _UPGRADE in lower,
    )


@lru_cache(maxsize=256)
def filtered_response_head(head: Head, http10: bool) -> tuple[bytes, bool]:
    """Returns the status line and the forwarded fields, computed once for equal heads, and whether
    the client can find the end of the response within its bytes."""
    dropped = _NOT_FORWARDED_BACK
    for name, value in head.fields:
        if name == _CONNECTION:
            named = {token.strip().lower() for token in value.split(b",")}
            dropped = dropped | (named - {_CONTENT_LENGTH})  # the client needs it
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    lines += [b"%b: %b" % field for field in head.fields if field[0] not in dropped]
    if head.chunked and not http10:
        lines.append(_CHUNKED)
    if is_event_stream(head) and all(name != _BUFFERING for name, _ in head.fields):
        lines.append(b"%b: no" % _BUFFERING)  # else nginx keeps the events to itself
    framed = not http10 if head.chunked else head.length is not None or head.status in (204, 304)
    return b"\r\n".join(lines) + b"\r\n", framed


def is_event_stream(head: Head) -> bool:
    """Whether the body consists of server-sent events, so that an error can be one of them."""
    content_type = next((value for name, value in head.fields if name == _CONTENT_TYPE), b"")
    return content_type.lower().startswith(_EVENT_STREAM)
