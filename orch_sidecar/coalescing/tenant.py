"""Identifies the tenant of a request by its headers: only one tenant's requests are coalesced.

Pure. Any field that reaches the engine, or a proxy in between, may affect the response or identify
a client. So all fields distinguish tenants, except those known to do neither; API keys do even if
they are not forwarded. The only cost of an unknown field is a generation that is not shared.
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
    TPOT_SLOS,
    TTFT_SLOS,
    raw,
)
from orch_sidecar.wire.forwarding import NOT_FORWARDED, OPTION_PREFIX, Fields

Tenant = tuple[tuple[bytes, bytes], ...]

# They describe the client's software, connection, proxies or trace. Not `Content-Type`: vLLM
# rejects a body with a wrong one. Of X-Forwarded-* only these: others identify users.
_NEUTRAL: Final = frozenset(
    {
        b"user-agent", b"accept-charset", b"accept-language", b"pragma", b"priority", b"dnt",
        b"idempotency-key",
        b"via", b"forwarded", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-host",
        b"x-forwarded-port", b"x-forwarded-proto",
        b"baggage", b"b3", b"x-b3-traceid", b"x-b3-spanid", b"x-b3-parentspanid", b"x-b3-sampled",
        b"x-amzn-trace-id", b"x-cloud-trace-context",
        *map(
            raw,
            (ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, *CLASS_ALIASES, *TTFT_SLOS, *TPOT_SLOS),
        ),
    }
)  # fmt: skip
# It may list fields that are then not forwarded.
_CONNECTION: Final = raw(CONNECTION)
# Version, platform and retries of OpenAI's clients.
_NEUTRAL_PREFIX: Final = b"x-stainless-"


def tenant(fields: Fields) -> Tenant:
    """Returns the fields that distinguish tenants, sorted: equal for requests of one tenant.

    They include the client's keys: do not keep them longer than the request, nor log them.
    """
    given = tuple(fields)
    names, relevant = _relevant(tuple([name for name, _ in given]))
    return tuple(sorted(compress(zip(names, [value for _, value in given], strict=True), relevant)))


# Clients repeat the same few lists of names.
@lru_cache(maxsize=256)
def _relevant(names: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], tuple[bool, ...]]:
    """Returns the names in lower case, and for each whether it distinguishes tenants."""
    lower = tuple(name.lower() for name in names)
    return lower, tuple(
        (name not in NOT_FORWARDED or name == _CONNECTION)
        and name not in _NEUTRAL
        and not name.startswith((OPTION_PREFIX, _NEUTRAL_PREFIX))
        for name in lower
    )
