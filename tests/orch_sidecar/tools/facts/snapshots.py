"""Capabilities documents and snapshots, for tests."""

from __future__ import annotations

from typing import Any

from orch_sidecar.tools.facts.labels.snapshot import Snapshot, parse_snapshot

CONDITIONS = {
    "speculative": "none",
    "quantization": "none",
    "kv_cache_dtype": "float32",
    "prefix_caching": "off",
    "attention_backend": "CPU_ATTN",
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "loaded": "random:0123456789abcdef",
}


def document(**fields: Any) -> dict[str, Any]:
    """Returns a sidecar's document of one cloud engine, with changes of its fields."""
    entry = {
        "engine": "vllm",
        "engine_version": "0.32.0",
        "pool": "cloud",
        "profile": "cloud",
        "measurement_type": "batched_online",
        "models": ["tiny"],
        "gpu": "CPU (test)",
        "gpu_count": 0,
        "precision": "FP32",
        "weights": "/models/tiny",
        "conditions": CONDITIONS,
        "epoch": "e1",
        "slots_total": 8,
        "foreign": 0,
        "requests_total": 100,
        "preemptions_total": 0,
        "steps_by_batch": {"1": [10, 0.1], "4": [5, 0.1]},
        "busy_seconds_total": 0.5,
        "prefix_cache": {"queries_total": 0, "hits_total": 0},
        "state": "ready",
        "observed_at": "2026-11-21T12:00:00.000Z",
        "age_ms": 100,
    }
    return {"api_version": "1.0.0", "generation": 1, "engines": [entry | fields]}


def snapshot(**fields: Any) -> Snapshot:
    return parse_snapshot(document(**fields))


def home(**fields: Any) -> Snapshot:
    own = {
        "pool": "home",
        "profile": "home",
        "measurement_type": "single_stream",
        "slots_total": 1,
        "steps_by_batch": {"1": [10, 0.1]},
    }
    return snapshot(**own | fields)
