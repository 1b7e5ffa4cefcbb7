"""Classifies vLLM's routes: which put sequences into the engine, and which suspend it.

Any POST that is not listed here counts as a generating request: a route that is new in vLLM, or
another plugin's, is counted rather than overlooked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vllm_plugin.contracts.statement import STATEMENTS_PATH
from vllm_plugin.state.readiness import ASLEEP, PAUSED, NotReady

_SLEEP: Final = NotReady(ASLEEP, "POST /sleep was called; POST /wake_up ends it")
_PAUSE: Final = NotReady(PAUSED, "POST /pause was called; POST /resume ends it")
_WEIGHTS: Final = NotReady(PAUSED, "weights are being updated; POST /finish_weight_update ends it")
_SCALING: Final = NotReady(PAUSED, "the engine is being scaled")

# While such a call is in progress the engine accepts no work, or must not be given any.
SUSPENDING: Final = {
    "/pause": _PAUSE,
    "/resume": _PAUSE,
    "/sleep": _SLEEP,
    "/wake_up": _SLEEP,
    "/release_kv_cache_memory": _SLEEP,
    "/init_weight_transfer_engine": _WEIGHTS,
    "/shutdown_weight_transfer_engine": _WEIGHTS,
    "/start_weight_update": _WEIGHTS,
    "/start_draft_weight_update": _WEIGHTS,
    "/update_weights": _WEIGHTS,
    "/finish_weight_update": _WEIGHTS,
    "/scale_elastic_ep": _SCALING,
}
# After these the engine is asleep.
SLEEP: Final = frozenset({"/sleep", "/release_kv_cache_memory"})
# Between these the weights are partly old and partly new.
BEGIN_UPDATE: Final = frozenset({"/start_weight_update", "/start_draft_weight_update"})
END_UPDATE: Final = "/finish_weight_update"

# POSTs that put no sequence into the engine.
_NOT_GENERATING: Final = frozenset(
    {
        *SUSPENDING,
        STATEMENTS_PATH,
        "/ping",
        "/tokenize",
        "/detokenize",
        "/v1/messages/count_tokens",
        "/v1/chat/completions/render",
        "/v1/completions/render",
        "/v1/messages/render",
        "/v1/responses/render",
        "/cohere/v2/chat/render",
        "/v1/chat/completions/derender",
        "/v1/completions/derender",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/abort_requests",
        "/inference/v1/abort_requests",
        "/update_weight_version",
        "/weight_checker",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/collective_rpc",
        "/is_scaling_elastic_ep",
        "/fault_tolerance/apply",
        "/start_profile",
        "/stop_profile",
    }
)
_RESPONSES: Final = "/v1/responses/"
_CANCEL: Final = "/cancel"


def route_path(scope: Mapping[str, Any]) -> str:
    """Returns the path of a request without vLLM's --root-path, as Starlette looks up its route."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def generates(method: str, path: str) -> bool:
    """Returns whether an HTTP request puts sequences into the engine."""
    if method != "POST" or path in _NOT_GENERATING:
        return False
    return not (path.startswith(_RESPONSES) and path.endswith(_CANCEL))
