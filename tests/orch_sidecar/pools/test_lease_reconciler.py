"""Leases whose end must be asked for are asked for one by one."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import MagicMock

import pytest

from orch_sidecar.pools import lease_reconciler as confirm
from orch_sidecar.pools.lease_reconciler import LeaseReconciler


async def test_lease_of_which_the_engine_says_nonsense_keeps_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(confirm, "LOOK_EVERY_S", 0.001)
    gate: Any = MagicMock()
    gate.core.ledger.closing.return_value = ["a", "b", "c"]
    ended: asyncio.Queue[list[str]] = asyncio.Queue()
    gate.engine_ended.side_effect = ended.put_nowait
    confirmation = LeaseReconciler(MagicMock(), "http://engine", {}, gate)

    async def says(lease: str) -> bool:
        if lease == "a":
            raise ValueError("no JSON")
        return lease == "c"

    monkeypatch.setattr(confirmation, "_has_ended", says)
    confirmation.overdue()
    task = asyncio.create_task(confirmation.run(lambda: True))
    assert await asyncio.wait_for(ended.get(), 5.0) == ["c"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "lease a: the engine's answer is none" in caplog.text
