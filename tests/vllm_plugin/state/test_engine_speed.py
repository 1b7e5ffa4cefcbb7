"""The adapters of requests, from vLLM's statistics to the engine's state."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from tests.vllm_plugin.examples import FACTS, report, subscribed
from vllm_plugin.state.engine_speed import NO_LORA, LoraUse, lora_use_of
from vllm_plugin.state.engine_state import EngineState

WITH_LORA = replace(FACTS, features={"max_loras": 2})


def test_adapters_are_named_by_what_their_requests_do() -> None:
    """vLLM counts both for each adapter, of which one is often 0."""
    stats = SimpleNamespace(
        running_lora_adapters={"sql": 2, "chat": 0, "art": 1},
        waiting_lora_adapters={"sql": 0, "chat": 3, "art": 1},
    )
    assert lora_use_of(stats) == LoraUse(("art", "sql"), ("art", "chat"))
    none = SimpleNamespace(running_lora_adapters={}, waiting_lora_adapters={})
    assert lora_use_of(none) is NO_LORA


def test_state_has_the_adapters_and_changes_with_them() -> None:
    engine_state = EngineState(WITH_LORA)
    _, woken = subscribed(engine_state)
    engine_state.set_models(("tiny",), ("sql", "chat"))
    assert engine_state.models == ("tiny", "sql", "chat")
    changes = len(woken)
    use = LoraUse(("sql",), ("chat",))
    engine_state.record(replace(report(), lora=use))
    assert len(woken) == changes + 1
    lora = engine_state.change_fields(None)["lora"]
    assert lora["adapters"] == ["sql", "chat"]
    assert (lora["running"], lora["waiting"]) == (("sql",), ("chat",))
    engine_state.record(replace(report(), lora=use))
    assert len(woken) == changes + 1, "nothing has changed"
    engine_state.record(report())
    assert engine_state.change_fields(None)["lora"]["running"] == ()


def test_engine_without_lora_reports_none() -> None:
    assert "lora" not in EngineState(FACTS).change_fields(None)
