"""An engine that pools, under a profile: embeddings and scores are the engine's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from orch_sidecar.tools.local.stack import Stack, get_json
from tests.engine.clients import engine_state, session, unknown_routes
from tests.engine.conftest import Stacks, make_plan
from tests.patience import HANG_S

# A start of its own: how each of its APIs is read, divided and put together is in the tests of
# `api` and `splitting`, and through a sidecar in tests/integration/test_apis.py.
pytestmark = pytest.mark.long

POOLS = ("--runner", "pooling", "--convert", "embed", "--enforce-eager")
TEXTS = [f"text number {number}" for number in range(50)]


@pytest.fixture
def embed(stacks: Stacks, logs: Path) -> Stack:
    """The tiny model, which embeds what it reads, with 8 slots."""
    plan = make_plan("cloud", 8, logs / "embed")
    arguments = (*POOLS, "--no-enable-prefix-caching")
    return stacks.use("embed", replace(plan, engine_arguments=arguments))


@pytest.fixture
def client(embed: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{embed.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def both(stack: Stack, path: str, body: dict[str, Any]) -> list[Any]:
    """The answers of the sidecar and of its engine."""
    answers = []
    async with session() as http:
        for url in (stack.url, stack.engine_url):
            async with http.post(url + path, json={"model": "tiny"} | body) as response:
                assert response.status == 200, await response.text()
                answers.append(await response.json())
    return answers


def assert_alike(ours: Any, directly: Any) -> None:
    """Equal but for ids, times and what batches do to the last digits of numbers."""
    if isinstance(directly, dict):
        assert ours.keys() == directly.keys()
        for name in ours.keys() - {"id", "created"}:
            assert_alike(ours[name], directly[name])
    elif isinstance(directly, list):
        assert len(ours) == len(directly)
        for one, other in zip(ours, directly, strict=True):
            assert_alike(one, other)
    elif isinstance(directly, float):
        assert ours == pytest.approx(directly, abs=1e-4)
    else:
        assert ours == directly


def test_state_says_what_it_serves_and_no_batch_is_kept_small(embed: Stack) -> None:
    _, document = get_json(f"{embed.url}/v1/capabilities", HANG_S)
    (engine,) = document["engines"]
    assert (engine["measurement_type"], engine["slots_total"]) == ("batched_online", 8)
    assert engine["supported_workloads"] == ["embedding", "pooling", "score", "rerank"]
    assert engine["effective_capacity"] == 8
    assert engine["steps_by_batch"] == {}


def test_openai_client_embeds_more_texts_than_there_are_slots(embed: Stack, client: OpenAI) -> None:
    found = client.embeddings.create(model="tiny", input=TEXTS)
    with OpenAI(base_url=f"{embed.engine_url}/v1", api_key="none") as engine:
        directly = engine.embeddings.create(model="tiny", input=TEXTS)
    assert [each.index for each in found.data] == [*range(50)]
    assert found.usage == directly.usage
    for one, other in zip(found.data, directly.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-4)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "one text"}),
        ("/v1/embeddings", {"input": [[1, 2, 3], [4, 5]], "encoding_format": "float"}),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v2/embed", {"texts": TEXTS[:12], "embedding_types": ["float"]}),
        ("/pooling", {"input": TEXTS[:12]}),
        ("/score", {"queries": "a query", "documents": TEXTS[:3]}),
        ("/v1/rerank", {"query": "a query", "documents": TEXTS[:3], "top_n": 2}),
    ],
)  # fmt: skip
async def test_answers_are_the_engines(embed: Stack, path: str, body: dict[str, Any]) -> None:
    assert_alike(*await both(embed, path, body))


async def test_scores_of_more_texts_than_slots_are_the_engines(embed: Stack) -> None:
    """Its query is read for each part, and counted."""
    body = {"query": "a query", "documents": TEXTS[:20], "top_n": 5}
    ours, directly = await both(embed, "/rerank", body)
    assert_alike(ours["results"], directly["results"])
    assert ours["usage"]["total_tokens"] > directly["usage"]["total_tokens"]


def test_errors_are_the_engines(embed: Stack, client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nobody", input="x")
    with pytest.raises(openai.BadRequestError) as long:
        client.embeddings.create(model="tiny", input=["word " * 5_000] * 9)
    assert "maximum" in long.value.message
    with pytest.raises(openai.APIStatusError) as chat:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}])
    assert chat.value.status_code in (404, 501)


def test_every_route_is_served_or_has_a_reason_not_to_be(embed: Stack) -> None:
    assert unknown_routes(embed) == set()


async def test_nothing_is_above_the_slots(embed: Stack, stacks: Stacks) -> None:
    async with session() as http:
        before = await engine_state(http, embed.url)
        url, bulk = f"{embed.url}/v1/embeddings", {"X-Orch-Class": "bulk"}  # it has no SLO to miss

        async def ask(texts: list[str]) -> int:
            """How many embeddings come. An engine that the machine stops for seconds is stale."""
            document = {"model": "tiny", "input": texts}
            while True:
                async with http.post(url, json=document, headers=bulk) as answer:
                    if answer.status != 503:
                        assert answer.status == 200, await answer.text()
                        return len((await answer.json())["data"])
                await asyncio.sleep(0.5)

        found = await asyncio.gather(*(ask(TEXTS[:number]) for number in range(1, 40, 3)))
        after = await engine_state(http, embed.url)
    assert found == [*range(1, 40, 3)]
    violations = "oversubscription_violations_total"
    assert after[violations] == before[violations]
    assert after["leased"] == 0
    stacks.stop("embed")
