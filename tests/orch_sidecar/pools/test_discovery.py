"""The tasks of pools: what the failure of one of them means for the others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import pytest

from orch_sidecar.pools.discovery import Discovery
from orch_sidecar.pools.registry import PoolRegistry
from tests.orch_sidecar.snapshots import CLOUD
from tests.patience import HANG_S
from vllm_plugin.contracts.profile import Profile


class Watcher:
    """Watches until it is stopped, or fails at once."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.running = False
        self.claim_sender = self

    async def run(self) -> None:
        """Sends claims."""
        await asyncio.Event().wait()

    async def watch(self) -> None:
        if self._error is not None:
            raise self._error
        self.running = True
        try:
            await asyncio.Event().wait()
        finally:
            self.running = False

    async def reconcile(self) -> None:
        await asyncio.Event().wait()


@dataclass(eq=False)
class FakePool:
    """As much of a pool as discovery reads."""

    name: str
    watcher: Watcher
    url: str = "http://engine"
    tier: bool = False
    profile: Profile = CLOUD


class Pools(list[FakePool]):
    """A registry without headless pools."""

    settings = ()


async def test_failed_task_is_raised_while_the_others_go_on_until_the_stop() -> None:
    good, bad = Watcher(), Watcher(ValueError("broken"))
    pools = Pools([FakePool("a", good), FakePool("b", bad)])
    discovery = Discovery(cast(PoolRegistry, pools))
    with pytest.raises(ValueError, match="broken") as raised:
        await asyncio.wait_for(discovery.run(), HANG_S)
    assert raised.value.__notes__ == ["in the task: watch the engine of b"]
    assert good.running
    await discovery.stop()
    assert not good.running
