"""The endpoints of this sidecar: everything that it must know of each, in one row.

Pure. A path that is not here does not exist: endpoints are allowed by list, never by default. A new
endpoint of vLLM needs a row, and in `generation` a function that reads what it costs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Final

from orch_sidecar.api import coalescing_key, generation
from orch_sidecar.api.body import Document, InvalidBody, parse_form, parse_json, parsed_fast
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.refusal import ANTHROPIC, COHERE, OPENAI, RESPONSES, ErrorFormat, Refusal
from vllm_plugin.contracts.lease_protocol import WORKLOADS_BY_PATH, workloads_of
from vllm_plugin.contracts.statement import STATEMENTS_PATH


@dataclass(frozen=True, slots=True)
class Division:
    """How a request is divided into parts, and their answers are put together.

    `lists`: fields of the body of which one, or two of the same length, can be a list. `n`: the
    body has `n`, the sequences for each prompt. `answers`: the field of the answer with a list of
    what each sequence gave, or an object of such lists. `ranked`: it is sorted by relevance.
    """

    lists: tuple[str, ...]
    answers: str = "data"
    n: bool = False
    ranked: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """A path of this sidecar. Compared by identity.

    `upstream`: the path at the engine, never bytes of the client; None if the sidecar answers.
    `generation`: reads what a request asks of the engine from its body; None if it needs no slots.
    `coalescing_key`: equal for requests that one generation can answer; None to coalesce none.
    `first_byte_is_token`: streams begin with the first token, so that its time can be measured.
    `token_mark`: what every event of a stream with generated text has, or with its end, and no
    other: no text has it, since quotes and line breaks in a text are escaped.
    `operation`: `gen_ai.operation.name` of OpenTelemetry. `needs_key`: where clients have API keys;
    probes and Prometheus send none.
    `budgeted`: takes no slots, but its body counts against the budgets of a key.
    `division`: how a request can be divided; None: it cannot.
    `form`: the body is a multipart form, not JSON, and nothing is added to it.
    `stored`: of one thing that one of the engines keeps; its id is in the path.
    `admitted`: takes slots. `json`: vLLM requires `Content-Type` to be that. `workload`: what an
    engine with this path reports; None: nothing. `line`: the request line for the engine.
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
    division: Division | None = None
    form: bool = False
    stored: bool = False
    operation: str = "chat"
    admitted: bool = field(init=False)
    json: bool = field(init=False)
    workload: str | None = field(init=False)
    line: bytes = field(init=False)

    def __post_init__(self) -> None:
        # Made once, in a frozen object.
        object.__setattr__(self, "admitted", self.generation is not None)
        object.__setattr__(self, "json", (self.admitted or self.budgeted) and not self.form)
        # Of a route in several versions an engine's workload names one.
        of_path = WORKLOADS_BY_PATH.get
        object.__setattr__(self, "workload", of_path(self.path) or of_path(self.path[len("/v1") :]))
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
        generation = self.generation
        assert generation is not None
        assert not (coalesce and outlined)
        try:
            document = parse_json(body, max_depth, outlined=outlined)
            request = generation(document, ctx_max)
        except InvalidBody as invalid:
            return invalid.refusal
        # Most requests have neither: they are sampled at random.
        coalesce = coalesce and ("seed" in document or document.get("temperature") == 0)
        if coalesce and request.cost == 1 and self.coalescing_key is not None:
            request.coalescing_key = self.coalescing_key(document)
        return request

    def read_large(
        self, max_depth: int, ctx_max: int | None, body: bytes, outlined: bool
    ) -> GenerationRequest | Refusal | None:
        """Does the same for a body of WHOLE_BYTES, or for an outline. None: it has to be outlined,
        for only the strict parser could read it, in more time than there is."""
        if outlined:
            return self.read(body, max_depth, ctx_max, outlined=True)
        assert self.generation is not None
        document = parsed_fast(body, max_depth)
        try:
            return None if document is None else self.generation(document, ctx_max)
        except InvalidBody as invalid:
            return invalid.refusal

    def read_form(
        self, body: bytes, content_type: str, ctx_max: int | None
    ) -> GenerationRequest | Refusal:
        """Does the same for a form."""
        assert self.generation is not None
        try:
            return self.generation(parse_form(body, content_type), ctx_max)
        except InvalidBody as invalid:
            return invalid.refusal


METRICS: Final = "/metrics"
PING: Final = "/ping"
LOAD: Final = "/load"
ENGINE_METRICS: Final = "/metrics/engine"
# They must answer by any name, whatever is configured.
PROBES: Final = frozenset({"/livez", "/readyz", "/healthz", "/health"})
STREAM: Final = "/v1/capabilities/stream"
LIVE: Final = "/v1/live"
# The page for people, and its files. A browser that asks for ROOT is sent to it.
ROOT: Final = "/"
PAGE: Final = "/ui"
UI_FILES: Final = {PAGE: "index.html"} | {
    f"{PAGE}/{name}": name for name in ("app.js", "view.js", "dom.js", "charts.js", "style.css")
}


