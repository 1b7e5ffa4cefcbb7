"""Whether the workers compile before the engine serves, and that nothing of it stops an engine."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_plugin import register
from vllm_plugin.enforcement.enforce import WORKER_EXTENSION


class Core:
    """An engine core whose workers compile, fail to, or go on for ever."""

    def __init__(self, *, error: Exception | None = None, endless: bool = False) -> None:
        self.called: list[str] = []
        self._error, self._endless = error, endless

    async def collective_rpc_async(self, method: str) -> list[None]:
        self.called.append(method)
        if self._endless:
            await asyncio.Event().wait()
        if self._error is not None:
            raise self._error
        return [None]


def client_of(
    core: Core,
    *,
    eager: bool = True,
    extension: str = WORKER_EXTENSION,
    second_runner: bool = False,
) -> Any:
    config = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=eager),
        parallel_config=SimpleNamespace(worker_extension_cls=extension),
        use_v2_model_runner=second_runner,
    )
    return SimpleNamespace(vllm_config=config, engine_core=core)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The platform is a GPU; ORCH_WARM_UP is not set."""
    platform = SimpleNamespace(is_cpu=lambda: False)
    platforms = SimpleNamespace(current_platform=platform)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.delenv("ORCH_WARM_UP", raising=False)
    caplog.set_level(logging.INFO, "vllm.orch")


@pytest.mark.parametrize("value", [None, "", "on"])
async def test_workers_compile_without_a_sequence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str | None
) -> None:
    if value is not None:
        monkeypatch.setenv("ORCH_WARM_UP", value)
    core = Core()
    await register.warm_up(client_of(core))  # it has no method that takes a sequence
    assert core.called == ["orch_warm_up"]
    assert "orch: warming up" in caplog.text


async def test_warm_up_can_be_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ORCH_WARM_UP", "off")
    core = Core()
    await register.warm_up(client_of(core))
    assert core.called == []
    assert "no warm-up: ORCH_WARM_UP is off" in caplog.text


def test_another_value_of_the_setting_is_an_error() -> None:
    with pytest.raises(ValueError, match="ORCH_WARM_UP is 'no', must be on or off"):
        register.warms_up({"ORCH_WARM_UP": "no"})


async def test_workers_of_another_extension_are_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = Core()
    await register.warm_up(client_of(core, extension="theirs.Extension"))
    assert core.called == []
    assert "no warm-up: another worker extension" in caplog.text


async def test_runner_that_warms_up_itself_is_left_alone() -> None:
    core = Core()
    await register.warm_up(client_of(core, second_runner=True))
    assert core.called == []


async def test_failure_of_a_worker_is_logged_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await register.warm_up(client_of(Core(error=Exception("no compiler"))))
    assert "the warm-up failed" in caplog.text
    assert "no compiler" in caplog.text


async def test_with_graphs_the_start_goes_on_after_a_tenth_of_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(register._process, "started_s", time.monotonic())
    await register.warm_up(client_of(Core(endless=True), eager=False))
    assert "a tenth of the start" in caplog.text


async def test_without_graphs_the_start_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register._process, "started_s", time.monotonic())
    core = Core(endless=True)
    warming_up = asyncio.create_task(register.warm_up(client_of(core)))
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert core.called == ["orch_warm_up"]
    assert not warming_up.done()
    warming_up.cancel()
    await asyncio.gather(warming_up, return_exceptions=True)
