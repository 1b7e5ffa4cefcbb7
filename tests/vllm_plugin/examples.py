"""An engine's facts and leases, reports of its scheduler, and a subscriber of its state."""

from __future__ import annotations

from typing import Any, Final

from vllm_plugin.contracts.lease_protocol import parse_lease
from vllm_plugin.contracts.slot_claims import Subscriber
from vllm_plugin.state.engine_facts import UNKNOWN, Conditions, EngineFacts, Hardware
from vllm_plugin.state.engine_speed import SchedulerReport
from vllm_plugin.state.engine_state import EngineState
from vllm_plugin.state.leases import Leases

US, THEM = "a" * 16, "b" * 16


def lease_of(instance: str, number: int = 0, cost: int = 1) -> str:
    return f"{instance}.{number:032x}.{cost}"


LEASE = lease_of(US, 1, cost=4)

# The conditions of a plain engine, without those that its model and its ranks determine.
SETTINGS: Final[dict[str, Any]] = {
    "data_parallel": 1,
    "max_num_batched_tokens": 8192,
    "long_prefill_token_threshold": 0,
    "async_scheduling": "on",
    "prefill_schedule_interval": 1,
    "execution": "vllm_compile+full_and_piecewise",
    "kv_offload": "none",
    "max_loras": 0,
}
CONDITIONS = Conditions("ngram:3", "none", "bfloat16", "on", UNKNOWN, 2, 1, **SETTINGS)

FACTS = EngineFacts(
    engine_version="0.32.0",
    pool="cloud",
    models=("tiny", "alias"),
    weights="/models/tiny",
    ctx_max=2048,
    profile="cloud",
    measurement_type="batched_online",
    batching=True,
    slots_total=8,
    epoch="e1",
    features={"speculative_decoding": False},
    hardware=Hardware("NVIDIA H100 80GB HBM3", 2, "BF16"),
    conditions=CONDITIONS,
    tokens_per_step=4,
)


def report(
    running: int = 0,
    waiting: int = 0,
    *,
    batch: int | None = None,
    usage: float = 0.0,
    preempted: int = 0,
    at_s: float = 100.0,
    decode_only: bool = True,
) -> SchedulerReport:
    return SchedulerReport(at_s, running, waiting, usage, preempted, batch, decode_only, 0.01)


def subscribed(
    engine_state: EngineState, instance: str | None = US, *, claims: bool = True
) -> tuple[Subscriber, list[None]]:
    """Returns a subscriber that looks whenever it is woken, and a list with an entry for each time
    that it was."""
    woken: list[None] = []

    def wake() -> None:
        woken.append(None)
        engine_state.look(subscriber)

    subscriber = Subscriber(instance, wake, claims=claims)
    engine_state.subscribe(subscriber)
    return subscriber, woken


def enter(leases: Leases, header: str | None) -> int:
    """Adds a request whose lease is not spent, and returns its key."""
    assert not used(leases, header)
    return leases.enter(parse_lease(header) if header else None)


def used(leases: Leases, header: str | None) -> bool:
    """Whether a request with this header is rejected."""
    lease = parse_lease(header) if header else None
    return lease is not None and leases.is_used(lease)
