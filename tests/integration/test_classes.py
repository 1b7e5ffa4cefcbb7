"""Classes, deadlines and the queue information in responses, through HTTP.

Headers of the Gateway API's inference extension and of llm-d.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import STEP_TIME, ScriptedEngine
from vllm_plugin.contracts.profile import ServiceClass

BULK = [("X-Orch-Class", "bulk")]


@pytest.mark.parametrize(
    ("headers", "body", "priority"),
    [
        ([], {}, "0"),
        (BULK, {}, "1"),
        ([], {"service_tier": "flex"}, "1"),
        ([("X-Vllm-Priority", "-99")], {}, "0"),
    ],
)
async def test_engine_receives_the_class_as_its_priority(
    engine: ScriptedEngine, sidecar: Running, headers: Any, body: dict[str, Any], priority: str
) -> None:
    assert (await (await sidecar.client()).post(CHAT, headers, **body)).status == 200
    [request] = engine.generating
    assert [v for n, v in request.fields if n == "x-vllm-priority"] == [priority]


async def test_engine_that_takes_requests_as_they_come_gets_no_priority(
    engine: ScriptedEngine, start: Start
) -> None:
    engine.slots, engine.profile = 1, "home"
    await engine.restart()
    running = await start(profile="home")
    await (await running.client()).post(CHAT, BULK)
    assert engine.generating[0].header("x-vllm-priority") is None


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_directives_end_at_the_sidecar(
    engine: ScriptedEngine, sidecar: Running, path: str
) -> None:
    headers = [
        ("X-Orch-Class", "bulk"),
        ("x-orch-deadline-ms", "60000"),
        ("X-ORCH-Max-Wait-Ms", "60000"),
        ("X-Orch-Do-Not-Queue", "1"),
        ("X-Orch-Pool", "cloud"),
        ("X-Orch-Measurement-Type", "batched_online"),
        ("X-Orch-No-Coalesce", "1"),
        ("X-Orch-Something-Of-Tomorrow", "1"),
        ("X-Other", "kept"),
    ]
    assert (await (await sidecar.client()).post(path, headers)).status == 200
    [request] = engine.generating
    names = [name for name, _ in request.fields if name.startswith("x-orch-")]
    assert names == ["x-orch-lease", "x-orch-class"], "the sidecar's own"
    assert request.header("x-other") == "kept"


# What is reported.


async def test_position_is_reported_and_an_unknown_start_is_not(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    clients = [await started(sidecar, n=4)]
    await eventually(lambda: held.waiting)
    for number in (1, 2, 3):
        clients.append(await started(sidecar, n=4))
        await eventually(lambda number=number: sidecar.queued == number)  # type: ignore[misc]
    positions = []
    for client in clients:
        await eventually(lambda: held.waiting)
        held.release()
        response = await client.response()
        positions.append(response.header("x-orch-queue-position"))
        predicted = response.header("x-orch-predicted-start-ms")
        assert predicted == ("0" if client is clients[0] else None)
    assert positions == ["0", "0", "1", "2"]  # those ahead of it in the queue


async def test_predicted_start_is_reported_and_compared_with_the_real_one(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    engine.report(step_time=STEP_TIME)
    await eventually(lambda: sidecar.pool.status().admission.limits.measured)
    clock = asyncio.get_running_loop().time
    begin_s = clock()
    busy = await started(sidecar, n=4, max_tokens=20)  # 4 sequences: 14 ms each token
    await eventually(lambda: held.waiting)
    waiting = await started(sidecar, max_tokens=20)
    await eventually(lambda: sidecar.queued == 1)
    ran_ms = 1000 * (clock() - begin_s)
    await asyncio.sleep(0.15)
    held.release()
    await busy.response()
    await eventually(lambda: held.waiting)
    held.release()
    response = await waiting.response()
    assert 200 - ran_ms < int(response.header("x-orch-predicted-start-ms") or "") < 400
    metrics = await sidecar.metrics()
    label = '{class="interactive",measurement_type="batched_online",pool="cloud"}'
    assert metrics[f"orch_prediction_error_ratio_count{label}"] == 1
    assert metrics[f"orch_prediction_error_ratio_sum{label}"] < 3
    assert metrics['orch_step_time{parameter="t0_ms",pool="cloud"}'] == 10
    assert metrics['orch_queue_blocked_by{pool="cloud",reason="slot"}'] == 0


# What is learned.


async def test_prompts_are_measured_by_the_counts_in_answers(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    before = sidecar.pool.prompt_size.bytes_per_token
    client = await sidecar.client()
    for _ in range(5):
        await client.post(CHAT)  # 7 tokens by the engine's count, for some hundred bytes
    assert sidecar.pool.prompt_size.bytes_per_token > before + 0.5


@pytest.mark.parametrize(("path", "stream", "tokens"), [(CHAT, False, 3), (MESSAGES, True, 3)])
async def test_lengths_of_answers_are_learned(
    engine: ScriptedEngine, sidecar: Running, path: str, stream: bool, tokens: int
) -> None:
    client = await sidecar.client()
    for _ in range(40):
        await client.post(path, stream=stream, max_tokens=16)
    sidecar.pool.admission.learn()
    lengths = sidecar.pool.admission.service_times.lengths
    expected = lengths.expected(ServiceClass.INTERACTIVE, 16)
    assert expected is not None
    assert abs(expected - tokens) < 3


KEYS = {"alice": {}, "bob": {}, "gateway": {"gateway": True}}

FAIRNESS = "x-gateway-inference-fairness-id"


Headers = Sequence[tuple[str, str]]


async def answers_of_two_groups(
    sidecar: Running,
    engine: ScriptedEngine,
    held: Held,
    one: Headers = (),
    other: Headers = (),
    answers: int = 48,
) -> tuple[int, int]:
    """How many answers each of two groups of 12 clients gets. All ask again at once, and one
    request has all slots. Those of the first group have a fresh fairness id in each request."""
    clients = [await sidecar.client() for _ in range(24)]
    fresh = itertools.count()

    def ask(number: int) -> None:
        headers = [*other, (FAIRNESS, "other")]
        if number % 2 == 0:
            headers = [*one, (FAIRNESS, f"fresh-{next(fresh)}")]
        clients[number].start(headers=headers, stream=False, seed=number, n=4)

    for number in range(24):
        ask(number)
        await eventually(lambda number=number: sidecar.queued == number)  # type: ignore[misc]
    got = [0, 0]
    for answer in range(answers + 24):
        await eventually(lambda: held.waiting)
        number = engine.generating[-1].json()["seed"]
        held.release()
        assert (await clients[number].response()).status == 200
        if answer < answers:
            got[number % 2] += 1
            ask(number)
            await eventually(lambda: sidecar.queued == 23)
    return got[0], got[1]


async def test_fresh_flows_of_clients_get_no_more_than_others(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    fresh, others = await answers_of_two_groups(sidecar, engine, held)
    assert fresh == others == 24


@pytest.mark.parametrize("by", ["address", "network", "key"])
async def test_flows_count_that_a_gateway_names(
    engine: ScriptedEngine, start: Start, held: Held, ring: KeyRing, by: str
) -> None:
    """It knows its clients: each of these gets as much as the one that has many requests."""
    key: Headers = ()
    if by == "key":
        sidecar, key = await start(api_keys_file=ring.path), [ring.bearer("gateway")]
    else:
        known = ["10.0.0.0/8", "127.0.0.1"] if by == "address" else ["::1", "127.0.0.0/8"]
        sidecar = await start(gateways=known)
    fresh, others = await answers_of_two_groups(sidecar, engine, held, key, key)
    assert fresh > 3 * others
