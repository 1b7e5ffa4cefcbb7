"""The names of all header fields that the sidecar reads or writes, each defined once.

Pure. That of the adapter is the engine's, too: it is in `vllm_plugin.contracts.lease_protocol`. The
names are `istr`, which a multidict need not fold to one case at each look-up. Tables and templates
of bytes are made of them at import, by `raw` and `field_line`.
"""

from __future__ import annotations

from typing import Final

from multidict import istr

# HTTP.
ACCEPT: Final = istr("Accept")
ACCEPT_ENCODING: Final = istr("Accept-Encoding")
ACCESS_CONTROL_ALLOW_CREDENTIALS: Final = istr("Access-Control-Allow-Credentials")
ACCESS_CONTROL_ALLOW_HEADERS: Final = istr("Access-Control-Allow-Headers")
ACCESS_CONTROL_ALLOW_METHODS: Final = istr("Access-Control-Allow-Methods")
ACCESS_CONTROL_ALLOW_ORIGIN: Final = istr("Access-Control-Allow-Origin")
ACCESS_CONTROL_EXPOSE_HEADERS: Final = istr("Access-Control-Expose-Headers")
ACCESS_CONTROL_MAX_AGE: Final = istr("Access-Control-Max-Age")
ACCESS_CONTROL_REQUEST_HEADERS: Final = istr("Access-Control-Request-Headers")
ACCESS_CONTROL_REQUEST_METHOD: Final = istr("Access-Control-Request-Method")
ALLOW: Final = istr("Allow")
CACHE_CONTROL: Final = istr("Cache-Control")
CONNECTION: Final = istr("Connection")
CONTENT_ENCODING: Final = istr("Content-Encoding")
CONTENT_LENGTH: Final = istr("Content-Length")
CONTENT_SECURITY_POLICY: Final = istr("Content-Security-Policy")
CONTENT_TYPE: Final = istr("Content-Type")
CROSS_ORIGIN_RESOURCE_POLICY: Final = istr("Cross-Origin-Resource-Policy")
EXPECT: Final = istr("Expect")
FORWARDED: Final = istr("Forwarded")
HOST: Final = istr("Host")
LOCATION: Final = istr("Location")
ORIGIN: Final = istr("Origin")
REFERRER_POLICY: Final = istr("Referrer-Policy")
RETRY_AFTER: Final = istr("Retry-After")
SEC_FETCH_MODE: Final = istr("Sec-Fetch-Mode")
SEC_FETCH_SITE: Final = istr("Sec-Fetch-Site")
SERVER: Final = istr("Server")
SERVER_TIMING: Final = istr("Server-Timing")
TRANSFER_ENCODING: Final = istr("Transfer-Encoding")
VARY: Final = istr("Vary")
VIA: Final = istr("Via")
X_CONTENT_TYPE_OPTIONS: Final = istr("X-Content-Type-Options")
X_FORWARDED: Final = istr("X-Forwarded-")  # with what follows, of proxies
X_AMZN_SAGEMAKER: Final = istr("X-Amzn-SageMaker-")  # with what follows, of SageMaker

# Keys of clients and of engines.
AUTHORIZATION: Final = istr("Authorization")
WWW_AUTHENTICATE: Final = istr("WWW-Authenticate")
X_API_KEY: Final = istr("X-Api-Key")
X_ORCH_SIDECAR_KEY: Final = istr("X-Orch-Sidecar-Key")  # to engines, of sidecars

# Ids of a request, and its trace context (W3C).
X_REQUEST_ID: Final = istr("X-Request-Id")
X_CORRELATION_ID: Final = istr("X-Correlation-Id")
X_ORCH_REQUEST_ID: Final = istr("X-Orch-Request-Id")
TRACEPARENT: Final = istr("traceparent")
TRACESTATE: Final = istr("tracestate")

