"""A sidecar that has batches on, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.integration.batches.batching import Batches
from tests.integration.running import Running, Start

MakeClient = Callable[..., Batches]


@pytest.fixture(autouse=True)
def looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orch_sidecar.batches.runner.LOOK_EVERY_S", 0.1)


@pytest.fixture
async def sidecar(start: Start, tmp_path: Path) -> Running:
    return await start(batches=str(tmp_path / "batches"))


@pytest.fixture
async def client() -> AsyncIterator[MakeClient]:
    """Makes clients of running sidecars."""
    made: list[Batches] = []

    def make(running: Running, key: str = "any") -> Batches:
        made.append(Batches(running.port, key))
        return made[-1]

    yield make
    for each in made:
        await each.client.close()


@pytest.fixture
def batches(sidecar: Running, client: MakeClient) -> Batches:
    return client(sidecar)
