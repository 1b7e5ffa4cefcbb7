"""Heads on their way: the client's request to the engine, the engine's answer to the client.

Pure: bytes and values. What belongs to one connection ends here, and so does what would steer
the engine past admission; the ids are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from orch_sidecar.http1 import Head

Fields = Iterable[tuple[bytes, bytes]]

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Set by us on every response.
_OURS: Final = frozenset(
    {b"x-request-id", b"x-correlation-id", b"x-orch-request-id", b"x-measurement-type"}
)
_NOT_RETURNED: Final = HOP_BY_HOP | _OURS

# What `Connection` usually says, which names no field.
_CONNECTION_OPTIONS: Final = frozenset({b"close", b"keep-alive"})

# Request headers that end here: connection matters, what would steer the engine past us, and
# what we set ourselves.
_NOT_FORWARDED: Final = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"x-orch-lease",
    b"x-vllm-priority",
    b"x-data-parallel-rank",
    b"x-session-id",
    b"x-request-id",
    b"x-correlation-id",
    b"traceparent",
    b"tracestate",
}


def request_head(
    line: bytes,
    client: Fields,
    ours: Fields,
    *,
    authorization: bytes | None,
) -> bytes:
    """The request head for the engine: the client's fields less what must not pass, plus ours.

    With an `authorization` of the engine's own, the client's keys end here.
    """
    dropped: frozenset[bytes] | set[bytes] = _NOT_FORWARDED
    if authorization is not None:
        dropped = dropped | {b"authorization", b"x-api-key"}
    lines = [line]
    named: set[bytes] = set()
    for name, value in client:
        lower = name.lower()
        if lower not in dropped:
            lines.append(name + b": " + value)
        elif lower == b"connection":
            named.update(token.strip() for token in value.lower().split(b","))
    if named - _CONNECTION_OPTIONS:
        lines[1:] = [kept for kept in lines[1:] if kept.partition(b":")[0].lower() not in named]
    lines += [name + b": " + value for name, value in ours]
    if authorization is not None:
        lines.append(b"authorization: " + authorization)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def framed_for(head: Head, http10: bool) -> bool:
    """Whether the client can tell the end of this answer from the bytes of it."""
    if head.chunked:
        return not http10
    return head.length is not None or head.status in (204, 304)


@lru_cache(maxsize=256)
def kept(head: Head, http10: bool) -> bytes:
    """The status line and the fields that are passed on: once for all answers with this head."""
    dropped = _NOT_RETURNED
    for name, value in head.fields:
        if name == b"connection":
            named = {token.strip().lower() for token in value.split(b",")}
            dropped = dropped | (named - {b"content-length"})  # the client needs it
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    lines += [b"%b: %b" % field for field in head.fields if field[0] not in dropped]
    if head.chunked and not http10:
        lines.append(b"transfer-encoding: chunked")
    return b"\r\n".join(lines) + b"\r\n"
