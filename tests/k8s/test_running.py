"""The overlay k8s/overlays/cpu, run: real engines behind the manifests' own sidecars.

The tests go on from each other's cluster, in the order in which they stand: a start of two engines
takes most of a minute.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from orch_sidecar.tools.local.check import ReceivedSpan
from tests.k8s.deployed import NAMESPACE, Deployed, deployed
from tests.k8s.runner.events import Event, What
from tests.patience import HANG_S

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    state: Path = tmp_path_factory.mktemp("cluster")
    with deployed(state) as cluster:
        yield cluster


def body(there: Deployed, tokens: int, **more: Any) -> dict[str, Any]:
    """A chat request that generates exactly so many tokens."""
    messages = [{"role": "user", "content": "Who takes the free slot?"}]
    return {
        "model": there.model, "messages": messages, "max_tokens": tokens, "ignore_eos": True,
        "temperature": 1.0, **more,
    }  # fmt: skip


def session(there: Deployed) -> aiohttp.ClientSession:
    """A client with the key of the Secret."""
    return aiohttp.ClientSession(headers={"Authorization": f"Bearer {there.key}"})


def test_client_is_served_by_the_pool_that_its_request_is_for(there: Deployed) -> None:
    client = openai.OpenAI(base_url=f"{there.url}/v1", api_key=there.key, max_retries=0)
    asks = {"X-Orch-Measurement-Type": "single_stream"}
    for headers, measured in ((asks, "single_stream"), ({}, "batched_online")):
        for _ in range(3):
            answer = client.chat.completions.with_raw_response.create(
                model=there.model,
                messages=[{"role": "user", "content": "Hello"}],
                max_tokens=8,
                extra_headers=headers,
                extra_body={"ignore_eos": True},
            )
            assert answer.headers["X-Measurement-Type"] == measured
            usage = answer.parse().usage
            assert usage is not None
            assert usage.completion_tokens == 8
    client.close()


def test_client_without_a_key_of_the_secret_is_refused(there: Deployed) -> None:
    stranger = openai.OpenAI(base_url=f"{there.url}/v1", api_key="orch-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    stranger.close()


def test_trace_arrives_in_jaegers_place_with_every_tier_and_names_the_pod(
    there: Deployed,
) -> None:
    trace_id = secrets.token_hex(16)
    parent = f"00-{trace_id}-{secrets.token_hex(8)}-01"
    headers = {"traceparent": parent, "X-Orch-Pool": "home"}

    async def ask() -> int:
        async with session(there) as http:
            url = there.url + CHAT
            async with http.post(url, json=body(there, 8), headers=headers) as answer:
                await answer.read()
                return answer.status

    assert asyncio.run(ask()) == 200
    there.cluster.wait(lambda: len(there.trace(trace_id)) >= 7, HANG_S)
    spans = there.trace(trace_id)
    [engine] = [span for span in spans if span.name == "llm_request"]
    assert engine.attributes["measurement_type"] == "single_stream"
    assert engine.attributes["orch.batch_size.max"] == 1
    way = way_up(engine, spans)
    assert [span.service for span in way] == ["vllm"] + 4 * ["orch-sidecar"]
    pods = {span.resource["k8s.pod.name"] for span in way}
    [home] = there.pods("orch-home")
    entries = {pod.name for pod in there.pods("orch-entry")}
    assert home.name in pods
    assert len(pods & entries) == 1
    assert len(pods) == 2
    assert {span.resource["k8s.namespace.name"] for span in spans} == {NAMESPACE}


def way_up(span: ReceivedSpan, spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
    """The span and its ancestors among these."""
    by_id = {each.span_id: each for each in spans}
    way = [span]
    while (above := by_id.get(way[-1].parent_id)) is not None:
        way.append(above)
    return way


def test_two_entries_never_put_two_sequences_into_the_engine_with_one_slot(
    there: Deployed,
) -> None:
    entries = there.pods("orch-entry")
    [home] = there.pods("orch-home")
    assert len(entries) == 2
    before = there.engine(home)

    async def ask(http: aiohttp.ClientSession, url: str) -> tuple[int, str]:
        headers = {"X-Orch-Pool": "home"}
        async with http.post(url + CHAT, json=body(there, 6), headers=headers) as answer:
            return answer.status, str((await answer.json()).get("error"))

    async def hammer() -> list[tuple[int, str]]:
        async with session(there) as http:
            urls = [f"http://{pod.ip}:8080" for pod in entries]
            return await asyncio.gather(*(ask(http, url) for url in urls for _ in range(20)))

    answers = asyncio.run(hammer())
    assert [status for status, _ in answers] == 40 * [200], answers
    served = before["requests_total"] + 40  # reported with the engine's next heartbeat
    there.cluster.wait(lambda: there.engine(home)["requests_total"] >= served, HANG_S)
    after = there.engine(home)
    assert (after["peak"], after["slots_total"]) == (1, 1)
    assert after["oversubscription_violations_total"] == 0
    assert set(after["steps_by_batch"]) == {"1"}


async def delete_mid_stream(there: Deployed) -> tuple[str, bytes, int] | None:
    """Deletes the pod of cloud that streams, with none in its place.

    Returns the pod, the answer, and the status of another request that was sent meanwhile. None:
    the answer was over before that.
    """
    pods = there.pods("orch-cloud")
    async with session(there) as http:
        asked = body(there, 500, stream=True)
        headers = {"X-Orch-Pool": "cloud"}
        async with http.post(there.url + CHAT, json=asked, headers=headers) as answer:
            assert answer.status == 200
            data = await answer.content.readany()
            leased = [pod.name for pod in pods if there.engine(pod)["leased"]]
            if not leased:
                return None
            [busy] = leased
            there.cluster.delete_pod(busy)
            there.cluster.scale("orch-cloud", len(pods) - 1)
            there.cluster.wait(
                lambda: any(
                    event.pod == busy and event.what is What.PRE_STOP_BEGAN
                    for event in there.cluster.events
                ),
                HANG_S,
            )
            async with http.post(there.url + CHAT, json=body(there, 4)) as other:
                status = other.status
            async for more in answer.content.iter_any():
                data += more
            return busy, data, status


def check_left_in_order(there: Deployed) -> int:
    """Deletes a pod mid-stream: the stream is whole, and nothing was killed.

    Returns the status of another request that was sent meanwhile.
    """
    # A client that is stopped for a while learns of the beginning after the end.
    tries = (asyncio.run(delete_mid_stream(there)) for _ in range(5))
    busy, data, status = next(tried for tried in tries if tried is not None)
    assert data.endswith(b"data: [DONE]\n\n")
    tokens = [json.loads(line[6:]) for line in data.split(b"\n\n") if line.startswith(b"data: {")]
    assert "error" not in tokens[-1]
    assert tokens[-1]["choices"][0]["finish_reason"] == "length"
    there.cluster.wait(lambda: busy not in {pod.name for pod in there.pods("orch-cloud")}, HANG_S)
    order = [
        (event.container, event.what)
        for event in there.cluster.events
        if event.pod == busy and leaving(event)
    ]
    assert order == [
        ("vllm", What.PRE_STOP_BEGAN),
        ("vllm", What.PRE_STOP_ENDED),
        ("vllm", What.TERM),
        ("vllm", What.EXITED),
        ("sidecar", What.TERM),
        ("sidecar", What.EXITED),
    ], "nothing was killed, and the sidecar outlived its engine"
    return status


@pytest.mark.long
def test_new_pod_takes_load_and_others_are_served_while_one_leaves(there: Deployed) -> None:
    [old] = there.pods("orch-cloud")
    there.cluster.scale("orch-cloud", 2)
    there.wait_ready("orch-cloud", 2)
    [new] = [pod for pod in there.pods("orch-cloud") if pod.name != old.name]
    ready_at = time.monotonic()

    async def ask(http: aiohttp.ClientSession) -> int:
        async with http.post(there.url + CHAT, json=body(there, 32)) as answer:
            await answer.read()
            return answer.status

    async def load() -> set[int]:
        statuses = set()
        async with session(there) as http:
            while not there.engine(new)["requests_total"] and time.monotonic() < ready_at + 10:
                statuses |= set(await asyncio.gather(*(ask(http) for _ in range(12))))
        return statuses

    assert asyncio.run(load()) == {200}
    assert there.engine(new)["requests_total"]
    for pod in (old, new):
        assert there.engine(pod)["peak"] <= 8
    assert check_left_in_order(there) == 200, "by the pod that stays"


def test_pod_that_is_deleted_mid_stream_finishes_it_and_leaves_in_order(there: Deployed) -> None:
    """The last test of this file: no engine of cloud is left."""
    check_left_in_order(there)


def leaving(event: Event) -> bool:
    return event.container in ("vllm", "sidecar") and event.what in (
        What.PRE_STOP_BEGAN, What.PRE_STOP_ENDED, What.TERM, What.KILL, What.EXITED,
    )  # fmt: skip
