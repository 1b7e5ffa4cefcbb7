"""One declared container over its runs: started, probed, restarted, and stopped for good.

What a stop does is `stopping`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from tests.k8s.runner import probe as probes
from tests.k8s.runner.container import Run
from tests.k8s.runner.events import What
from tests.k8s.runner.health import Result, Tally
from tests.k8s.runner.identity import Unstartable
from tests.k8s.runner.node import Backoff
from tests.k8s.runner.probe import Target
from tests.k8s.runner.sandbox import Sandbox
from tests.k8s.runner.schema.container import Container, Probe
from tests.k8s.runner.schema.part import SpecError
from tests.k8s.runner.script import Process, Root
from tests.k8s.runner.stopping import Note, Turn, stop


class Kind(StrEnum):
    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class Supervised:
    """`build` makes root and process of the Nth run, and may raise Unstartable or SpecError."""

    def __init__(
        self,
        container: Container,
        kind: Kind,
        sandbox: Sandbox,
        ip: str,
        log: Path,
        build: Callable[[int], tuple[Root, Process]],
        note: Note,
        backoff: Backoff,
        grace_s: int,
    ) -> None:
        self.container, self.kind, self.log = container, kind, log
        self._sandbox, self._ip, self._build = sandbox, ip, build
        self._note, self._backoff, self._grace_s = note, backoff, grace_s
        self.run: Run | None = None
        self.runs = 0
        self.ready = False
        self.reason = "waiting to start"
        self.results: dict[str, Result] = {}
        self.started = asyncio.Event()  # its startup probe passed once, or it started without one
        self.done = asyncio.Event()  # ended, and nothing will start it again
        self._leaving = asyncio.Event()
        self._starting = asyncio.Lock()
        self._stopping: asyncio.Task[None] | None = None

    async def keep(self) -> None:
        """Runs the container again and again; an init container until it exits with 0."""
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            while not self._leaving.is_set():
                began = loop.time()
                code = await self._once()
                if self.kind is Kind.INIT and code == 0:
                    return
                # A run that outlasts the longest pause is no failure in a row with the last one.
                failures = 1 if loop.time() - began > self._backoff.most_s else failures + 1
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._backoff.pause_s(failures)):
                        await self._leaving.wait()
        finally:
            self.done.set()

    async def leave(self, grace_s: float, turn: Turn | None) -> None:
        """Stops the container for good; `turn` is over when those before it have ended."""
        self._leaving.set()
        async with self._starting:
            run = self.run
        if self._stopping is not None and not self._stopping.done():
            await self._stopping
        elif run is not None and run.alive:
            await stop(Target(self.container, run, self._ip), grace_s, turn, self._note)
        await self.done.wait()

    async def _once(self) -> int | None:
        """One run; its exit code, None where it could not be started."""
        self.runs += 1
        async with self._starting:
            if self._leaving.is_set():
                return None
            try:
                root, process = self._build(self.runs)
                run = Run(self._sandbox, process)
                await run.start(root, self.log)
            except (Unstartable, SpecError) as wrong:
                self.reason = str(wrong)
                self._note(What.NOT_STARTED, self.container.name, self.reason)
                return None
            self.run, self.reason = run, "running"
            self._note(What.STARTED, self.container.name, f"run {self.runs}")
        checking = asyncio.create_task(self._check(Target(self.container, run, self._ip)))
        ending = asyncio.create_task(run.ended())
        try:
            await asyncio.wait({ending, checking}, return_when=asyncio.FIRST_COMPLETED)
            if checking.done():
                checking.result()  # an error of the harness itself must not pass unseen
            code = await ending
        finally:
            checking.cancel()
            ending.cancel()
            await asyncio.wait({checking, ending})
        self.reason = f"exited with {code}"
        self._note(What.EXITED, self.container.name, str(code))
        self._set_ready(False)
        return code

    async def _check(self, target: Target) -> None:
        """The probes of one run: startup first, then liveness and readiness side by side."""
        began = asyncio.get_running_loop().time()
        container = self.container
        if container.startup_probe is not None:
            if not await self._until_settled("startup", container.startup_probe, target, began):
                await self._give_up("startup", container.startup_probe, target)
                return
            self._note(What.STARTUP_PASSED, container.name)
        self.started.set()
        if container.readiness_probe is None:
            self._set_ready(True)
        async with asyncio.TaskGroup() as group:
            if container.readiness_probe is not None:
                group.create_task(self._watch_readiness(container.readiness_probe, target, began))
            if container.liveness_probe is not None:
                group.create_task(self._watch_liveness(container.liveness_probe, target, began))

    async def _watch_readiness(self, probe: Probe, target: Target, began: float) -> None:
        tally = Tally(probe, passing=False)
        while True:
            await self._next("readiness", tally, target, began)
            self._set_ready(tally.passing)

    async def _watch_liveness(self, probe: Probe, target: Target, began: float) -> None:
        if not await self._until_settled("liveness", probe, target, began, good=None):
            await self._give_up("liveness", probe, target)

    async def _until_settled(
        self, name: str, probe: Probe, target: Target, began: float, good: bool | None = True
    ) -> bool:
        """Probes until it failed for good; with `good`, until it passed, too. Its last word."""
        tally = Tally(probe, passing=False)
        while True:
            settled = await self._next(name, tally, target, began)
            if settled and (not tally.passing or tally.passing is good):
                return tally.passing

    async def _next(self, name: str, tally: Tally, target: Target, began: float) -> bool:
        """Calls a probe at its next time; whether the results settle a question now."""
        loop = asyncio.get_running_loop()
        probe = tally.probe
        if tally.last is None:
            await asyncio.sleep(began + probe.initial_delay_seconds - loop.time())
        else:
            await asyncio.sleep(tally.due_s - loop.time())
        # Who leaves is stopped already: only readiness is still asked for.
        if self._leaving.is_set() and name != "readiness":
            await asyncio.Event().wait()
        tally.due_s = loop.time() + probe.period_seconds
        result = await probes.call(probe, target)
        self.results[name] = result
        return tally.add(result)

    async def _give_up(self, name: str, probe: Probe, target: Target) -> None:
        """Kills an unhealthy run, as a stop with preStop and grace; `keep` starts the next."""
        detail = self.results[name].detail
        self._note(What.UNHEALTHY, self.container.name, f"{name}: {detail}")
        grace_s = probe.termination_grace_period_seconds or self._grace_s
        self._stopping = asyncio.create_task(stop(target, grace_s, None, self._note))
        await asyncio.shield(self._stopping)

    def _set_ready(self, ready: bool) -> None:
        if ready is not self.ready and self.kind is not Kind.INIT:
            self.ready = ready
            self._note(What.READY if ready else What.NOT_READY, self.container.name)
