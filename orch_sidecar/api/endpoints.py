"""The paths of this sidecar. What is not here does not exist: allowed by list, never by default.

Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from orch_sidecar.api.generation import Api


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path of this sidecar. The engine is asked for `upstream`, never for client bytes.

    `workload`: what `/v1/capabilities` calls it. `line`: the request line for the engine.
    """

    path: str
    method: str
    api: Api
    upstream: str | None = None
    admitted: bool = False
    workload: str | None = None
    line: bytes = field(init=False)

    def __post_init__(self) -> None:
        line = f"{self.method} {self.upstream} HTTP/1.1"
        object.__setattr__(self, "line", line.encode())  # made once, in a frozen object


def _routes(*routes: Endpoint) -> dict[str, Endpoint]:
    return {route.path: route for route in routes}


STREAM: Final = "/v1/capabilities/stream"

ENDPOINTS: Final = _routes(
    Endpoint("/v1/chat/completions", "POST", Api.CHAT, "/v1/chat/completions", True, "chat"),
    Endpoint("/v1/completions", "POST", Api.COMPLETIONS, "/v1/completions", True, "completion"),
    Endpoint("/v1/responses", "POST", Api.RESPONSES, "/v1/responses", True, "responses"),
    Endpoint("/v1/messages", "POST", Api.MESSAGES, "/v1/messages", True, "messages"),
    Endpoint("/v1/messages/count_tokens", "POST", Api.MESSAGES, "/v1/messages/count_tokens"),
    Endpoint("/tokenize", "POST", Api.OTHER, "/tokenize"),
    Endpoint("/detokenize", "POST", Api.OTHER, "/detokenize"),
    Endpoint("/v1/models", "GET", Api.OTHER, "/v1/models"),
    Endpoint("/version", "GET", Api.OTHER, "/version"),
    Endpoint("/metrics/engine", "GET", Api.OTHER, "/metrics"),
    Endpoint("/v1/capabilities", "GET", Api.OTHER),
    Endpoint(STREAM, "GET", Api.OTHER),
    Endpoint("/metrics", "GET", Api.OTHER),
    Endpoint("/livez", "GET", Api.OTHER),
    Endpoint("/readyz", "GET", Api.OTHER),
    Endpoint("/healthz", "GET", Api.OTHER),
    Endpoint("/health", "GET", Api.OTHER),
)


# Those that this sidecar serves, of an engine's.
WORKLOADS: Final = frozenset(route.workload for route in ENDPOINTS.values() if route.admitted)


class ResourcePath(StrEnum):
    """What is asked of something that has a name, by paths that hold the name."""

    LEASE = "/v1/capabilities/leases/{name}"
    CANCEL = "/v1/requests/{name}/cancel"
    HEALTH = "/v1/pools/{name}/health"
    DRAIN = "/v1/pools/{name}/drain"
    RESUME = "/v1/pools/{name}/resume"

    @property
    def method(self) -> str:
        return _METHODS.get(self, "POST")


_METHODS: Final = {ResourcePath.LEASE: "DELETE", ResourcePath.HEALTH: "GET"}

# For everybody, and for operators only.
PUBLIC: Final = frozenset({ResourcePath.LEASE, ResourcePath.CANCEL, ResourcePath.HEALTH})
ADMIN: Final = frozenset({ResourcePath.HEALTH, ResourcePath.DRAIN, ResourcePath.RESUME})

_PATTERNS: Final = {
    each: re.compile(re.escape(each).replace(r"\{name\}", r"([^/]{1,200})"))
    for each in ResourcePath
}


def named(path: str) -> tuple[ResourcePath, str] | None:
    """What is asked by a path that is not in ENDPOINTS, and of what."""
    for each, pattern in _PATTERNS.items():
        if (match := pattern.fullmatch(path)) is not None:
            return each, match[1]
    return None
