"""Four sidecars that are killed at random, and what must be so after each kill.

Clients go from sidecar to sidecar, and retry what they lost with a new prompt. After each second
kill they pause: then nothing may be left of those that were killed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from tests.benchmarks.sidecars.cut import Proxy, scene
from tests.benchmarks.sidecars.load import Answer, Caller, Request, Window, closed_loop, percentile
from tests.benchmarks.sidecars.servers import SLOTS, Sidecar, metric, sidecars, state

SIDECARS: Final = 4
CLIENTS: Final = 24
CALM_WITHIN_S: Final = 1.0
_GIVEN_UP_S: Final = 20.0
_SCENES_PER_MINUTE: Final = 1
_POLL_S: Final = 0.01
_RETRIES_AFTER_S: Final = 0.05


@dataclass(slots=True)
class Found:
    """What was seen. Times in seconds, waits in milliseconds."""

    problems: list[str] = field(default_factory=list)
    kills: int = 0
    restart_s: list[float] = field(default_factory=list)
    calm_s: list[float] = field(default_factory=list)
    grant_ms: list[float] = field(default_factory=list)
    cut: dict[str, list[float]] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    requests: int = 0
    answered: int = 0
    longest_s: float = 0.0


class Storm:
    """Clients that want each request answered, however often they have to ask."""

    def __init__(self, ports: list[int], found: Found, seed: int) -> None:
        self._ports = ports
        self._found = found
        self._window = Window()
        self._flows = asyncio.Event()
        self._flows.set()
        self._busy = 0
        self._stopping = False
        self._clients = [
            asyncio.create_task(self._client(random.Random(f"{seed} {number}")))
            for number in range(CLIENTS)
        ]
        found.answers = self._window.answers

    async def pause(self) -> None:
        """Returns when every request that was begun is answered; `resume` ends the pause."""
        self._flows.clear()
        async with asyncio.timeout(60):
            while self._busy:  # noqa: ASYNC110 (many clients, and none is the last by itself)
                await asyncio.sleep(_POLL_S)

    def resume(self) -> None:
        self._flows.set()

    async def stop(self) -> None:
        self._stopping = True
        self._flows.set()
        await asyncio.gather(*self._clients)

    async def _client(self, dice: random.Random) -> None:
        caller = Caller(self._window)
        try:
            while not self._stopping:
                await self._flows.wait()
                if not self._stopping:
                    self._busy += 1
                    await self._answered(caller, dice)
                    self._busy -= 1
        finally:
            caller.close()

    async def _answered(self, caller: Caller, dice: random.Random) -> None:
        """One request, until it has its answer."""
        tokens, choices = dice.randint(2, 24), dice.choice((1, 1, 1, 2, 4))
        interactive, began = dice.random() < 0.7, time.monotonic()
        self._found.requests += 1
        while True:
            request = Request(tokens, interactive=interactive, choices=choices)
            answer = await caller.ask(dice.choice(self._ports), request)
            if answer.whole:
                break
            if answer.status in (400, 404):
                raise SystemExit(f"a request is invalid: {answer.status} {answer.code}")
            await asyncio.sleep(_RETRIES_AFTER_S)
        self._found.answered += 1
        self._found.longest_s = max(self._found.longest_s, time.monotonic() - began)


async def _calm(fleet: list[Sidecar], engine_port: int) -> float:
    """Returns after how many seconds nothing is left anywhere."""
    began = time.monotonic()
    while True:
        try:
            engine, *others = await asyncio.gather(
                state(engine_port), *(state(each.port) for each in fleet)
            )
        except OSError:
            pass
        else:
            left = [_left(engine), *map(_left, others)]
            if not any(left):
                return time.monotonic() - began
            if time.monotonic() - began > _GIVEN_UP_S:
                raise TimeoutError(f"after {_GIVEN_UP_S:g} s are left: {left}")
        await asyncio.sleep(_POLL_S)


def _left(reported: dict[str, Any]) -> dict[str, Any]:
    """What a server still has."""
    names = ("leased", "foreign", "running", "waiting")
    left = {name: reported[name] for name in names if reported.get(name)}
    if reported.get("state") not in ("ready", None):
        left["state"] = reported["state"]
    return left


async def _kills(
    found: Found, fleet: list[Sidecar], engine_port: int, seconds: float, seed: int
) -> None:
    dice = random.Random(seed)
    storm = Storm([each.port for each in fleet], found, seed)
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    try:
        while loop.time() < until:
            await asyncio.sleep(dice.uniform(1.0, 4.0))
            victim = dice.choice(fleet)
            victim.kill()
            found.kills += 1
            await asyncio.sleep(dice.uniform(0.0, 0.5))
            began = loop.time()
            victim.start()
            await victim.ready()
            found.restart_s.append(loop.time() - began)
            if found.kills % 2:
                continue
            await storm.pause()
            found.calm_s.append(await _calm(fleet, engine_port))
            probe = await closed_loop(
                [each.port for each in fleet],
                interactive=SLOTS,
                tokens=4,
                seconds=0.7,
                warm_s=0.1,
                roams=True,
            )
            found.grant_ms += [each.queue_ms for each in probe.first_in_window]
            found.answers += probe.answers
            storm.resume()
    finally:
        await storm.stop()


async def _judge(
    found: Found, fleet: list[Sidecar], engine_port: int, before: dict[str, Any]
) -> None:
    """The checks at the end, when all is calm."""
    problems = found.problems
    if found.answered < found.requests:
        problems.append(f"{found.requests - found.answered} requests were never answered")
    if found.calm_s and (longest := max(found.calm_s)) > CALM_WITHIN_S:
        problems.append(f"something was left for {longest:.2f} s after a restart")
    for each in fleet:
        for name in ("orch_oversubscription_violations_total", "orch_leases_orphaned_total"):
            if count := await metric(each.port, name):
                problems.append(f"{each.name}: {name} is {count:g}")
    engine = await state(engine_port)
    if engine["peak"] > SLOTS:
        problems.append(f"the engine had {engine['peak']} sequences in {SLOTS} slots")
    entered = engine["requests_total"] - before["requests_total"]
    attempts = sum(each.sent for each in found.answers)
    served = sum(each.whole for each in found.answers)
    if not served <= entered <= attempts:
        problems.append(
            f"{entered} requests entered the engine of {attempts} attempts, and {served} were "
            "answered: one was lost, or came twice"
        )
    ids = Counter(each.id for each in found.answers if each.whole)
    if twice := [each for each, count in ids.items() if count > 1]:
        problems.append(f"{len(twice)} responses reached more than one client: {twice[:3]}")
    if engine.get("answered_twice"):
        problems.append(f"the engine answered {engine['answered_twice']} prompts twice")


def _print(found: Found, rejected: int, minutes: float) -> None:
    window = Window()
    window.answers = found.answers
    print(
        f"{minutes:g} minutes, {found.kills} kills, {found.requests} requests, all answered with "
        f"{len(found.answers)} attempts; the slowest took {found.longest_s:.1f} s"
    )
    print(f"attempts without an answer: {dict(window.failures())}")
    print(f"no_slot: {rejected}")
    for title, values, unit in (
        ("ready again after a start, s", found.restart_s, ".2f"),
        ("nothing left after a pause, s", found.calm_s, ".3f"),
        ("wait for a free slot, ms", found.grant_ms, ".2f"),
        *((f"cut: {name}", values, ".2f") for name, values in found.cut.items()),
    ):
        if values:
            shown = [format(percentile(values, each), unit) for each in (50, 99)]
            print(f"{title}: p50 {shown[0]}, p99 {shown[1]}, most {max(values):{unit}}, "
                  f"of {len(values)}")  # fmt: skip


async def run(engine_port: int, minutes: float, seed: int) -> list[str]:
    """Runs the kills, then the cuts. Returns what must not have happened."""
    found, before = Found(), await state(engine_port)
    print(f"seed {seed}", flush=True)
    proxy = Proxy(engine_port)
    await proxy.start()
    with sidecars(SIDECARS, engine_port) as fleet:
        for each in fleet:
            await each.ready()
        try:
            await _kills(found, fleet, engine_port, minutes * 60, seed)
            await _calm(fleet, engine_port)
            await _judge(found, fleet, engine_port, before)
            with sidecars(1, proxy.port) as (silent,):
                await silent.ready()
                for _ in range(max(1, round(_SCENES_PER_MINUTE * minutes))):
                    problems, times = await scene(proxy, silent, fleet, engine_port)
                    found.problems += problems
                    for name, took in times.items():
                        found.cut.setdefault(name, []).append(took)
        except TimeoutError as error:
            found.problems.append(str(error))
        proxy.flows.set()
    rejected = (await state(engine_port))["no_slot_total"] - before["no_slot_total"]
    await proxy.stop()
    _print(found, rejected, minutes)
    return found.problems
