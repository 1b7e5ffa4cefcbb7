"""Ways to earn a label on the real stack without having measured it, and their verdicts.

With requests of others, or without traces; what recordings show is in the tests of `facts`.
Each way is a scenario of its own, sent one after another; the traces of all are judged together.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from orch_sidecar.api.options import run_digest
from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.tables.row import Row
from orch_sidecar.tools.facts.traces.requests import build_traffic
from orch_sidecar.tools.facts.traces.scenarios import group_scenarios
from orch_sidecar.tools.facts.traces.spans import read_file
from orch_sidecar.tools.facts.traces.verdict import judge_scenario
from orch_sidecar.tools.local.stack import Stack
from tests.engine import trace_file
from tests.engine.clients import all_exported, body, post, session
from tests.engine.receivers import HttpReceiver

TOKENS: Final = 12
ROW: Final = "row"  # the verdict on a scenario that earned its label
# Which of the engine's counters shows an untraced request depends on the order of arrival.
UNTRACED: Final = "untraced_requests, untraced_sequences or unseen_traffic"


@dataclass
class Load:
    """Sends the requests of one scenario, and those of others beside it."""

    http: aiohttp.ClientSession
    stack: Stack
    scenario: str
    run: str = field(default_factory=lambda: secrets.token_hex(16))

    async def own(self, **fields: Any) -> None:
        """Sends one request of the scenario."""
        await self.ask(self.stack.url, self.headers, **fields)

    @property
    def headers(self) -> dict[str, str]:
        return {
            "X-Orch-Scenario": self.scenario,
            "X-Orch-Run": self.run,
            "X-Orch-No-Coalesce": "true",
        }

    async def ask(
        self,
        url: str,
        headers: dict[str, str],
        tokens: int = TOKENS,
        **fields: Any,
    ) -> None:
        prompt = f"{secrets.token_hex(4)} is"
        document = body("completions", tokens, stream=True, **{"prompt": prompt, **fields})
        seen = await post(self.http, url, "completions", document, headers)
        assert (seen.error, seen.status) == (None, 200), seen

    async def one_by_one(self, count: int = 5, **fields: Any) -> None:
        for _ in range(count):
            await self.own(**fields)

    async def together(self, count: int = 8, **fields: Any) -> None:
        await asyncio.gather(*(self.own(**fields) for _ in range(count)))


def untraced() -> dict[str, str]:
    """Headers by which a client asks not to be traced."""
    return {"traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00"}


async def honest_single(load: Load) -> None:
    await load.one_by_one()


async def untraced_stranger_through_sidecar(load: Load) -> None:
    await load.one_by_one(2)
    await load.ask(load.stack.url, untraced())
    await load.one_by_one(2)


async def untraced_stranger_at_engine(load: Load) -> None:
    await load.one_by_one(2)
    await load.ask(load.stack.engine_url, untraced())
    await load.one_by_one(2)


async def traced_stranger_at_engine(load: Load) -> None:
    await load.one_by_one(2)
    await load.ask(load.stack.engine_url, {})
    await load.one_by_one(2)


async def own_request_untraced(load: Load) -> None:
    await load.one_by_one(2)
    await load.ask(load.stack.url, load.headers | untraced())
    await load.one_by_one(2)


async def joins_by_name(load: Load) -> None:
    await load.one_by_one(2)
    await load.ask(load.stack.url, {**load.headers, "X-Orch-Run": secrets.token_hex(16)})
    await load.one_by_one(2)


async def honest_batch(load: Load) -> None:
    await load.together(16, tokens=8 * TOKENS)  # long enough to meet on any machine


async def beside(load: Load, *others: Coroutine[Any, Any, None]) -> None:
    """Others beside requests of the scenario, which began before and ends after all of them."""
    await load.together(3)
    await asyncio.gather(*others, load.together(3))
    await load.together(3)


async def untraced_stranger_beside(load: Load) -> None:
    await beside(load, load.ask(load.stack.url, untraced(), tokens=2 * TOKENS))


async def untraced_stranger_beside_at_engine(load: Load) -> None:
    await beside(load, load.ask(load.stack.engine_url, untraced()))


async def half_untraced(load: Load) -> None:
    await beside(load, *(load.ask(load.stack.url, load.headers | untraced()) for _ in range(9)))


async def joined_beside(load: Load) -> None:
    joined = {**load.headers, "X-Orch-Run": secrets.token_hex(16)}
    await beside(load, load.ask(load.stack.url, joined))


async def shared_generation(load: Load) -> None:
    fields = {"X-Orch-Scenario": load.scenario, "X-Orch-Run": load.run}
    same: dict[str, Any] = {"prompt": "The same slot is", "seed": 1, "temperature": 0}
    await asyncio.gather(
        *(load.ask(load.stack.url, fields, tokens=8 * TOKENS, **same) for _ in range(4))
    )


Way = Callable[[Load], Awaitable[None]]

# What is done, and the verdict: ROW, or the reason that must be among the objections.
HOME: Final[dict[str, tuple[Way, str]]] = {
    "honest": (honest_single, ROW),
    "untraced stranger through the sidecar": (untraced_stranger_through_sidecar, UNTRACED),
    "untraced stranger at the engine": (untraced_stranger_at_engine, UNTRACED),
    "traced stranger at the engine": (traced_stranger_at_engine, "other_traffic"),
    "own request untraced": (own_request_untraced, UNTRACED),
    "joined by its name": (joins_by_name, "other_traffic"),
}
CLOUD: Final[dict[str, tuple[Way, str]]] = {
    "honest": (honest_batch, ROW),
    "untraced stranger beside": (untraced_stranger_beside, UNTRACED),
    "untraced stranger at the engine": (untraced_stranger_beside_at_engine, UNTRACED),
    "half of it untraced": (half_untraced, UNTRACED),
    "joined by its name": (joined_beside, "other_traffic"),
    "shared generation": (shared_generation, "coalesced"),
}


async def send_all(stack: Stack, ways: dict[str, tuple[Way, str]]) -> dict[str, str]:
    """Sends each way's load after the other; returns the digest of the run of each."""
    digests = {}
    async with session() as http:
        for name, (way, _) in ways.items():
            load = Load(http, stack, f"false-label-{secrets.token_hex(4)}")
            digests[name] = run_digest(load.run)
            await way(load)
            # Scenarios do not touch: an aborted sequence counts for up to a second.
            await asyncio.sleep(0.1)
    return digests


