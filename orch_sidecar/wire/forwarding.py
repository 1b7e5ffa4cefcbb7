"""Heads on their way: the client's request to the engine, the engine's answer to the client.

Pure: bytes and values. What belongs to one connection ends here, and so does what would steer
the engine past admission; the ids are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from operator import itemgetter
from typing import Final

from orch_sidecar.api.headers import (
    AUTHORIZATION,
    CLASS_ALIASES,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    EXPECT,
    HOP_BY_HOP,
    HOST,
    TRACEPARENT,
    TRACESTATE,
    TRANSFER_ENCODING,
    X_API_KEY,
    X_CORRELATION_ID,
    X_DATA_PARALLEL_RANK,
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

_first: Final = itemgetter(0)

# Set by us on every response.
_OURS: Final = frozenset(
    map(
        raw,
        (
            X_REQUEST_ID, X_CORRELATION_ID, X_ORCH_REQUEST_ID, X_ORCH_QUEUE_POSITION,
            X_ORCH_PREDICTED_START_MS, X_MEASUREMENT_TYPE,
        ),
    )
)  # fmt: skip
_NOT_RETURNED: Final = HOP_BY_HOP | _OURS

# What `Connection` usually says, which names no field.
_CONNECTION_OPTIONS: Final = frozenset({b"close", b"keep-alive"})

# Request headers that end here: connection matters, what would steer the engine past us, and
# what we set ourselves. So does all that begins with X-Orch-: it is said to this sidecar.
NOT_FORWARDED: Final = HOP_BY_HOP.union(
    map(
        raw,
        (
            HOST, CONTENT_LENGTH, EXPECT, X_VLLM_PRIORITY, X_DATA_PARALLEL_RANK, X_SESSION_ID,
            X_REQUEST_ID, X_CORRELATION_ID, TRACEPARENT, TRACESTATE,
        ),
    )
)  # fmt: skip
SAID_TO_US: Final = raw(X_ORCH)
# Those of clients, where the engine has a key of its own, or this sidecar knows them.
_KEYS: Final = frozenset(map(raw, (AUTHORIZATION, X_API_KEY)))
# What else than SAID_TO_US is looked at here: ids, how the body is sent, and what other gateways
# call their directives.
_HEEDED: Final = frozenset(
    map(raw, (X_REQUEST_ID, X_CORRELATION_ID, CONTENT_ENCODING, TRANSFER_ENCODING, *CLASS_ALIASES))
)
_CONNECTION: Final = raw(CONNECTION)
_CONTENT_LENGTH: Final = raw(CONTENT_LENGTH)
_AUTHORIZATION: Final = field_line(AUTHORIZATION, "%b")
_CHUNKED: Final = b"%b: chunked" % raw(TRANSFER_ENCODING)


@dataclass(frozen=True, slots=True)
class Names:
    """What the names of a client's fields decide.

    `plain`: none of them says anything to this sidecar, but who the client is. `passing`,
    `keyless`: which of them pass, with the client's keys or without. `connected`: `Connection`
    is among them.
    """

    plain: bool
    passing: tuple[bool, ...]
    keyless: tuple[bool, ...]
    connected: bool


def names_of(client: Fields) -> Names:
    """What the names of a client's fields decide."""
    return _names(tuple(map(_first, client)))


def request_head(
    line: bytes,
    client: Fields,
    ours: bytes,
    authorization: bytes | None,
    keyless: bool = False,
    names: Names | None = None,
) -> bytes:
    """The request head for the engine: the client's fields less what must not pass, plus ours.

    `ours`: whole lines, each with its end. With an `authorization` of the engine's own, the
    client's keys end here, and so they do where they are ours (`keyless`). `names`: of the
    client's fields, where that was looked up before.
    """
    if names is None:
        names = names_of(client)
    passing = names.keyless if keyless or authorization is not None else names.passing
    if names.connected:
        named = {
            token.strip()
            for name, value in client
            if name.lower() == _CONNECTION
            for token in value.lower().split(b",")
        } - _CONNECTION_OPTIONS
        if named:
            passing = tuple(
                passes and name.lower() not in named
                for (name, _), passes in zip(client, passing, strict=True)
            )
    kept = b"\r\n".join(map(b": ".join, compress(client, passing)))
    if kept:
        kept += b"\r\n"
    if authorization is not None:
        ours += _AUTHORIZATION % authorization
    return b"%b\r\n%b%b\r\n" % (line, kept, ours)


# A client sends the same few names again and again.
@lru_cache(maxsize=256)
def _names(names: tuple[bytes, ...]) -> Names:
    lower = [name.lower() for name in names]
    passing = [name not in NOT_FORWARDED and not name.startswith(SAID_TO_US) for name in lower]
    return Names(
        not any(name in _HEEDED or name.startswith(SAID_TO_US) for name in lower),
        tuple(passing),
        tuple(passes and name not in _KEYS for name, passes in zip(lower, passing, strict=True)),
        _CONNECTION in lower,
    )


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
        if name == _CONNECTION:
            named = {token.strip().lower() for token in value.split(b",")}
            dropped = dropped | (named - {_CONTENT_LENGTH})  # the client needs it
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    lines += [b"%b: %b" % field for field in head.fields if field[0] not in dropped]
    if head.chunked and not http10:
        lines.append(_CHUNKED)
    return b"\r\n".join(lines) + b"\r\n"
