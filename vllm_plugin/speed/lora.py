"""The LoRA adapters of requests in an engine's scheduler. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class LoraUse:
    """Names of adapters, sorted: of requests that run, and of requests that wait."""

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


NO_LORA: Final = LoraUse()


def lora_use_of(scheduler_stats: Any) -> LoraUse:
    """Reads vLLM's counts of requests by adapter. One with requests of one kind is in both."""
    running, waiting = scheduler_stats.running_lora_adapters, scheduler_stats.waiting_lora_adapters
    if not running and not waiting:
        return NO_LORA
    return LoraUse(_in_use(running), _in_use(waiting))


def _in_use(requests: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(sorted(name for name, count in requests.items() if count))
