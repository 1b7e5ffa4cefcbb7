"""Which requests a run sends, and where to, and which runs are refused before anything is asked."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.api.options import run_digest
from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.load.capabilities import served_model, vocabulary
from orch_sidecar.tools.bench.load.endpoint import Endpoint, EndpointError
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.result import Status, row_of
from orch_sidecar.tools.facts.tables.row import Label
from tests.integration.bench.measuring import CLOSED, OFFLINE, POISSON, SINGLE, measured, url_of
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.usefixtures("fast_reports", "decoding")

TYPED = {"engine": "vLLM 0.32.0", "precision": "BF16", "gpu": "H100", "gpu_count": 1}


async def test_every_request_names_its_scenario_and_the_secret_of_its_run(
    engine: ScriptedEngine,
) -> None:
    """The result has its digest, and no request is ever coalesced."""
    result = await measured(engine.url, replace(CLOSED, warm_up_requests=3))
    warm_up, rest = engine.generating[:3], engine.generating[3:]
    assert {each.header("x-orch-scenario") for each in warm_up} == {f"{result.id}.warmup"}
    assert {each.header("x-orch-scenario") for each in rest} == {result.id}
    assert {each.header("x-orch-no-coalesce") for each in engine.generating} == {"true"}
    assert result.counts.sent == len(rest) == 24
    prompts = [tuple(each.json()["prompt"]) for each in engine.generating]
    assert len(set(prompts)) == len(prompts)
    [secret] = {each.header("x-orch-run") for each in engine.generating}
    assert secret is not None
    assert re.fullmatch("[0-9a-f]{32}", secret)
    assert result.run == run_digest(secret)
    assert secret not in result.model_dump_json()
    second = await measured(engine.url, CLOSED)
    assert second.run != result.run


async def test_prefix_cache_is_separate_for_each_run(engine: ScriptedEngine) -> None:
    scenario = replace(CLOSED, warm_up_requests=2, least_requests=4)
    first = await measured(engine.url, scenario)
    second = await measured(engine.url, scenario)
    salts = [each.json()["cache_salt"] for each in engine.generating]
    assert len(set(salts)) == 4, "a warm-up and a measurement each"
    assert first.scenario.cache_salt in salts
    assert second.scenario.cache_salt in salts
    bodies = [each.json()["prompt"] for each in engine.generating]
    assert bodies[:6] == bodies[6:], "the same seed asks the same"


async def test_endpoint_that_is_not_vllm_gets_none_of_its_fields(engine: ScriptedEngine) -> None:
    result = await measured(engine.url, CLOSED, ignore_eos=False)
    body = engine.generating[0].json()
    assert not {"cache_salt", "ignore_eos", "min_tokens"} & set(body)
    assert result.scenario.cache_salt is None


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (404, {"error": "not found"}),
        (401, {"error": {"message": "no key", "code": 401}}),
        (503, {}),
        (200, {"status": "ok"}),
        (200, ["a page for every path"]),
    ],
)
async def test_silent_endpoint_is_unverified_and_its_row_to_be_confirmed(
    engine: ScriptedEngine, status: int, answer: Any
) -> None:
    """Whatever it answers to what it does not know."""
    engine.pages["/v1/capabilities"] = lambda page: page.json(answer, status)
    result = await measured(engine.url, CLOSED)
    assert result.status is Status.UNVERIFIED
    assert result.engine.engine is None
    with pytest.raises(ValueError, match="give --engine, --precision, --gpu, --gpu-count"):
        row_of(result)
    typed = await measured(engine.url, CLOSED, given=TYPED)
    assert typed.engine.given == ["engine", "precision", "gpu", "gpu_count"]
    assert row_of(typed).measurement_type is Label.TO_BE_CONFIRMED


@pytest.mark.parametrize(
    ("scenario", "more", "why"),
    [
        (SINGLE, {}, "single_stream needs a pool that reports"),
        (CLOSED, {"for_row": True}, "give --engine"),
    ],
)
async def test_what_a_silent_endpoint_cannot_be_is_rejected_before_anything_is_sent(
    engine: ScriptedEngine, scenario: Scenario, more: dict[str, Any], why: str
) -> None:
    with pytest.raises(Unavailable, match=why):
        await measured(engine.url, scenario, **more)
    assert engine.generating == []


@pytest.mark.parametrize(
    ("scenario", "more", "both"),
    [
        (SINGLE, {}, "a measurement of it cannot be single_stream"),
        (OFFLINE, {}, "a measurement of it cannot be offline"),
        (
            CLOSED,
            {"given": {"gpu": "NVIDIA H100", "gpu_count": 8}},
            "--gpu 'NVIDIA H100' contradicts the engine, which reports 'CPU (scripted)'",
        ),
        (
            CLOSED,
            {"given": {"model_id": "org/70B"}},
            "--model-id 'org/70B': the engine serves tiny",
        ),
        (CLOSED, {"model": "huge"}, "the pool does not serve the model 'huge', but tiny"),
    ],
)
async def test_claim_that_the_pool_contradicts_is_rejected_before_anything_is_sent(
    engine: ScriptedEngine, cloud: Running, scenario: Scenario, more: dict[str, Any], both: str
) -> None:
    with pytest.raises(Unavailable, match=re.escape(both)):
        await measured(url_of(cloud), scenario, **more)
    assert engine.generating == []


async def test_every_name_that_is_served_there_can_be_measured(
    engine: ScriptedEngine, cloud: Running
) -> None:
    engine.engine_state.set_models(("tiny", "alias", "sql"))
    await eventually(lambda: "sql" in (cloud.pool.watcher.models or ()))
    for model in ("alias", "sql"):
        result = await measured(url_of(cloud), CLOSED, model=model)
        assert result.status is not Status.INVALID
    assert {request.json()["model"] for request in engine.generating} == {"alias", "sql"}


async def test_pool_that_is_not_ready_is_rejected(home: Running, at_home: ScriptedEngine) -> None:
    await at_home.stop()
    await eventually(lambda: not home.pool.watcher.ready)
    with pytest.raises(Unavailable, match="the pool 'home' is "):
        await measured(url_of(home), SINGLE)


async def test_warm_up_without_an_answer_ends_it(engine: ScriptedEngine) -> None:
    engine.api_key = "sk"
    with pytest.raises(Unavailable, match="no request of the warm-up was answered: status 401"):
        await measured(engine.url, replace(CLOSED, warm_up_requests=2))
    engine.api_key = None
    engine.pages["/other/v1/completions"] = lambda page: page.json({"detail": "Not Found"}, 404)
    with pytest.raises(Unavailable, match="no request of the warm-up was answered: status 404"):
        await measured(f"{engine.url}/other", replace(CLOSED, warm_up_requests=1))


@pytest.mark.parametrize(
    ("answer", "kind", "why"),
    [
        ({"tokens": [*range(15)] * 3}, ValueError, "have 15 token ids"),
        ({"tokens": [*range(30), "a"]}, ValueError, "'a' is no token id"),
        ({"tokens": [*range(30), -1]}, ValueError, "-1 is no token id"),
        ({"tokens": [*range(30), True]}, ValueError, "True is no token id"),
        ({"ids": [1]}, EndpointError, "/tokenize returned no list of tokens"),
        (None, EndpointError, "/tokenize does not exist"),
    ],
)
async def test_tokenizer_that_has_no_prompts_for_us_is_named(
    engine: ScriptedEngine, answer: Any, kind: type[Exception], why: str
) -> None:
    engine.pages["/tokenize"] = lambda page: page.json(answer, 200 if answer else 404)
    with pytest.raises(kind, match=f"{why}.*, give --prompts"):
        await vocabulary(Endpoint.of(engine.url), "tiny")


async def test_model_and_vocabulary_are_asked_for(engine: ScriptedEngine) -> None:
    tokens = [*range(120, 100, -1), 105, 110]
    engine.pages["/tokenize"] = lambda page: page.json({"tokens": tokens})
    endpoint = Endpoint.of(engine.url)
    assert await vocabulary(endpoint, "tiny") == tuple(range(101, 121)), "each once"
    assert await served_model(endpoint) == "tiny"
    engine.pages["/v1/capabilities"] = lambda page: page.json({})
    listed: list[Any] = [{"id": "alias"}]
    engine.pages["/v1/models"] = lambda page: page.json({"data": listed})
    assert await served_model(endpoint) == "alias"
    listed.clear()
    with pytest.raises(EndpointError, match="/v1/models lists no model: choose one with --model"):
        await served_model(endpoint)


async def test_schedule_without_end_is_rejected_before_anything_is_sent(
    engine: ScriptedEngine, cloud: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.tools.bench.load.scenario.MAX_REQUESTS", 1000)
    with pytest.raises(ValueError, match="is too long"):
        await measured(url_of(cloud), replace(POISSON, rate_per_s=1e9, least_seconds=600.0))
    assert engine.generating == []
