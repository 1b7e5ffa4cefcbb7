"""Profile cloud on a real engine: streams share the steps, and the labels say how."""

from __future__ import annotations

import asyncio
import statistics
import time

from orch_sidecar.tools.local.check import OtlpReceiver
from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import (
    ATTEMPTS,
    body,
    engine_state,
    post,
    session,
    traceparent,
    until,
)
from tests.engine.counters import check_conditions, check_numbers, check_steps
from tests.engine.counts import check_counts, check_mistakes, check_start
from tests.patience import HANG_S


async def test_eight_at_once_and_the_spans_have_the_batches_that_ran(
    cloud: Stack, receiver: OtlpReceiver
) -> None:
    async with session() as http:
        # On a machine that is busy with other things one may come when another has ended.
        for _ in range(ATTEMPTS):
            traces = [traceparent() for _ in range(8)]
            before = (await engine_state(http, cloud.url))["steps_by_batch"]
            answers = await asyncio.gather(
                *(
                    post(
                        http, cloud.url, "completions", body("completions", 300, stream=True), head
                    )
                    for _, head in traces
                )
            )
            await asyncio.sleep(1.5)  # steps come with a heartbeat
            state = await engine_state(http, cloud.url)
            ran = {
                int(size)
                for size, (count, _) in state["steps_by_batch"].items()
                if count > before.get(size, [0, 0])[0]
            }
            if 8 in ran:
                break
    assert max(ran) == 8
    assert [answer.status for answer in answers] == [200] * 8
    assert state["peak"] <= 8
    largest = set()
    for trace_id, _ in traces:
        spans = await asyncio.to_thread(
            receiver.wait, trace_id, lambda found: len(found) == 4, HANG_S
        )
        labels = next(span for span in spans if span.name == "llm_request").attributes
        assert labels["measurement_type"] == "batched_online"
        assert labels["orch.batching"] is True
        assert labels["orch.slots_total"] == 8
        assert labels["gen_ai.operation.name"] == "text_completion"
        assert labels["gen_ai.request.model"] == "tiny"
        assert labels["gen_ai.usage.output_tokens"] == 300
        assert labels["gen_ai.usage.input_tokens"] == labels["gen_ai.usage.prompt_tokens"]
        assert 1 < labels["orch.batch_size.mean"] <= labels["orch.batch_size.max"]
        largest.add(labels["orch.batch_size.max"])
    assert max(largest) == 8


async def test_one_request_is_one_tree_over_http(cloud: Stack, receiver: OtlpReceiver) -> None:
    trace_id, head = traceparent()
    async with session() as http:
        seen = await post(http, cloud.url, "messages", body("messages", 8, stream=False), head)
    assert seen.status == 200
    spans = await asyncio.to_thread(receiver.wait, trace_id, lambda found: len(found) == 4, HANG_S)
    names = {span.name: span for span in spans}
    server = names["/v1/messages"]
    assert server.parent_id == head["traceparent"].split("-")[2]
    assert names["admission.wait"].parent_id == server.span_id
    assert names["engine.request"].parent_id == server.span_id
    assert names["llm_request"].parent_id == names["engine.request"].span_id
    assert {span.attributes["measurement_type"] for span in spans} == {"batched_online"}
    usage = [
        names[name].attributes["gen_ai.usage.output_tokens"] for name in names if "." not in name
    ]
    assert set(usage) == {8}


async def test_capabilities_answer_while_every_slot_is_busy_and_while_the_engine_prefills(
    cloud: Stack,
) -> None:
    async with session() as http:

        async def fill() -> list[float]:
            """Long prompts in every slot, again and again: a client may miss the first time. Not
            through the sidecar, which on a slow machine refuses what would miss its SLO.
            Returns for how long each of them was in its slot."""
            document = body("completions", 48, stream=True) | {"prompt": [7] * 1900}
            lasted: list[float] = []
            while not enough:
                began = time.monotonic()
                asks = (post(http, cloud.engine_url, "completions", document) for _ in range(8))
                served = await asyncio.gather(*asks)
                assert {seen.status for seen in served} == {200}
                lasted += [seen.last_byte_at - began for seen in served]
            return lasted

        async def full() -> bool:
            return bool((await engine_state(http, cloud.url))["slots_free"] == 0)

        enough = False
        busy = asyncio.create_task(fill())
        await until(full)
        took = []
        for url in (cloud.url, cloud.engine_url) * 10:
            started = time.monotonic()
            await engine_state(http, url)
            took.append(time.monotonic() - started)
        enough = True
        # Both share what cores there are. What waits for a slot waits as long as a request.
        assert statistics.median(took) < statistics.median(await busy)


async def test_a_client_that_leaves_during_prefill_frees_its_slot(cloud: Stack) -> None:
    async with session() as http:

        async def come() -> None:
            """Again and again: a client that is stopped may miss the first."""
            while True:
                document = body("completions", 100, stream=False) | {"prompt": [7] * 1900}
                await post(http, cloud.url, "completions", document)

        async def leased() -> bool:
            return bool((await engine_state(http, cloud.url))["leased"])

        async def free() -> bool:
            state = await engine_state(http, cloud.url)
            return bool(state["slots_free"] == 8 and state["running"] == 0)

        leaving = asyncio.create_task(come())
        await until(leased)
        leaving.cancel()
        await until(free)


async def test_a_json_schema_and_a_tool_pass_through(cloud: Stack) -> None:
    schema = {
        "type": "object",
        "properties": {"slots": {"type": "integer"}},
        "required": ["slots"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    document = body("chat", 60, stream=False) | {"response_format": form, "ignore_eos": False}
    async with session() as http:
        seen = await post(http, cloud.url, "chat", document)
    assert seen.status == 200
    assert b'\\"slots\\"' in seen.data


async def test_foreign_traffic_is_counted_and_takes_slots(cloud: Stack) -> None:
    async with session() as http:

        async def pass_by() -> None:
            """Again and again: a starved engine can have reported a whole answer at once."""
            while True:
                await post(http, cloud.engine_url, "chat", body("chat", 1500, stream=True, n=4))

        async def counted() -> bool:
            state = await engine_state(http, cloud.url)
            return bool(state["foreign"] == 4 and state["slots_free"] == 4)

        async def gone() -> bool:
            return bool((await engine_state(http, cloud.url))["foreign"] == 0)

        passing = asyncio.create_task(pass_by())
        try:
            await until(counted)
        finally:
            passing.cancel()
        await until(gone)


async def test_counts_that_clients_receive_are_on_their_spans_and_in_the_metrics(
    cloud: Stack, receiver: OtlpReceiver
) -> None:
    await check_counts(cloud, receiver, rounds=3)


async def test_requests_without_spans_leave_a_gap_in_the_numbers(
    cloud: Stack, receiver: OtlpReceiver
) -> None:
    await check_numbers(cloud, receiver)


async def test_sequences_of_a_window_account_for_its_decode_steps(
    cloud: Stack, receiver: OtlpReceiver
) -> None:
    await check_steps(cloud, receiver)


async def test_conditions_are_on_spans_and_in_the_capabilities(
    cloud: Stack, receiver: OtlpReceiver
) -> None:
    await check_conditions(cloud, receiver, prefix_caching="off")


async def test_what_the_engine_refuses_is_the_clients_mistake(cloud: Stack) -> None:
    await check_mistakes(cloud)


def test_spans_of_the_start_are_labelled_batched_online(
    cloud: Stack, receiver: OtlpReceiver
) -> None:
    check_start(receiver, "batched_online")
