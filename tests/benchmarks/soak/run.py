"""Runs one scene after another: starts processes, applies load and faults, checks, stops them."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tests.benchmarks.soak import final
from tests.benchmarks.soak.changes import Changes, Configuration
from tests.benchmarks.soak.clients import Client
from tests.benchmarks.soak.ends import Ends
from tests.benchmarks.soak.faults import Faults
from tests.benchmarks.soak.keys import Keys
from tests.benchmarks.soak.processes import Engine, SidecarProcess
from tests.benchmarks.soak.report import Report
from tests.benchmarks.soak.requests import Requests
from tests.benchmarks.soak.scenes import Scene
from tests.benchmarks.soak.trouble import Trouble
from tests.benchmarks.soak.verdict import Judge
from tests.benchmarks.soak.watch import Watch
from tests.patience import HANG_S

# Clients go on for so long when the faults have ended: leases whose ends were lost come back.
_CALM_S: Final = 2.5
# What a sidecar needs for itself grows by 30 MiB with its first 25 000 requests, and no more: a
# busy machine has only a few thousand in a minute. A short scene has no warm-up of its own: what
# may be left is bounded by far more than that.
_WARM_UP_SHARE: Final = 1 / 3
_WITHOUT_WARM_UP_S: Final = 180.0


@dataclass(slots=True)
class _Played:
    """What the parts of one scene share."""

    scene: Scene
    sidecar: SidecarProcess
    engines: list[Engine]
    clients: list[Client]
    faults: Faults
    changes: Changes
    watch: Watch
    report: Report


async def soak(scenes: list[Scene], seed: int, clients: int, logs: Path | None = None) -> Report:
    """Plays the scenes. `logs`: where the sidecars' logs stay; None: nowhere."""
    report, chance = Report(seed), Random(seed)
    bag: list[str] = []
    with contextlib.ExitStack() as stack:
        if logs is None:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        for number, scene in enumerate(scenes, 1):
            directory = logs / f"{number}"
            directory.mkdir(parents=True, exist_ok=True)
            report.begin(scene.name)
            await _play(scene, report, Random(chance.getrandbits(64)), clients, directory, bag)
    return report


async def _play(
    scene: Scene, report: Report, chance: Random, clients: int, directory: Path, bag: list[str]
) -> None:
    trouble, names = Trouble(), tuple(plan.name for plan in scene.pools)
    ends = Ends(report, trouble, names, most=1 if scene.single else 2)
    keys = Keys(directory, Random(chance.getrandbits(64)))
    judge = Judge(report, trouble, names)
    engines = [Engine(plan, report, ends.seen) for plan in scene.pools]
    configuration = Configuration(directory, scene, engines, keys)
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            stack.push_async_callback(engine.kill)
        await asyncio.gather(*(engine.start() for engine in engines))
        sidecar = SidecarProcess(scene.loop, configuration.path, directory / "sidecar.log")
        stack.callback(sidecar.kill)
        await sidecar.ready(len(engines))
        requests = Requests(scene, keys, Random(chance.getrandbits(64)))
        part = _Played(
            scene,
            sidecar,
            engines,
            [
                Client(sidecar.port, requests, judge, ends, report, Random(chance.getrandbits(64)))
                for _ in range(clients)
            ],
            Faults(engines, sidecar, trouble, report, Random(chance.getrandbits(64)), bag),
            Changes(
                scene, configuration, keys, sidecar, trouble, report,
                Random(chance.getrandbits(64)),
            ),
            Watch(sidecar, ends, report),
            report,
        )  # fmt: skip
        start = await sidecar.readings()
        warm, left_s = start, scene.seconds
        if scene.seconds >= _WITHOUT_WARM_UP_S:
            await _load(part, _WARM_UP_SHARE * scene.seconds)
            warm = await final.settled(sidecar, start, len(engines))
            left_s -= _WARM_UP_SHARE * scene.seconds
        await _load(part, left_s)
        report.loaded()
        end = await final.settled(sidecar, start, len(engines))
        final.compare(start, None if warm is start else warm, end, len(engines), report)
        await final.check_capabilities(sidecar, keys.steady[0].value, report)
        metrics = await sidecar.metrics()
        part.watch.check(metrics)
        final.account(metrics, engines, judge, report)
        report.note(f"/livez took {1000 * part.watch.slowest_s:.0f} ms at most")
        code = await sidecar.stop()
        if code != 0:
            report.breach("the sidecar's exit code", str(code))
    final.check_log(sidecar.log, report)


async def _load(part: _Played, seconds: float) -> None:
    """Clients and faults for so long; then the faults end first, and the clients after them."""
    disturbed, loaded, watched = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(part.watch.run(watched))
        disturbing = [
            group.create_task(part.faults.run(disturbed)),
            group.create_task(part.changes.run(disturbed)),
        ]
        clients = [group.create_task(client.run(loaded)) for client in part.clients]
        await asyncio.sleep(seconds)
        disturbed.set()
        await asyncio.wait(disturbing)
        await asyncio.sleep(_CALM_S)
        loaded.set()
        await asyncio.wait(clients, timeout=2 * HANG_S)
        await final.quiet(part.sidecar, part.engines, part.report)
        watched.set()
