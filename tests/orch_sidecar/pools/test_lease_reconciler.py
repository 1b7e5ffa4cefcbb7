"""Leases whose end must be confirmed are asked for one by one."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from orch_sidecar.pools.lease_reconciler import LeaseReconciler


async def test_invalid_answer_about_one_lease_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate: Any = MagicMock()
    gate.ledger.closing.return_value = ["a", "b", "c"]
    reconciler = LeaseReconciler(MagicMock(), "http://engine", {}, gate)

    async def has_ended(lease: str) -> bool:
        if lease == "a":
            raise ValueError("no JSON")
        return lease == "c"

    monkeypatch.setattr(reconciler, "_has_ended", has_ended)
    reconciler.stream_restarted()
    await reconciler.reconcile(engine_answers=False)
    gate.leases_ended.assert_not_called()
    await reconciler.reconcile(engine_answers=True)
    gate.leases_ended.assert_called_once_with(["c"])
    assert "lease a: the engine's answer is invalid" in caplog.text
