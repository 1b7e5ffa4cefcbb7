"""uvloop, which `orch sidecar` runs on; a clock that jumps where a module says VIRTUAL_TIME."""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import uvloop


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer it has the clock jump there."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        events = super().select(0)
        if not events:
            self.now += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while something is to be done, and jumps over all waiting."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    module: Any = item.getparent(pytest.Module)
    if getattr(module.obj, "VIRTUAL_TIME", False):
        return {"virtual": VirtualTimeLoop}
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting from outside reaches a test."""
    for name in list(os.environ):
        if name.startswith("OTEL_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