# What a client, or a parent sidecar, asks of this sidecar. All that begins with `X_ORCH` ends here.
X_ORCH: Final = istr("X-Orch-")
X_ORCH_CLASS: Final = istr("X-Orch-Class")
X_ORCH_DEADLINE_MS: Final = istr("X-Orch-Deadline-Ms")
X_ORCH_DO_NOT_QUEUE: Final = istr("X-Orch-Do-Not-Queue")
X_ORCH_LEASE: Final = istr("X-Orch-Lease")
X_ORCH_MAX_WAIT_MS: Final = istr("X-Orch-Max-Wait-Ms")
X_ORCH_MEASUREMENT_TYPE: Final = istr("X-Orch-Measurement-Type")
X_ORCH_OPERATOR: Final = istr("X-Orch-Operator")
X_ORCH_NO_COALESCE: Final = istr("X-Orch-No-Coalesce")
X_ORCH_POOL: Final = istr("X-Orch-Pool")
X_ORCH_QUEUE_EVENTS: Final = istr("X-Orch-Queue-Events")
X_ORCH_RUN: Final = istr("X-Orch-Run")
X_ORCH_SCENARIO: Final = istr("X-Orch-Scenario")
# Names of other gateways for options of ours. Those of llm-d's router come before the deprecated
# ones that it took over with the endpoint picker of the Gateway API inference extension, as it
# reads them: https://github.com/llm-d/llm-d-router/blob/main/pkg/epp/metadata/consts.go, there
# https://github.com/kubernetes-sigs/gateway-api-inference-extension/blob/main/pkg/epp/metadata/consts.go
X_SMG_PRIORITY: Final = istr("x-smg-priority")
X_LLM_D_OBJECTIVE: Final = istr("x-llm-d-inference-objective")
X_GATEWAY_OBJECTIVE: Final = istr("x-gateway-inference-objective")
CLASS_ALIASES: Final = (X_SMG_PRIORITY, X_LLM_D_OBJECTIVE, X_GATEWAY_OBJECTIVE)
FAIRNESS_IDS: Final = (
    istr("x-llm-d-inference-fairness-id"),
    istr("x-gateway-inference-fairness-id"),
)
TTFT_SLOS: Final = (istr("x-llm-d-slo-ttft-ms"), istr("x-slo-ttft-ms"))
TPOT_SLOS: Final = (istr("x-llm-d-slo-tpot-ms"), istr("x-slo-tpot-ms"))
OPTION_ALIASES: Final = (*CLASS_ALIASES, *FAIRNESS_IDS, *TTFT_SLOS, *TPOT_SLOS)

# What the sidecar adds to an answer.
RETRY_AFTER_MS: Final = istr("retry-after-ms")
X_ACCEL_BUFFERING: Final = istr("X-Accel-Buffering")
X_BACKOFF_MS: Final = istr("X-Backoff-Ms")
X_MEASUREMENT_TYPE: Final = istr("X-Measurement-Type")
X_ORCH_PREDICTED_START_MS: Final = istr("X-Orch-Predicted-Start-Ms")
X_ORCH_QUEUE_POSITION: Final = istr("X-Orch-Queue-Position")
# OpenAI's names for the budgets of an API key.
X_RATELIMIT_LIMIT_REQUESTS: Final = istr("x-ratelimit-limit-requests")
X_RATELIMIT_LIMIT_TOKENS: Final = istr("x-ratelimit-limit-tokens")
X_RATELIMIT_REMAINING_REQUESTS: Final = istr("x-ratelimit-remaining-requests")
X_RATELIMIT_REMAINING_TOKENS: Final = istr("x-ratelimit-remaining-tokens")
X_RATELIMIT_RESET_REQUESTS: Final = istr("x-ratelimit-reset-requests")
X_RATELIMIT_RESET_TOKENS: Final = istr("x-ratelimit-reset-tokens")

# What vLLM reads and no client may set: it would bypass admission.
X_DATA_PARALLEL_RANK: Final = istr("X-Data-Parallel-Rank")
X_SESSION_ID: Final = istr("X-Session-Id")
X_VLLM_PRIORITY: Final = istr("X-Vllm-Priority")


def raw(name: str) -> bytes:
    """Returns a name as it is compared and written in bytes: in lower case."""
    return name.lower().encode("ascii")


def text_of(value: bytes | None) -> str:
    """Returns the value of a field of a client; empty if it is absent. llhttp leaves blanks at its
    end."""
    return "" if value is None else value.rstrip(b" \t").decode("utf-8", "surrogateescape")


def field_line(name: str, value: str) -> bytes:
    """Returns a whole header line, or the template of one if the value has a placeholder."""
    return b"%b: %b\r\n" % (raw(name), value.encode())


# Of one connection, and never forwarded (RFC 9110, 7.6.1).
HOP_BY_HOP: Final = frozenset(
    map(
        raw,
        (
            CONNECTION, "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
            "Proxy-Connection", "TE", "Trailer", TRANSFER_ENCODING, "Upgrade",
        ),
    )
)  # fmt: skip
