"""Whose request it is, as far as its headers say: only requests of one tenant share an answer.

Pure. Everything that reaches the engine, or whatever stands between, might decide the answer or
name a client. So all of it tells tenants apart, but for fields of which it is known that they do
neither. API keys do, where they end here, too. A field that is not known here costs no more than
a decode that could have been shared.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import compress
from typing import Final

from orch_sidecar.api.headers import (
    ACCEPT,
    ACCEPT_ENCODING,
    CACHE_CONTROL,
    CLASS_ALIASES,
    CONNECTION,
    raw,
)
from orch_sidecar.wire.forwarding import NOT_FORWARDED, OPTION_PREFIX, Fields

Tenant = tuple[tuple[bytes, bytes], ...]

# About the client's software, its connection and its proxies, or the trace that it is part of.
# Not `Content-Type`: with a wrong one vLLM refuses what it takes with another. Not `Origin`: CORS
# headers answer it. Of X-Forwarded-* only these: others name users.
_NEUTRAL: Final = frozenset(
    {
        b"user-agent", b"accept-charset", b"accept-language", b"pragma", b"priority", b"dnt",
        b"idempotency-key",
        b"via", b"forwarded", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-host",
        b"x-forwarded-port", b"x-forwarded-proto",
        b"baggage", b"b3", b"x-b3-traceid", b"x-b3-spanid", b"x-b3-parentspanid", b"x-b3-sampled",
        b"x-amzn-trace-id", b"x-cloud-trace-context",
        *map(raw, (ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, *CLASS_ALIASES)),
    }
)  # fmt: skip
# It may name fields that are then not forwarded.
_CONNECTION: Final = raw(CONNECTION)
# What OpenAI's clients say of their version, their platform and their retries.
_NEUTRAL_PREFIX: Final = b"x-stainless-"


def tenant(fields: Fields) -> Tenant:
    """The fields that tell tenants apart, in an order of their own. Equal: one tenant.

    It has the client's keys in it: not to be kept beyond the request, nor shown.
    """
    given = tuple(fields)
    names, telling = _telling(tuple([name for name, _ in given]))
    return tuple(sorted(compress(zip(names, [value for _, value in given], strict=True), telling)))


# A client sends the same few names again and again.
@lru_cache(maxsize=256)
def _telling(names: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], tuple[bool, ...]]:
    """The names in lower case, and which of them tell tenants apart."""
    lower = tuple(name.lower() for name in names)
    return lower, tuple(
        (name not in NOT_FORWARDED or name == _CONNECTION)
        and name not in _NEUTRAL
        and not name.startswith((OPTION_PREFIX, _NEUTRAL_PREFIX))
        for name in lower
    )
