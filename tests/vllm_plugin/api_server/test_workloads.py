"""The workloads of an engine, derived from its routes."""

from __future__ import annotations

from tests.vllm_plugin.application import Engine
from vllm_plugin.api_server.workloads import workloads_of


def test_workloads_are_those_of_the_routes_in_a_fixed_order() -> None:
    paths = ["/v1/chat/completions", "/health", "/v1/embeddings", "/v1/completions"]
    assert (
        workloads_of(paths) == workloads_of(reversed(paths)) == ("completion", "chat", "embedding")
    )
    assert workloads_of(["/health"]) == ()


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
