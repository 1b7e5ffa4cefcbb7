"""Clients that wait for a slot only some milliseconds, and faults raised inside the sidecar.

Both are what tickets and leases have lost their owners to: a timer that is due at the moment in
which it is set, and an exception between the steps that give, hand over and take back a lease.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from orch_sidecar.admission.gate import Ticket
from orch_sidecar.config.installation import build
from tests.integration.client import Aborted, Client
from tests.integration.running import Running
from tests.integration.wire import Answer

TICKET = ("lease", "refuse", "end")
GATE = (
    "reconcile", "engine_reports", "engine_unavailable", "leases_ended", "refuse_queued", "notify",
    "_perform", "_decide",
)  # fmt: skip
CONTROLLER = (
    "arrive", "take_displaced", "requeue", "leave", "release", "dispatch", "next_event",
    "engine_reports", "engine_unavailable", "refuse_queued", "pause", "learn",
)  # fmt: skip
LEDGER = ("abandon",)
FOLLOWER = ("_event", "_report")


class Injected(Exception):
    """A fault that a test raises where the sidecar does not expect one."""


async def short_work(answer: Answer) -> None:
    """Takes its slot for about 5 ms."""
    await asyncio.sleep(random.uniform(0.001, 0.009))
    answer.json({})


async def short_waits(port: int, clients: int, seconds: float) -> Counter[int]:
    """The load: `clients` at once, one request after another. Returns how often each status came.

    0 counts connections that were closed instead of an answer.
    """
    loop = asyncio.get_running_loop()
    until, statuses = loop.time() + seconds, Counter[int]()

    async def one(number: int) -> None:
        dice, client = random.Random(number), None
        try:
            while loop.time() < until:
                client = client or await Client.connect(port)
                wait = [("X-Orch-Max-Wait-Ms", str(dice.randint(1, 20)))]
                try:
                    response = await client.post(headers=wait)
                except Aborted:
                    statuses[0] += 1
                else:
                    statuses[response.status] += 1
                    if response.header("connection") != "close":
                        continue
                await client.close()
                client = None
        finally:
            if client is not None:
                await client.close()

    await asyncio.gather(*(one(number) for number in range(clients)))
    return statuses


@contextmanager
def faults(running: Running, share: float, seed: int) -> Iterator[Counter[str]]:
    """Raises Injected in this share of the calls between core, gate and follower.

    Before the call does anything, or after it has done everything. Yields how often, by name.
    """
    if build() == "compiled":
        pytest.skip("replaces methods of compiled classes")
    dice, raised = random.Random(seed), Counter[str]()
    with ExitStack() as stack:
        stack.enter_context(patch("orch_sidecar.pools.engine_watcher.RECONCILE_EVERY_S", 0.2))
        wrapped: list[tuple[Any, str]] = []
        for name in TICKET:
            method = getattr(Ticket, name)
            stack.enter_context(
                patch.object(Ticket, name, _faulty(method, name, dice, share, raised))
            )
        for pool in running.sidecar.pools:
            for target, names in (
                (pool.gate, GATE),
                (pool.gate.controller, CONTROLLER),
                (pool.gate.ledger, LEDGER),
                (pool.watcher, FOLLOWER),
            ):
                for name in names:
                    method = getattr(target, name)
                    setattr(target, name, _faulty(method, name, dice, share, raised))
                    wrapped.append((target, name))
        try:
            yield raised
        finally:
            for target, name in wrapped:
                delattr(target, name)


def _faulty(
    method: Callable[..., Any],
    name: str,
    dice: random.Random,
    share: float,
    raised: Counter[str],
) -> Callable[..., Any]:
    def chance() -> None:
        if dice.random() < share / 2:
            raised[name] += 1
            raise Injected(name)

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(*args: Any, **options: Any) -> Any:
            chance()
            result = await method(*args, **options)
            chance()
            return result

        return call_async

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        chance()
        result = method(*args, **options)
        chance()
        return result

    return call
