"""The readiness that is reported while operators pause an engine or put it to sleep.

The routes of vLLM that put sequences into the engine, and those that suspend it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.patience import HANG_S
from tests.vllm_plugin.application import Engine
from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import FACTS
from vllm_plugin.api_server import admin_calls
from vllm_plugin.api_server.admin_calls import AdminCallMiddleware, watch_readiness
from vllm_plugin.api_server.routes import SUSPENDING, generates
from vllm_plugin.state.engine_state import EngineState

PATHS = {"/pause", "/sleep", "/start_weight_update", "/update_weights", "/finish_weight_update"}


class PausableApp:
    """An application behind the middleware, whose routes respond once `go_on` is set."""

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
        """Makes a call, after which the engine answers that it is awake."""
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
async def engine() -> PausableApp:
    return PausableApp()


@pytest.mark.parametrize(("path", "root_path"), [("/sleep", ""), ("/llm/sleep", "/llm")])
async def test_engine_is_not_ready_from_the_beginning_of_the_call(
    engine: PausableApp, path: str, root_path: str
) -> None:
    call = Call(engine.app, "POST", path, root_path=root_path)
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
async def test_other_calls_do_not_suspend_the_engine(
    engine: PausableApp, method: str, path: str
) -> None:
    """Nor does a call of a route that this server does not have."""
    call = Call(engine.app, method, path)
    await engine.began.wait()
    assert engine.state == "ready"
    engine.go_on.set()
    await call.task
    assert engine.asked == []


async def test_engine_is_paused_until_an_update_of_its_weights_ends(engine: PausableApp) -> None:
    await engine.post("/start_weight_update", fails=True)
    assert engine.state == "ready", "the update failed to start"
    await engine.post("/start_weight_update")
    await engine.post("/update_weights")
    assert engine.state == "paused"
    await engine.post("/finish_weight_update", fails=True)
    assert engine.engine_state.heartbeat_fields()["message"].startswith("weights are being updated")
    await engine.post("/finish_weight_update")
    assert engine.state == "ready"


async def test_failed_query_is_logged_and_repeated(
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
        watch_readiness(engine_state, is_sleeping, lambda: bool(lives), asyncio.Event()), HANG_S
    )
    assert "did not answer whether it is asleep" in caplog.messages[0]
    assert engine_state.heartbeat_fields()["state"] == "paused"


async def test_failed_query_of_a_dying_engine_is_not_logged_as_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin_calls, "ASK_EVERY_S", 0.0)
    lives = [True]

    async def is_sleeping() -> bool:
        lives.clear()
        raise RuntimeError("the engine is dead")

    engine_state = EngineState(FACTS)
    await asyncio.wait_for(
        watch_readiness(engine_state, is_sleeping, lambda: bool(lives), asyncio.Event()), HANG_S
    )
    assert caplog.messages == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/responses",
        "/v1/messages", "/inference/v1/generate", "/invocations", "/v1/embeddings", "/unknown",
        "/v1/responses/resp_1/other",
    ],
)  # fmt: skip
def test_post_generates_unless_it_is_known_not_to(path: str) -> None:
    assert generates("POST", path)
    assert not generates("GET", path)


@pytest.mark.parametrize(
    "path",
    [
        *SUSPENDING, "/ping", "/tokenize", "/v1/messages/count_tokens",
        "/v1/chat/completions/render", "/v1/responses/resp_1/cancel", "/abort_requests",
        "/reset_prefix_cache", "/start_profile", "/update_weight_version", "/v1/load_lora_adapter",
    ],
)  # fmt: skip
def test_admin_calls_do_not_generate(path: str) -> None:
    assert not generates("POST", path)


def test_pause_sleep_and_weight_updates_suspend_the_engine() -> None:
    states = {path: reason.state for path, reason in SUSPENDING.items()}
    assert (states["/pause"], states["/sleep"], states["/update_weights"]) == (
        "paused",
        "asleep",
        "paused",
    )


async def test_engine_reports_the_workloads_of_its_routes() -> None:
    engine = Engine()

    @engine.app.post("/v1/completions")
    def completions() -> None:
        raise AssertionError

    await engine.start()
    call = engine.call("GET", "/v1/capabilities")
    await call.status()
    [entry] = (await call.json())["engines"]
    assert (entry["supported_workloads"], entry["rate_limits"]) == (["completion"], {})
