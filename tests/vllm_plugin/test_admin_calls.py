"""What operators' calls do to the engine, as it is reported."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import FACTS
from vllm_plugin import admin_calls
from vllm_plugin.admin_calls import AdminCallMiddleware, watch_readiness
from vllm_plugin.engine_state import EngineState

PATHS = {"/pause", "/sleep", "/start_weight_update", "/update_weights", "/finish_weight_update"}


class Operated:
    """An application behind the middleware; its routes answer when they are let."""

    def __init__(self) -> None:
        self.engine_state = EngineState(FACTS)
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.fails = False
        self.asked: list[None] = []
        self.app = AdminCallMiddleware(
            self.answer, self.engine_state, PATHS, lambda: self.asked.append(None)
        )

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.began.set()
        await self.go_on.wait()
        if self.fails:
            raise RuntimeError("the handler failed")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def post(self, path: str, *, fails: bool = False) -> None:
        """A call from begin to end, and the engine's answer that it is awake."""
        self.fails = fails
        self.go_on.set()
        await asyncio.gather(Call(self.app, "POST", path).task, return_exceptions=True)
        self.answered(sleeping=False)

    def answered(self, *, sleeping: bool) -> None:
        self.engine_state.readiness.query_answered(
            self.engine_state.readiness.query_began(), sleeping=sleeping
        )

    @property
    def state(self) -> str:
        return str(self.engine_state.heartbeat_fields()["state"])


@pytest.fixture
async def engine() -> Operated:
    return Operated()


async def test_engine_is_held_up_from_the_begin_of_the_call(engine: Operated) -> None:
    call = Call(engine.app, "POST", "/sleep")
    await engine.began.wait()
    assert engine.state == "asleep"
    assert "POST /wake_up" in engine.engine_state.heartbeat_fields()["message"]
    engine.go_on.set()
    await call.task
    assert engine.asked == [None]
    assert engine.state == "asleep", "until the engine has answered"
    engine.answered(sleeping=True)
    assert engine.state == "asleep"
    engine.answered(sleeping=False)
    assert engine.state == "ready"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/pause"), ("POST", "/wake_up"), ("POST", "/v1/completions")]
)
async def test_other_calls_hold_nothing_up(engine: Operated, method: str, path: str) -> None:
    """Nor does one of a route that this server does not have."""
    call = Call(engine.app, method, path)
    await engine.began.wait()
    assert engine.state == "ready"
    engine.go_on.set()
    await call.task
    assert engine.asked == []


async def test_weights_are_changing_until_their_update_ends(engine: Operated) -> None:
    await engine.post("/start_weight_update", fails=True)
    assert engine.state == "ready", "a start that failed is none"
    await engine.post("/start_weight_update")
    await engine.post("/update_weights")
    assert engine.state == "paused"
    await engine.post("/finish_weight_update", fails=True)
    assert engine.engine_state.heartbeat_fields()["message"].startswith("weights are being updated")
    await engine.post("/finish_weight_update")
    assert engine.state == "ready"


async def test_engine_that_fails_to_answer_is_logged_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin_calls, "ASK_EVERY_S", 0.0)
    engine_state, lives = EngineState(FACTS), [True]

    async def is_sleeping() -> bool:
        if caplog.messages:
            lives.clear()
            return True
        raise RuntimeError("no answer")

    await asyncio.wait_for(
        watch_readiness(engine_state, is_sleeping, lambda: bool(lives), asyncio.Event()), 5
    )
    assert "did not answer whether it is asleep" in caplog.messages[0]
    assert engine_state.heartbeat_fields()["state"] == "paused"


async def test_engine_that_ends_while_it_is_asked_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin_calls, "ASK_EVERY_S", 0.0)
    lives = [True]

    async def is_sleeping() -> bool:
        lives.clear()
        raise RuntimeError("the engine is dead")

    engine_state = EngineState(FACTS)
    await asyncio.wait_for(
        watch_readiness(engine_state, is_sleeping, lambda: bool(lives), asyncio.Event()), 5
    )
    assert caplog.messages == []
