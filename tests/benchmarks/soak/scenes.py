"""The scenes: pools of the sidecar, its event loop, and the duration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool. `profile`: also its name where it is the only one."""

    name: str
    profile: str
    slots: int
    on_request: bool = False

    @property
    def measurement_type(self) -> str:
        return "single_stream" if self.profile == "home" else "batched_online"


@dataclass(frozen=True, slots=True)
class Scene:
    """One sidecar and its engines. `seconds`: of load, a part of which is the warm-up."""

    name: str
    loop: str  # uvloop, which `orch sidecar` runs on, or asyncio
    pools: tuple[PoolPlan, ...]
    seconds: float

    @property
    def single(self) -> bool:
        return len(self.pools) == 1


_HOME: Final = PoolPlan("home", "home", 1)
_CLOUD: Final = PoolPlan("cloud", "cloud", 8)
_SEVERAL: Final = (_HOME, PoolPlan("cloud-a", "cloud", 6), PoolPlan("cloud-b", "cloud", 4))


def scenes(single_s: float, several_s: float) -> list[Scene]:
    """A half with one pool, a half with several; each on both event loops."""
    return [
        Scene("one pool, cloud, uvloop", "uvloop", (_CLOUD,), single_s / 2),
        Scene("one pool, home, asyncio", "asyncio", (_HOME,), single_s / 2),
        Scene("three pools, asyncio", "asyncio", _SEVERAL, several_s / 2),
        Scene("three pools, uvloop", "uvloop", _SEVERAL, several_s / 2),
    ]
