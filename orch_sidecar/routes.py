"""The paths of this sidecar. What is not here does not exist: allowed by list, never by default.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orch_sidecar.openai import Api


@dataclass(frozen=True, slots=True)
class Route:
    """A path of this sidecar. The engine is asked for `upstream`, never for client bytes."""

    path: str
    method: str
    api: Api
    upstream: str | None = None
    admitted: bool = False


def _routes(*routes: Route) -> dict[str, Route]:
    return {route.path: route for route in routes}


ROUTES: Final = _routes(
    Route("/v1/chat/completions", "POST", Api.CHAT, "/v1/chat/completions", admitted=True),
    Route("/v1/completions", "POST", Api.COMPLETIONS, "/v1/completions", admitted=True),
    Route("/v1/responses", "POST", Api.RESPONSES, "/v1/responses", admitted=True),
    Route("/v1/messages", "POST", Api.MESSAGES, "/v1/messages", admitted=True),
    Route("/v1/messages/count_tokens", "POST", Api.MESSAGES, "/v1/messages/count_tokens"),
    Route("/tokenize", "POST", Api.OTHER, "/tokenize"),
    Route("/detokenize", "POST", Api.OTHER, "/detokenize"),
    Route("/v1/models", "GET", Api.OTHER, "/v1/models"),
    Route("/version", "GET", Api.OTHER, "/version"),
    Route("/metrics/engine", "GET", Api.OTHER, "/metrics"),
    Route("/v1/capabilities", "GET", Api.OTHER),
    Route("/metrics", "GET", Api.OTHER),
    Route("/livez", "GET", Api.OTHER),
    Route("/readyz", "GET", Api.OTHER),
    Route("/healthz", "GET", Api.OTHER),
)
