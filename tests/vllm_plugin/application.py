"""An API server's application with the endpoint attached as vLLM attaches it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import FastAPI

from tests.patience import HANG_S
from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import FACTS, US
from vllm_plugin.contracts.kv_cache import KvCache, KvGroup
from vllm_plugin.contracts.lease_protocol import API_VERSION
from vllm_plugin.endpoint import CapabilitiesEndpoint
from vllm_plugin.state.engine_facts import Conditions
from vllm_plugin.state.engine_state import EngineState

LOADED = "0123456789abcdef"
STREAM = f"/v1/capabilities/stream?instance={US}&api_version={API_VERSION}"


async def kv_cache_of(client: EngineClient) -> KvCache:
    """Replaces the query of the engine core."""
    return KvCache(256, (KvGroup(16),))


async def conditions_of_workers(client: EngineClient, conditions: Conditions) -> Conditions:
    """Replaces the calls of the workers."""
    return replace(conditions, attention_backend="FLASH_ATTN", loaded=LOADED)


async def warm_up(client: EngineClient) -> None:
    """Replaces the warm-up of the workers."""
    client.warmed_up += 1


@dataclass
class EngineClient:
    """The part of vLLM's engine client that the endpoint uses."""

    is_running: bool = True
    errored: bool = False
    sleeping: bool = False  # or paused: vLLM does not distinguish them here
    warmed_up: int = 0

    async def is_sleeping(self) -> bool:
        return self.sleeping


@dataclass
class Named:
    """An entry of vLLM's base models."""

    name: str


@dataclass
class Models:
    """vLLM's registry of served models."""

    base_model_paths: list[Named] = field(
        default_factory=lambda: [Named(name) for name in FACTS.models]
    )
    lora_requests: dict[str, object] = field(default_factory=dict)


@dataclass
class Engine:
    """An application with the endpoint attached as vLLM attaches it."""

    engine_state: EngineState = field(default_factory=lambda: EngineState(FACTS))
    app: FastAPI = field(default_factory=FastAPI)
    client: EngineClient = field(default_factory=EngineClient)
    models: Models = field(default_factory=Models)
    calls: list[Call] = field(default_factory=list)

    async def start(self) -> None:
        plugin = CapabilitiesEndpoint(
            lambda: self.engine_state, kv_cache_of, conditions_of_workers, warm_up
        )
        plugin.attach_router(self.app)
        self.app.state.openai_serving_models = self.models
        await plugin.init_state(self.client, self.app.state, None)

    def call(self, method: str, path: str) -> Call:
        self.calls.append(Call(self.app, method, path))
        return self.calls[-1]

    async def stream(self, path: str = STREAM) -> tuple[Call, dict[str, Any]]:
        """Opens a stream, and returns it with its first state."""
        call = self.call("GET", path)
        assert await call.status() == 200
        first = await call.event()
        assert first is not None
        assert first[0] == "state"
        return call, first[1]

    async def stop(self) -> None:
        """Ends all streams."""
        self.client.is_running = False
        await asyncio.wait_for(asyncio.gather(*(call.task for call in self.calls)), HANG_S)
        assert self.engine_state._subscribers == set()