def verdicts(
    stack: Stack, receiver: HttpReceiver, ways: dict[str, tuple[Way, str]], folder: Path
) -> dict[str, set[str]]:
    """Returns, for each way, the objections to its scenario, or {ROW}."""
    before = len(receiver.exports)
    digests = asyncio.run(send_all(stack, ways))
    asyncio.run(all_exported(stack, receiver))
    traces = folder / "traces.jsonl"
    trace_file.write(traces, receiver.exports[before:])
    names = {digest: name for name, digest in digests.items()}
    judged: dict[str, set[str]] = {name: set() for name in ways}
    traffic = build_traffic(read_file(str(traces), traces.read_bytes()))
    for scenario in group_scenarios(traffic, 60.0):
        if scenario.key.run in names:
            found = judge_scenario(scenario, Source("otlp:traces.jsonl"))
            whys = {ROW} if isinstance(found, Row) else {f"{why}: {of}" for why, of in found}
            judged[names[scenario.key.run]] |= whys
    return judged


@pytest.fixture(scope="module")
def judged() -> dict[str, dict[str, set[str]]]:
    return {}


def require(found: set[str], verdict: str) -> None:
    reasons = {objection.partition(":")[0] for objection in found}
    assert any(reason in verdict for reason in reasons), found
    assert (ROW in reasons) is (verdict == ROW)


@pytest.mark.parametrize("way", HOME)
def test_home(
    home: Stack,
    grpc_receiver: HttpReceiver,
    judged: dict[str, dict[str, set[str]]],
    tmp_path: Path,
    way: str,
) -> None:
    if "home" not in judged:
        judged["home"] = verdicts(home, grpc_receiver, HOME, tmp_path)
    require(judged["home"][way], HOME[way][1])


@pytest.mark.parametrize("way", CLOUD)
def test_cloud(
    cloud: Stack,
    receiver: HttpReceiver,
    judged: dict[str, dict[str, set[str]]],
    tmp_path: Path,
    way: str,
) -> None:
    if "cloud" not in judged:
        judged["cloud"] = verdicts(cloud, receiver, CLOUD, tmp_path)
    require(judged["cloud"][way], CLOUD[way][1])
