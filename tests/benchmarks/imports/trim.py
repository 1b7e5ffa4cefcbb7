"""Reduces a tool's file to a fixture. Pure.

Keeps the fields that an importer reads and their neighbours, without text or machine details.
"""

from __future__ import annotations

from typing import Any, Final

from orch_sidecar.tools.local.up import cache_directory

_VLLM_BENCH: Final = ("itls", "generated_texts", "errors")
_BENCHMARK: Final = ("metrics", "scheduler_state")
_CONFIG: Final = ("environment", "warnings", "requests")
_REQUEST: Final = (
    *("type_", "response_id", "info", "prompt_tokens", "output_tokens", "request_latency"),
    *("time_to_first_token_ms", "time_per_output_token_ms", "inter_token_latency_ms"),
)
_INFO: Final = ("status", "timings", "turn_index", "error")


def vllm_bench(document: dict[str, Any]) -> dict[str, Any]:
    return _sound(
        {name: value for name, value in document.items() if name not in _VLLM_BENCH}
        | {"tokenizer_id": "tokenizer"}
    )


def guidellm(document: dict[str, Any]) -> dict[str, Any]:
    return _sound(
        {
            "metadata": document["metadata"] | {"platform": "Linux"},
            "config": {"metadata": document["config"]["metadata"]},
            "benchmarks": [_benchmark(each) for each in document["benchmarks"]],
        }
    )


def _benchmark(document: dict[str, Any]) -> dict[str, Any]:
    kept = _without(document, _BENCHMARK)
    kept["config"] = _without(kept["config"], _CONFIG)
    kept["requests"] = {
        name: None if each is None else [_request(request) for request in each]
        for name, each in kept["requests"].items()
    }
    return kept


def _request(document: dict[str, Any]) -> dict[str, Any]:
    kept = {name: document[name] for name in _REQUEST}
    kept["info"] = {name: document["info"][name] for name in _INFO}
    return kept


def _without(document: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def _sound(document: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError if a path of this machine is left in it."""
    for path in (str(cache_directory()), str(cache_directory().home())):
        if path in str(document):
            raise ValueError(f"{path} is left in what was trimmed")
    return document
