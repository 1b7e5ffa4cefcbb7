"""Live documents as a sidecar sends them."""

from __future__ import annotations

from typing import Any

from orch_sidecar.tools.top.live import SNAPSHOT, Live

AT = 1_795_425_300_000


def queued(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"queued-{number}", "class": "interactive", "key": None, "cost": 1,
        "position": number, "queued_at": AT - 1500, "starts_at": AT + 2000 * (number + 1),
        "expires_at": AT + 60_000,
    } | more  # fmt: skip


def admitted(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"running-{number}", "class": "bulk", "key": "chat", "cost": 1,
        "admitted_at": AT - 75_000, "first_byte_at": AT - 74_000,
        "phase": "generation",
    } | more  # fmt: skip


def ended(number: int, **more: Any) -> dict[str, Any]:
    return {
        "number": number, "id": f"ended-{number}", "pool": "cloud", "class": "interactive",
        "model": "tiny", "route": "/v1/completions", "ended_at": AT - 100, "outcome": "ok",
        "status": 200, "text": "", "wait_ms": 12.1, "first_byte_ms": 80.2, "total_ms": 912.0,
        "prompt_tokens": 12, "tokens": 64, "estimated": False, "batch": 3.9, "coalesced": False,
        "trace_id": None,
    } | more  # fmt: skip


def pool(name: str = "cloud", **more: Any) -> dict[str, Any]:
    return {
        "name": name, "profile": "cloud", "measurement_type": "batched_online", "tier": False,
        "models": ["org/A-model-with-a-long-name-70B-Instruct"], "engine": "vllm 0.32.0",
        "gpu": "NVIDIA H100 80GB HBM3", "weights": "org/A", "state": "ready",
        "since_at": AT - 3_600_000, "message": "", "advice": "", "drain": None,
        "slots": {
            "total": 8, "free": 1, "interactive": 4, "bulk": 2, "idle": 0, "foreign": 0,
            "closing": 1,
        },
        "limits": {"interactive": 8, "bulk": 8}, "batches": [1, 3, 8, 6], "decode_steps": 4711,
        "running": 6, "prefilling": 0,
        "curve": {
            "points": [[1, 9.8, 40], [4, 14.2, 30], [8, 22.0, 20]],
            "fit": {
                "t0_ms": 8.6, "c_ms": 1.2, "alpha": 0.8, "largest": 8, "good": True, "traffic": 1.1,
            },
        },
        "kv": {"usage": 0.31, "tokens": 262144, "preemptions": 0}, "violations": 0,
        "rates": {"tokens_per_s": 812.4, "prompt_tokens_per_s": 90.5, "busy": 0.97},
        "latency": {
            "interactive": {
                "requests": 40, "ttft_ms": [80.0, 240.0], "ttft_slo_ms": 200,
                "tpot_ms": [11.0, 14.0], "tpot_slo_ms": 50,
            },
            "bulk": {
                "requests": 0, "ttft_ms": None, "ttft_slo_ms": None, "tpot_ms": None,
                "tpot_slo_ms": None,
            },
        },
        "waits": {"reason": "slot", "text": "All 8 slots are taken; the next one is its own."},
        "queued": {"interactive": 2, "bulk": 0}, "keys": [],
        "queue": [queued(0), queued(1)],
        "admitted": [admitted(0), admitted(1, first_byte_at=None, phase="prompt")],
    } | more  # fmt: skip


def document(*pools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "at": AT, "operator": True, "trace_url": None,
        "sidecar": {
            "version": "0.1.0", "run": "1f0c", "started_at": AT - 7_200_000, "state": "ready",
            "keys": False,
        },
        "pools": list(pools) or [pool()], "requests": [ended(1), ended(2)],
    } | more  # fmt: skip


def live(*pools: dict[str, Any], **more: Any) -> Live:
    found = Live()
    found.apply(SNAPSHOT, document(*pools, **more))
    return found
