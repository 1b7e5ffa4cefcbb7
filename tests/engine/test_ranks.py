"""Two ranks of one model by external load balancing, each an engine of its own, and one sidecar."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.tools.local.stack import Stack, free_port
from orch_sidecar.tools.local.up import tiny_model
from tests.engine import cpu_ranks, moe_model
from tests.engine.clients import body, post, session
from tests.engine.conftest import make_plan
from tests.engine.sidecars import all_ready, sidecar, states
from tests.patience import READY_WITHIN_S

# Two engines start at a time, with five processes more than one has: over a minute.
pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
RANKS, SLOTS = 2, 3
POOLS = [f"rank-{rank}" for rank in range(RANKS)]
COUNTS = ("requests_total", "steps_total", "steps_by_batch", "generated_tokens_total")


@dataclass
class Ranks:
    """The engines, and the URL of the sidecar in front of them."""

    engines: list[Stack]
    url: str


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    directory = tmp_path_factory.mktemp("ranks")
    moe_model.make(directory / "model", tiny_model())
    cpu_ranks.install(directory / "site")
    given = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, (str(directory / "site"), str(ROOT), given)))
    of_both = f"--load-format dummy --data-parallel-size {RANKS} --data-parallel-rpc-port"
    common = (*of_both.split(), str(free_port()))
    engines: list[Stack] = []
    with ExitStack() as parts:
        for rank, name in enumerate(POOLS):
            plan = make_plan("cloud", SLOTS, directory / name, {"PYTHONPATH": path}, core=rank)
            own = (*common, "--data-parallel-rank", str(rank))
            arguments = (*plan.engine_arguments, *own)
            plan = replace(plan, model=str(directory / "model"), engine_arguments=arguments)
            engine = Stack(plan)
            parts.callback(engine.stop)
            engine.start_engine()
            engines.append(engine)
        pools = [
            {"name": name, "url": engine.engine_url, "profile": "cloud"}
            for name, engine in zip(POOLS, engines, strict=True)
        ]
        url = parts.enter_context(sidecar(directory / "sidecar.log", *pools))
        yield Ranks(engines, url)


async def ready(ranks: Ranks) -> dict[str, dict[str, Any]]:
    """The states of the ranks, once both are ready."""
    async with session() as http:
        await all_ready(http, ranks.url, READY_WITHIN_S)
        return await states(http, ranks.url)


async def test_each_rank_reports_its_own_slots_and_which_rank_it_is(ranks: Ranks) -> None:
    found = await ready(ranks)
    assert [found[name]["features"]["data_parallel_rank"] for name in POOLS] == [0, 1]
    assert len({entry["epoch"] for entry in found.values()}) == RANKS
    for entry in found.values():
        assert (entry["slots_total"], entry["measurement_type"]) == (SLOTS, "batched_online")
        assert entry["conditions"]["data_parallel"] == RANKS
        # Both are read from the rank's own engine core and workers.
        assert entry["conditions"]["attention_backend"] == "CPU_ATTN"
        assert entry["kv_blocks_total"] == 299


async def test_requests_go_to_both_ranks_and_neither_exceeds_its_slots(ranks: Ranks) -> None:
    before = await ready(ranks)
    most = dict.fromkeys(POOLS, 0)
    async with session() as http:
        request = body("chat", 48, stream=True)
        answers = [asyncio.create_task(post(http, ranks.url, "chat", request)) for _ in range(16)]
        while not all(answer.done() for answer in answers):
            for name, entry in (await states(http, ranks.url)).items():
                most[name] = max(most[name], entry["leased"] + entry["foreign"])
            await asyncio.sleep(0.05)
        for answer in answers:
            seen = await answer
            assert (seen.status, seen.error) == (200, None)
            assert seen.data.rstrip().endswith(b"[DONE]")
        after = await states(http, ranks.url)
    counts = "requests_total"
    served = {name: after[name][counts] - before[name][counts] for name in POOLS}
    assert sum(served.values()) == len(answers)
    assert min(served.values()) >= SLOTS, served
    assert most == dict.fromkeys(POOLS, SLOTS)
    for entry in after.values():
        assert entry["peak"] == SLOTS
        assert entry["oversubscription_violations_total"] == 0
        assert set(entry["steps_by_batch"]) <= {"1", "2", "3"}


async def settled(ranks: Ranks) -> dict[str, dict[str, Any]]:
    """The states of idle ranks, once nothing is left to be reported: counters come each second."""
    async with session() as http:
        before: list[object] = []
        while True:
            found = await states(http, ranks.url)
            counts = [found[name][count] for name in POOLS for count in COUNTS]
            if counts == before:
                return found
            before = counts
            await asyncio.sleep(1.5)


async def test_rank_without_requests_steps_along_and_counts_none_of_it(ranks: Ranks) -> None:
    """Its steps are of no sequence. Which rank serves is not for the client to say, but by pool."""
    await ready(ranks)
    before = await settled(ranks)
    async with session() as http:
        only = {"X-Orch-Pool": "rank-1", "X-Data-Parallel-Rank": "0"}
        request = body("chat", 64, stream=False)
        answers = await asyncio.gather(
            *(post(http, ranks.url, "chat", request, only) for _ in range(2))
        )
        assert [seen.status for seen in answers] == [200, 200]
    after = await settled(ranks)
    for count in COUNTS:
        assert after["rank-0"][count] == before["rank-0"][count]
    generated = "generated_tokens_total"
    assert after["rank-1"][generated] - before["rank-1"][generated] == 2 * 64
    assert after["rank-0"]["state"] == "ready"
