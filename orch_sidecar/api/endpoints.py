"""The endpoints of this sidecar: everything that it must know of each, in one row.

Pure. A path that is not here does not exist: endpoints are allowed by list, never by default. A new
endpoint of vLLM needs a row, and in `generation` a function that reads what it costs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Final

from orch_sidecar.api import coalescing_key, generation, json_body
from orch_sidecar.api.errors import ANTHROPIC, OPENAI, RESPONSES, ErrorFormat
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.json_body import Document, InvalidBody
from orch_sidecar.api.refusal import Refusal
from vllm_plugin.contracts.statement import STATEMENTS_PATH


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """A path of this sidecar. Compared by identity.

    `upstream`: the path at the engine, never bytes of the client; None if the sidecar answers.
    `generation`: reads what a request asks of the engine from its body; None if it needs no slots.
    `coalescing_key`: equal for requests that one generation can answer; None to coalesce none.
    `first_byte_is_token`: streams begin with the first token, so that its time can be measured.
    `token_mark`: what every event of a stream with generated text has, or with its end, and no
    other: no text has it, since quotes and line breaks in a text are escaped.
    `operation`: `gen_ai.operation.name` of OpenTelemetry. `workload`: its name in
    `/v1/capabilities`. `needs_key`: where clients have API keys; probes and Prometheus send none.
    `budgeted`: takes no slots, but its body counts against the budgets of a key.
    `admitted`: takes slots. `line`: the request line for the engine.
    """

    path: str
    method: str
    upstream: str | None = None
    _: KW_ONLY
    generation: Callable[[Document, int | None], GenerationRequest] | None = None
    coalescing_key: Callable[[Document], bytes | None] | None = None
    error_format: ErrorFormat = OPENAI
    first_byte_is_token: bool = True
    token_mark: bytes = b'"choices":[{'
    needs_key: bool = True
    budgeted: bool = False
    operation: str = "chat"
    workload: str | None = None
    admitted: bool = field(init=False)
    line: bytes = field(init=False)

    def __post_init__(self) -> None:
        # Made once, in a frozen object.
        object.__setattr__(self, "admitted", self.generation is not None)
        object.__setattr__(self, "line", f"{self.method} {self.upstream} HTTP/1.1".encode())

    def read(
        self,
        body: bytes,
        max_depth: int,
        ctx_max: int | None,
        coalesce: bool = False,
        *,
        outlined: bool = False,
    ) -> GenerationRequest | Refusal:
        """Reads the body of a request that takes slots. A Refusal names field, value and rule.

        `ctx_max`: tokens of the longest prompt, None if unknown. `coalesce`: computes the
        coalescing key, too. `outlined`: `body` is an outline, which lacks what the key needs.
        """
        assert self.generation is not None
        assert not (coalesce and outlined)
        try:
            document = json_body.parse(body, max_depth, outlined=outlined)
            request = self.generation(document, ctx_max)
        except InvalidBody as invalid:
            return invalid.refusal
        if coalesce and request.cost == 1 and self.coalescing_key is not None:
            request.coalescing_key = self.coalescing_key(document)
        return request


METRICS: Final = "/metrics"
ENGINE_METRICS: Final = "/metrics/engine"
STREAM: Final = "/v1/capabilities/stream"
LIVE: Final = "/v1/live"
# The page for people, and its files. A browser that asks for ROOT is sent to it.
ROOT: Final = "/"
PAGE: Final = "/ui"
UI_FILES: Final = {PAGE: "index.html"} | {
    f"{PAGE}/{name}": name for name in ("app.js", "view.js", "dom.js", "charts.js", "style.css")
}

_ENDPOINTS: Final = (
    Endpoint(
        "/v1/chat/completions", "POST", "/v1/chat/completions",
        generation=generation.chat,
        coalescing_key=coalescing_key.chat,
        workload="chat",
    ),
    Endpoint(
        "/v1/completions", "POST", "/v1/completions",
        generation=generation.completions,
        coalescing_key=coalescing_key.completions,
        operation="text_completion",
        workload="completion",
    ),
    # Responses are stored and referred to by their ids: none is coalesced. vLLM sends their first
    # events before it generates.
    Endpoint(
        "/v1/responses", "POST", "/v1/responses",
        generation=generation.responses,
        error_format=RESPONSES,
        first_byte_is_token=False,
        token_mark=b".delta\n",
        workload="responses",
    ),
    # Messages have ids of their own making: none is coalesced.
    Endpoint(
        "/v1/messages", "POST", "/v1/messages",
        generation=generation.messages,
        error_format=ANTHROPIC,
        token_mark=b"content_block_delta\n",
        workload="messages",
    ),
    Endpoint(
        "/v1/messages/count_tokens", "POST", "/v1/messages/count_tokens",
        error_format=ANTHROPIC,
        budgeted=True,
    ),
    Endpoint("/tokenize", "POST", "/tokenize", budgeted=True),
    Endpoint("/detokenize", "POST", "/detokenize", budgeted=True),
    Endpoint(STATEMENTS_PATH, "POST", STATEMENTS_PATH),
    Endpoint("/v1/models", "GET", "/v1/models"),
    Endpoint("/version", "GET", "/version"),
    Endpoint(ENGINE_METRICS, "GET", "/metrics"),
    Endpoint("/v1/capabilities", "GET"),
    Endpoint(STREAM, "GET"),
    Endpoint(LIVE, "GET"),
    *(Endpoint(path, "GET", needs_key=False) for path in UI_FILES),
    Endpoint(METRICS, "GET", needs_key=False),
    Endpoint("/metrics/model-server", "GET", needs_key=False),
    Endpoint("/livez", "GET", needs_key=False),
    Endpoint("/readyz", "GET", needs_key=False),
    Endpoint("/healthz", "GET", needs_key=False),
    Endpoint("/health", "GET", needs_key=False),
)  # fmt: skip

ENDPOINTS: Final = {each.path: each for each in _ENDPOINTS}
# What a request for any other path is recorded as: its path is the client's text, and no label.
UNKNOWN: Final = Endpoint("(none)", "GET")
_UNKNOWN_MESSAGES: Final = Endpoint("(none)", "GET", error_format=ANTHROPIC)

# They must answer by any name, whatever is configured.
PROBES: Final = frozenset({"/livez", "/readyz", "/healthz", "/health"})
WITHOUT_KEY: Final = frozenset(each.path for each in _ENDPOINTS if not each.needs_key) | {ROOT}
# Of an engine's workloads, those that this sidecar serves.
WORKLOADS: Final = frozenset(each.workload for each in _ENDPOINTS if each.admitted)


def unknown(path: str) -> Endpoint:
    """Returns what a request for another path is recorded as, with the error format of its API."""
    return _UNKNOWN_MESSAGES if path.startswith("/v1/messages/") else UNKNOWN


class ResourcePath(StrEnum):
    """A path with the name of a lease, a request or a pool in it."""

    LEASE = "/v1/capabilities/leases/{name}"
    CLAIM = "/v1/capabilities/claims/{name}"
    CANCEL = "/v1/requests/{name}/cancel"
    REQUEST = "/v1/requests/{name}"
    HEALTH = "/v1/pools/{name}/health"
    DRAIN = "/v1/pools/{name}/drain"
    RESUME = "/v1/pools/{name}/resume"


# Those of the clients' listener, and those of the operators' listener, with their methods.
PUBLIC: Final[Mapping[ResourcePath, tuple[str, ...]]] = {
    ResourcePath.LEASE: ("DELETE",),
    ResourcePath.CLAIM: ("PUT",),
    ResourcePath.CANCEL: ("POST",),
    ResourcePath.REQUEST: ("GET",),
    ResourcePath.HEALTH: ("GET",),
}
ADMIN: Final[Mapping[ResourcePath, tuple[str, ...]]] = {
    ResourcePath.REQUEST: ("GET", "DELETE"),
    ResourcePath.HEALTH: ("GET",),
    ResourcePath.DRAIN: ("POST",),
    ResourcePath.RESUME: ("POST",),
}

_PATTERNS: Final = {
    each: re.compile(re.escape(each).replace(r"\{name\}", r"([^/]{1,200})"))
    for each in ResourcePath
}


def match_resource(path: str) -> tuple[ResourcePath, str] | None:
    """Splits a path into its ResourcePath and the name in it. None if it matches none."""
    for each, pattern in _PATTERNS.items():
        if (match := pattern.fullmatch(path)) is not None:
            return each, match[1]
    return None