def _pooling(
    *paths: str,
    read: Callable[[Document, int | None], GenerationRequest] = generation.input_or_messages,
    operation: str,
    division: Division | None = Division(("input", "messages")),
) -> tuple[Endpoint, ...]:
    """Endpoints whose answers are not streamed: of models that pool, scores and decisions."""
    return tuple(
        Endpoint(
            path, "POST", path,
            generation=read, first_byte_is_token=False, operation=operation,
            division=division,
        )
        for path in paths
    )  # fmt: skip


_ENDPOINTS: Final = (
    Endpoint(
        "/v1/chat/completions", "POST", "/v1/chat/completions",
        generation=generation.chat,
        coalescing_key=coalescing_key.chat,
        division=Division((), "choices", n=True),
    ),
    Endpoint(
        "/v1/completions", "POST", "/v1/completions",
        generation=generation.completions,
        coalescing_key=coalescing_key.completions,
        operation="text_completion",
        division=Division(("prompt",), "choices", n=True),
    ),
    # Responses are stored and referred to by their ids: none is coalesced. vLLM sends their first
    # events before it generates.
    Endpoint(
        "/v1/responses", "POST", "/v1/responses",
        generation=generation.responses,
        error_format=RESPONSES,
        first_byte_is_token=False,
        token_mark=b".delta\n",
    ),
    # Messages have ids of their own making: none is coalesced.
    Endpoint(
        "/v1/messages", "POST", "/v1/messages",
        generation=generation.messages,
        error_format=ANTHROPIC,
        token_mark=b"content_block_delta\n",
    ),
    # One answer for several conversations, which is not streamed.
    Endpoint(
        "/v1/chat/completions/batch", "POST", "/v1/chat/completions/batch",
        generation=generation.chat_batch,
        first_byte_is_token=False,
        division=Division(("messages",), "choices"),
    ),
    # For engines that have Cohere's package and this route. The first event has no token.
    Endpoint(
        "/cohere/v2/chat", "POST", "/cohere/v2/chat",
        generation=generation.chat,
        error_format=COHERE,
        first_byte_is_token=False,
        token_mark=b'"type":"content-delta"',
    ),
    *_pooling("/v1/embeddings", operation="embeddings"),
    *_pooling(
        "/v2/embed",
        read=generation.cohere_embed, operation="embeddings",
        division=Division(("texts", "images", "inputs"), "embeddings"),
    ),
    *_pooling(
        "/rerank", "/v1/rerank", "/v2/rerank",
        read=generation.rerank, operation="rerank",
        division=Division(("documents",), "results", ranked=True),
    ),
    *_pooling(
        "/score", "/v1/score",
        read=generation.scores, operation="score",
        division=Division(
            (
                "queries", "documents", "items", "data_1", "data_2", "text_1", "text_2",
            )
        ),
    ),
    *_pooling("/classify", operation="classify"),
    *_pooling("/pooling", operation="pooling"),
    *_pooling(
        "/generative_scoring",
        read=generation.generative_scores, operation="score",
        division=Division(("items",)),
    ),
    *_pooling(
        "/v1/systemone", "/v1/decisions",
        read=generation.decision, operation="decision",
        division=None,
    ),
    *(
        Endpoint(
            f"/v1/audio/{task}s", "POST", f"/v1/audio/{task}s",
            generation=generation.recording, form=True, operation=task,
        )
        for task in ("transcription", "translation")
    ),
    Endpoint(
        "/invocations", "POST", "/invocations",
        generation=generation.invocations, first_byte_is_token=False,
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
    Endpoint("/tokenizer_info", "GET", "/tokenizer_info"),
    Endpoint(ENGINE_METRICS, "GET", "/metrics"),
    Endpoint("/v1/capabilities", "GET"),
    Endpoint(STREAM, "GET"),
    Endpoint(LIVE, "GET"),
    *(
        Endpoint(path, "GET", needs_key=False)
        for path in (*UI_FILES, METRICS, "/metrics/model-server", *sorted(PROBES), PING, LOAD)
    ),
)  # fmt: skip

ENDPOINTS: Final = {each.path: each for each in _ENDPOINTS}
# Of things that an engine stores: the pattern of a path, and its endpoint.
_STORED_PREFIXES: Final = tuple(
    (re.compile(path.replace("{id}", "[A-Za-z0-9_-]{1,200}")), Endpoint(
        path, method, path, error_format=RESPONSES, stored=True
    ))
    for path, method in (
        ("/v1/responses/{id}", "GET"),
        ("/v1/responses/{id}/cancel", "POST"),
    )
)  # fmt: skip

# Routes of vLLM 0.32 and 0.33 that are not served, and why.
_OPERATORS: Final = "its operator calls it at the engine"
_TOKENS: Final = "its requests are prepared by other parts of a divided engine"
NOT_SERVED: Final[Mapping[str, str]] = {
    "/v1/realtime": "a session takes slots for as long as it is open, which nothing bounds",
    **dict.fromkeys(
        (
            "/inference/v1/generate", "/inference/v1/abort_requests", "/abort_requests",
            "/v1/chat/completions/render", "/v1/completions/render", "/v1/messages/render",
            "/v1/responses/render", "/cohere/v2/chat/render", "/v1/chat/completions/derender",
            "/v1/completions/derender",
        ),
        _TOKENS,
    ),
    **dict.fromkeys(
        (
            "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/pause", "/resume", "/is_paused",
            "/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory", "/server_info",
            "/collective_rpc", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/start_profile",
            "/stop_profile", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache",
            "/fault_tolerance/apply", "/fault_tolerance/status", "/kv_event_sources",
            "/init_weight_transfer_engine", "/shutdown_weight_transfer_engine",
            "/start_weight_update", "/start_draft_weight_update", "/update_weights",
            "/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker",
            "/get_world_size",
        ),
        _OPERATORS,
    ),
}  # fmt: skip

# What a request for any other path is recorded as: its path is the client's text, and no label.
UNKNOWN: Final = Endpoint("(none)", "GET")
_UNKNOWN_MESSAGES: Final = Endpoint("(none)", "GET", error_format=ANTHROPIC)

WITHOUT_KEY: Final = frozenset(each.path for each in _ENDPOINTS if not each.needs_key) | {ROOT}
# Of an engine's workloads, those that this sidecar serves.
WORKLOADS: Final = workloads_of(each.path for each in _ENDPOINTS if each.admitted)


def find(path: str) -> Endpoint | None:
    """Returns the endpoint of a path that is none of ENDPOINTS: of a stored thing, or with a slash
    at its end. None: it is not served."""
    if path in NOT_SERVED:  # one of them is like the path of a stored thing
        return None
    for pattern, endpoint in _STORED_PREFIXES:
        if pattern.fullmatch(path) is not None:
            return endpoint
    return ENDPOINTS.get(path.rstrip("/"))


def why_not(path: str) -> str:
    """Returns the text for a path that is not served."""
    reason = NOT_SERVED.get(path.rstrip("/"))
    if reason is None and path.endswith(("/drain", "/resume")) and match_resource(path):
        reason = "operators have a listener of their own (admin_port)"
    for meant in (f"/v1{path}".rstrip("/"), path.replace("/v1/v1/", "/v1/").rstrip("/")):
        if reason is None and meant in ENDPOINTS:
            reason = f"it is {meant}. The base URL of OpenAI's clients ends in /v1, that of "
            reason += "Anthropic's before it"
    return f"there is no {path[:200]} here" + ("" if reason is None else f": {reason}")


def no_engine_has(endpoint: Endpoint, unserved: Collection[str]) -> str:
    """Returns the text for an endpoint whose workload is among those that no engine serves."""
    served = [each for each in WORKLOADS_BY_PATH.values() if each not in unserved]
    return f"no engine has {endpoint.path}: their models are for {', '.join(served)}"


def unknown(path: str) -> Endpoint:
    """Returns what a request for another path is recorded as, with the error format of its API."""
    return _UNKNOWN_MESSAGES if path.startswith("/v1/messages/") else UNKNOWN


class ResourcePath(StrEnum):
    """A path with the name of a thing in it, or of all files or batches."""

    LEASE = "/v1/capabilities/leases/{name}"
    CLAIM = "/v1/capabilities/claims/{name}"
    CANCEL = "/v1/requests/{name}/cancel"
    REQUEST = "/v1/requests/{name}"
    MODEL = "/v1/models/{model}"
    HEALTH = "/v1/pools/{name}/health"
    DRAIN = "/v1/pools/{name}/drain"
    RESUME = "/v1/pools/{name}/resume"
    FILES = "/v1/files"
    FILE = "/v1/files/{name}"
    FILE_CONTENT = "/v1/files/{name}/content"
    BATCHES = "/v1/batches"
    BATCH = "/v1/batches/{name}"
    BATCH_CANCEL = "/v1/batches/{name}/cancel"


_PATTERNS: Final = {
    # Names of models may have slashes.
    each: re.compile(
        re.escape(each).replace(r"\{name\}", r"([^/]{1,200})").replace(r"\{model\}", r"(.{1,400})")
    )
    for each in ResourcePath
}


def match_resource(path: str) -> tuple[ResourcePath, str] | None:
    """Splits a path into its ResourcePath and the name in it, or "". None if it matches none."""
    for each, pattern in _PATTERNS.items():
        if (match := pattern.fullmatch(path.rstrip("/"))) is not None:
            return each, "".join(match.groups())
    return None
