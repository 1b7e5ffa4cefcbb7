"""The names under which an engine serves, as adapters are loaded and unloaded."""

from __future__ import annotations

from tests.vllm_plugin.application import Engine, Models, Named
from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import FACTS, subscribed
from vllm_plugin.endpoint import CHECK_EVERY_S
from vllm_plugin.state.engine_state import EngineState


async def models_of(engine: Engine) -> list[str]:
    call = engine.call("GET", "/v1/capabilities")
    assert await call.status() == 200
    models: list[str] = (await call.json())["engines"][0]["models"]
    return models


async def test_all_names_and_adapters_are_reported_the_base_models_first(engine: Engine) -> None:
    engine.models.base_model_paths.append(Named("gpt"))
    engine.models.lora_requests |= {"sql": object(), "chat": object()}
    assert await models_of(engine) == ["tiny", "alias", "gpt", "sql", "chat"]


async def test_names_that_vllm_starts_with_are_known_before_any_request() -> None:
    engine = Engine(models=Models([Named("a"), Named("b")]))
    await engine.start()
    assert engine.engine_state.models == ("a", "b")


async def test_load_and_unload_of_an_adapter_are_changes_of_the_stream(engine: Engine) -> None:
    def load() -> None:
        engine.models.lora_requests["sql"] = object()

    def unload() -> None:
        del engine.models.lora_requests["sql"]

    engine.app.post("/v1/load_lora_adapter")(load)
    engine.app.post("/v1/unload_lora_adapter")(unload)
    call, first = await engine.stream()
    assert first["models"] == ["tiny", "alias"]
    for path, models in (
        ("/v1/load_lora_adapter", ["tiny", "alias", "sql"]),
        ("/v1/unload_lora_adapter", ["tiny", "alias"]),
    ):
        assert await Call(engine.app, "POST", path).status() == 200
        change = await call.event_named("change")
        assert change.pop("observed_at")
        assert change == {"models": models}
    await engine.stop(call)


async def test_adapter_that_a_resolver_loads_is_noticed_without_a_call(engine: Engine) -> None:
    """Within the interval at which the stream checks whether it must end."""
    assert CHECK_EVERY_S <= 0.5
    call, _ = await engine.stream()
    engine.models.lora_requests["found"] = object()
    assert (await call.event_named("change"))["models"] == ["tiny", "alias", "found"]
    await engine.stop(call)


def test_subscribers_are_woken_only_by_other_names() -> None:
    engine_state = EngineState(FACTS)
    _, woken = subscribed(engine_state)
    engine_state.set_models(FACTS.models)
    assert woken == []
    engine_state.set_models((*FACTS.models, "sql"))
    assert len(woken) == 1
