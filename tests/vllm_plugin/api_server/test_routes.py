"""The routes of vLLM that put sequences into the engine, and those that suspend it."""

from __future__ import annotations

import pytest

from tests.vllm_plugin.application import Engine
from vllm_plugin.api_server.routes import SUSPENDING, generates


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
