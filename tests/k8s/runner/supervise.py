"""One container over its runs: started, probed, restarted, and stopped as the kubelet does it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tests.k8s.runner import probe as probes
from tests.k8s.runner.container import NotStarted, Run
from tests.k8s.runner.events import What
from tests.k8s.runner.probe import Result, Target
from tests.k8s.runner.spec import Missing

MINIMUM_GRACE_S: Final = 2.0  # the kubelet's minimumGracePeriodInSeconds
_PAUSE_S: Final = 0.3  # before the next run; the kubelet's own is 10 s to 300 s
_ENDLESS_S: Final = 10.0**6  # a hook's time is bounded by the grace

# Waits until the containers that must end before this one have ended.
Turn = Callable[[], Awaitable[object]]
Note = Callable[[What, str, str], None]


class Kind(StrEnum):
    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class Supervised:
    """`start` starts the container's next run, and may raise Missing or NotStarted."""

    def __init__(
        self,
        container: Mapping[str, Any],
        kind: Kind,
        ip: str,
        log: Path,
        grace_s: float,
        start: Callable[[int], Awaitable[Run]],
        note: Note,
    ) -> None:
        self.container, self.kind, self.log = container, kind, log
        self.name = str(container["name"])
        self._ip, self._grace_s, self._start, self._note = ip, grace_s, start, note
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
        try:
            while not self._leaving.is_set():
                if await self._once() == 0 and self.kind is Kind.INIT:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._leaving.wait(), _PAUSE_S)
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
            await self._stop(Target(self.container, run, self._ip), grace_s, turn)
        await self.done.wait()

    async def _once(self) -> int | None:
        """One run; its exit code, None where it could not be started."""
        async with self._starting:
            if self._leaving.is_set():
                return None
            self.runs += 1
            try:
                self.run = run = await self._start(self.runs)
            except (Missing, NotStarted) as wrong:
                self.reason = str(wrong)
                return None
            self.reason = "running"
            self._note(What.STARTED, self.name, f"run {self.runs}")
        checking = asyncio.create_task(self._check(Target(self.container, run, self._ip)))
        ending = asyncio.create_task(run.ended())
        try:
            await asyncio.wait({ending, checking}, return_when=asyncio.FIRST_COMPLETED)
            if checking.done():
                checking.result()  # an error of this package must not pass unseen
            code = await ending
        finally:
            checking.cancel()
            ending.cancel()
            await asyncio.wait({checking, ending})
        self.ready, self.reason = False, f"exited with {code}"
        self._note(What.EXITED, self.name, str(code))
        return code

    async def _check(self, target: Target) -> None:
        """The probes of one run: startup first, then liveness and readiness side by side."""
        startup, liveness, readiness = (
            self.container.get(f"{name}Probe") for name in ("startup", "liveness", "readiness")
        )
        if startup is not None:
            if not await self._settled("startup", startup, target, until=True):
                return
            self._note(What.STARTUP_PASSED, self.name, "")
        self.started.set()
        if readiness is None:
            self._set_ready(True)
        async with asyncio.TaskGroup() as group:
            if readiness is not None:
                group.create_task(self._watch_readiness(readiness, target))
            if liveness is not None:
                group.create_task(self._settled("liveness", liveness, target, until=None))

    async def _watch_readiness(self, probe: Mapping[str, Any], target: Target) -> None:
        while True:
            self._set_ready(await self._settled("readiness", probe, target, until=not self.ready))

    async def _settled(
        self, name: str, probe: Mapping[str, Any], target: Target, *, until: bool | None
    ) -> bool:
        """Probes until enough results in a row are `until` (None: never), or are failures.

        Failures of startup and liveness kill the run; `keep` starts the next.
        """
        loop = asyncio.get_running_loop()
        in_a_row, last = 0, None
        while True:
            due = loop.time() + probe.get("periodSeconds", 10)
            # A container that leaves is stopped already: only readiness still counts.
            if self._leaving.is_set() and name != "readiness":
                await asyncio.Event().wait()
            result = await probes.call(probe, target)
            self.results[name] = result
            in_a_row = in_a_row + 1 if result.ok is last else 1
            last = result.ok
            if last and until is True and in_a_row >= probe.get("successThreshold", 1):
                return True
            if not last and in_a_row >= probe.get("failureThreshold", 3):
                if name != "readiness":
                    await self._give_up(f"{name}: {result.detail}", probe, target)
                    return False
                if until is False:
                    return False
            await asyncio.sleep(due - loop.time())

    async def _give_up(self, detail: str, probe: Mapping[str, Any], target: Target) -> None:
        self._note(What.UNHEALTHY, self.name, detail)
        grace_s = probe.get("terminationGracePeriodSeconds", self._grace_s)
        self._stopping = asyncio.create_task(self._stop(target, grace_s, None))
        await asyncio.shield(self._stopping)

    async def _stop(self, target: Target, grace_s: float, turn: Turn | None) -> None:
        """The kubelet's killContainer: preStop, the container's turn, TERM, and KILL when the grace
        is over, never less than two seconds after TERM. Waiting counts in whole seconds."""
        loop = asyncio.get_running_loop()
        left_s = float(grace_s)
        action = self.container.get("lifecycle", {}).get("preStop")
        hook: asyncio.Task[Result] | None = None
        if action is not None:
            began = loop.time()
            self._note(What.PRE_STOP_BEGAN, self.name, "")
            hook = asyncio.create_task(probes.execute(action["exec"], target, _ENDLESS_S))
            await asyncio.wait({hook}, timeout=left_s)
            late = f"still running after {left_s} s"
            self._note(
                What.PRE_STOP_ENDED, self.name, hook.result().detail if hook.done() else late
            )
            left_s -= math.floor(loop.time() - began)
        if turn is not None and left_s > 0:
            began = loop.time()
            with suppress(TimeoutError):
                await asyncio.wait_for(turn(), left_s)
            left_s -= math.floor(loop.time() - began)
        if target.run.alive:
            self._note(What.TERM, self.name, "")
            target.run.terminate()
            try:
                async with asyncio.timeout(max(left_s, MINIMUM_GRACE_S)):
                    await target.run.ended()
            except TimeoutError:
                self._note(What.KILL, self.name, "")
                await target.run.kill()
        if hook is not None:
            hook.cancel()  # it died with the container; only its answer is not read yet
            await asyncio.wait({hook})

    def _set_ready(self, ready: bool) -> None:
        self.ready = ready and self.kind is not Kind.INIT
