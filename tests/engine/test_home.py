"""Profile home on a real engine: one sequence at a time, and every span says so."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from orch_sidecar.tools.local.stack import Stack, get_json
from tests.engine.clients import (
    ATTEMPTS,
    Seen,
    body,
    engine_state,
    post,
    session,
    traceparent,
    until,
)
from tests.engine.counters import check_conditions, check_prefix_cache
from tests.engine.counts import check_start
from tests.engine.receivers import GrpcReceiver
from tests.engine.storm import metric
from tests.patience import HANG_S
from vllm_plugin.enforcement.vllm_names import HOOKS


def engine_log(stack: Stack) -> str:
    assert stack.engine is not None
    return stack.engine.log.read_text(errors="replace")


def test_without_a_flag_there_is_one_slot(home: Stack) -> None:
    _, document = get_json(f"{home.url}/v1/capabilities", HANG_S)
    (engine,) = document["engines"]
    assert (engine["profile"], engine["measurement_type"]) == ("home", "single_stream")
    assert engine["batching"] is False
    assert engine["slots_total"] == 1


def test_a_list_of_plugins_that_does_not_name_us_still_loads_us(home: Stack) -> None:
    assert home.plan.environ["VLLM_PLUGINS"] == "lora_filesystem_resolver"
    assert "Loaded endpoint plugin orch" in engine_log(home)


def test_the_self_test_names_version_and_hooks(home: Stack) -> None:
    log = engine_log(home)
    assert f"orch: vLLM 0.32.0: {len(HOOKS)} of {len(HOOKS)} hooks found" in log
    assert "found engine/arg_utils.py:EngineArgs.create_engine_config (enforcement)" in log


def test_steps_leave_no_line_in_the_log(home: Stack) -> None:
    assert "Iteration(" not in engine_log(home)


async def test_the_second_stream_begins_after_the_first_has_ended(home: Stack) -> None:
    async with session() as http:
        started = asyncio.Event()
        first = asyncio.create_task(
            post(http, home.url, "chat", body("chat", 64, stream=True), on_data=started.set)
        )
        await started.wait()
        second = await post(http, home.url, "chat", body("chat", 4, stream=True))
        assert second.first_byte_at > (await first).last_byte_at


@pytest.mark.parametrize(
    ("directly", "stream", "moments_s"),
    [
        (False, True, (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2)),
        (False, False, (0.0, 0.001, 0.003, 0.01, 0.03, 0.1)),
        (True, True, (0.002, 0.02, 0.1)),
    ],
    ids=["stream", "whole", "by no sidecar"],
)
async def test_slot_is_granted_within_a_second_after_an_abort_at_any_moment(
    home: Stack, directly: bool, stream: bool, moments_s: tuple[float, ...]
) -> None:
    """Before it is in the engine, during its prefill, while it decodes. A report that counts it
    still must not keep the only slot for longer."""
    waits_ms = []
    async with session() as http:
        for moment_s in moments_s:
            url = home.engine_url if directly else home.url
            for _ in range(ATTEMPTS):  # a machine may stop the engine for a second
                aborted = asyncio.create_task(
                    post(http, url, "completions", body("completions", 400, stream=stream))
                )
                await asyncio.sleep(moment_s)
                aborted.cancel()
                await asyncio.gather(aborted, return_exceptions=True)
                short = body("completions", 2, stream=True)
                seen = await post(http, home.url, "completions", short)
                assert seen.status == 200
                if (wait_ms := queued_ms(seen)) < 1000:
                    break
            waits_ms.append(wait_ms)
        state = await engine_state(http, home.url)
    assert state["peak"] == 1
    assert max(waits_ms) < 1000, f"each the shortest of up to {ATTEMPTS} waits: {waits_ms}"


def queued_ms(seen: Seen) -> float:
    """For how long the sidecar says that a request waited for its slot."""
    match = re.search(r"queue;dur=([\d.]+)", seen.headers["Server-Timing"])
    assert match is not None, seen.headers
    return float(match[1])


async def test_spans_of_five_clients_are_all_labelled_single_stream(
    home: Stack, grpc_receiver: GrpcReceiver
) -> None:
    traces = [traceparent() for _ in range(5)]
    async with session() as http:
        answers = await asyncio.gather(
            *(
                post(http, home.url, "completions", body("completions", 32, stream=False), head)
                for _, head in traces
            )
        )

        async def reported() -> bool:
            return bool((await engine_state(http, home.url))["steps_by_batch"])

        await until(reported)  # with the next heartbeat
        state = await engine_state(http, home.url)
    assert [answer.status for answer in answers] == [200] * 5
    assert state["peak"] == 1
    assert set(state["steps_by_batch"]) == {"1"}
    for trace_id, _ in traces:
        spans = await asyncio.to_thread(
            grpc_receiver.wait, trace_id, lambda found: len(found) == 4, HANG_S
        )
        names = {span.name: span for span in spans}
        assert set(names) == {
            "/v1/completions",
            "admission.wait",
            "engine.request",
            "llm_request",
        }
        for span in spans:
            assert span.attributes["measurement_type"] == "single_stream"
            assert span.resource["measurement_type"] == "single_stream"
        labels = names["llm_request"].attributes
        assert labels["orch.batch_size.max"] == 1
        assert labels["orch.batch_size.mean"] == 1.0
        # 32 tokens are the prompt's step and 31 of decoding, the last of which is not known yet
        # when the span ends. One that took long on a busy machine is not known as decoding.
        assert labels["orch.engine_steps"] == 31
        assert 0 < labels["orch.steps"] <= 30
        assert labels["orch.batching"] is False
        assert labels["orch.slots_total"] == 1
        assert labels["orch.profile"] == "home"


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.long), True])
async def test_idle_request_gives_its_slot_back_at_once_and_runs_again(
    home: Stack, stream: bool
) -> None:
    """Else the other one would wait for all of its tokens."""
    async with session() as http:
        cuts = await metric(http, home.url, "orch_idle_cuts_total")

        async def runs() -> bool:
            return bool((await engine_state(http, home.url))["running"])

        long = body("chat", 900, stream=stream)
        row = asyncio.create_task(post(http, home.url, "chat", long, {"X-Orch-Class": "idle"}))
        await until(runs)
        urgent = await post(http, home.url, "chat", body("chat", 4, stream=True))
        assert urgent.status == 200
        assert not row.done()
        seen = await row
        assert seen.status == 200
        assert seen.first_byte_at > urgent.last_byte_at, "nothing of it was sent before"
        assert await metric(http, home.url, "orch_idle_cuts_total") == cuts + 1
        if stream:
            assert seen.data.endswith(b"data: [DONE]\n\n")
        else:
            assert json.loads(seen.data)["usage"]["completion_tokens"] == 900


async def test_one_request_is_one_tree_over_grpc(home: Stack, grpc_receiver: GrpcReceiver) -> None:
    trace_id, head = traceparent()
    async with session() as http:
        await post(http, home.url, "chat", body("chat", 8, stream=True), head)
    spans = await asyncio.to_thread(
        grpc_receiver.wait, trace_id, lambda found: len(found) == 4, HANG_S
    )
    names = {span.name: span for span in spans}
    server, wait = names["/v1/chat/completions"], names["admission.wait"]
    engine, llm = names["engine.request"], names["llm_request"]
    assert server.parent_id == head["traceparent"].split("-")[2]
    assert wait.parent_id == engine.parent_id == server.span_id
    assert llm.parent_id == engine.span_id
    assert [s.service for s in (server, wait, engine, llm)] == ["orch-sidecar"] * 3 + ["vllm"]
    assert server.start_ns <= wait.start_ns <= wait.end_ns <= engine.start_ns <= llm.start_ns


async def test_prompt_that_was_sent_before_is_a_hit_of_the_prefix_cache(
    home: Stack, grpc_receiver: GrpcReceiver
) -> None:
    await check_prefix_cache(home, grpc_receiver)
    await check_conditions(home, grpc_receiver, prefix_caching="on")


def test_spans_of_the_start_are_labelled_single_stream(
    home: Stack, grpc_receiver: GrpcReceiver
) -> None:
    check_start(grpc_receiver, "single_stream")
