"""A pod's life on the node: sandbox, volumes, init containers and sidecars, main containers, end.

It does not know Deployments or Services.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Coroutine
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path

from tests.k8s.runner import assemble
from tests.k8s.runner.events import Event, What
from tests.k8s.runner.identity import Identity, Unstartable
from tests.k8s.runner.image import build_layer
from tests.k8s.runner.layout import Layout
from tests.k8s.runner.node import Node
from tests.k8s.runner.sandbox import Sandbox
from tests.k8s.runner.schema.container import Container
from tests.k8s.runner.schema.pod import PodSpec
from tests.k8s.runner.script import Process, Root
from tests.k8s.runner.supervise import Kind, Supervised


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"


class PodRun:
    """One pod, from creation to gone."""

    def __init__(self, node: Node, identity: Identity, spec: PodSpec) -> None:
        self.node, self.identity, self.spec = node, identity, spec
        self.phase, self.terminating, self.gone, self.reason = Phase.PENDING, False, False, ""
        self.containers: list[Supervised] = []
        self._directory = node.state_dir / "pods" / f"{identity.namespace}_{identity.name}"
        self._grace_s = float(spec.termination_grace_period_seconds)
        self._deletion, self._stirred = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._sandbox: Sandbox | None = None
        self._end = ""  # the host's end of the pod's veth pair
        self._ready_before = False
        self._layout = Layout(node, identity, spec, self._directory)

    @property
    def ready(self) -> bool:
        """Every container and every native sidecar is ready."""
        wanted = len(self.spec.containers) + len(self.spec.sidecars)
        counted = [part for part in self.containers if part.kind is not Kind.INIT]
        return len(counted) == wanted and all(part.ready for part in counted)

    @property
    def has_address(self) -> bool:
        """Its sandbox is on the network."""
        return bool(self._end)

    def delete(self, grace_s: float | None) -> None:
        """Sets the deletion timestamp; `live` does the rest. The first call counts."""
        if self.terminating:
            return
        if grace_s is not None:
            self._grace_s = grace_s
        self.terminating = True
        self._note(What.POD_DELETION, None, f"grace {self._grace_s:g} s")
        self._deletion.set()
        self._stirred.set()

    def log_path(self, container: str) -> Path:
        """All runs of the container, standard output and error together."""
        return self.node.state_dir / "logs" / f"{self.identity.name}_{container}.log"

    def refresh(self) -> None:
        """Brings its /etc/hosts to what the Services are now."""
        if self.has_address:
            self._layout.write_hosts()

    async def live(self) -> None:
        """Runs the pod until it was deleted and everything of it is gone."""
        self._note(What.POD_CREATED, None)
        starting = self._task(self._start())
        try:
            await self._until_deletion()
            starting.cancel()
            await asyncio.wait({starting})
            await self._leave()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._remove()

    def _task(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._stirred.set())
        self._tasks.append(task)
        return task

    async def _until_deletion(self) -> None:
        """Waits for the deletion; raises at once what goes wrong in any task of the pod."""
        while not self._deletion.is_set():
            await self._stirred.wait()
            self._stirred.clear()
            for task in self._tasks:
                if task.done():
                    task.result()

    async def _start(self) -> None:
        identity = self.identity
        box = self._directory / "box"
        box.mkdir(parents=True)
        self._sandbox = Sandbox(identity.name, box)
        await self._sandbox.open()
        self._end = await self.node.network.attach(self._sandbox.pid, identity.pod_ip)
        await self._lay_out_volumes(self._sandbox)
        for container in self.spec.init_containers:
            kind = Kind.SIDECAR if container.restart_policy else Kind.INIT
            part = self._supervise(container, kind, self._sandbox)
            await (part.started if kind is Kind.SIDECAR else part.done).wait()
        for container in self.spec.containers:
            self._supervise(container, Kind.MAIN, self._sandbox)
        self.phase = Phase.RUNNING

    def _supervise(self, container: Container, kind: Kind, sandbox: Sandbox) -> Supervised:
        part = Supervised(
            container,
            kind,
            sandbox,
            self.identity.pod_ip,
            self.log_path(container.name),
            partial(self._build, container, sandbox),
            self._note,
            self.node.backoff,
            self.spec.termination_grace_period_seconds,
        )
        self.containers.append(part)
        self._task(part.keep())
        return part

    def _build(self, container: Container, sandbox: Sandbox, run: int) -> tuple[Root, Process]:
        """Root and process of the container's next run; raises Unstartable, SpecError."""
        node, identity, spec = self.node, self.identity, self.spec
        image = node.images[container.image]
        sources = node.sources(identity.namespace)
        process = assemble.process(container, spec, image, identity, sources)
        layer = sandbox.box / "layer" / container.name
        if not (inside := sandbox.inside(layer)).exists():
            inside.mkdir()
            build_layer(inside, image)
        root = Root(
            layer=str(layer),
            writable=str(sandbox.box / "writable" / f"{container.name}-{run}"),
            point=str(sandbox.box / "root"),
            binds=assemble.binds(
                container, self._layout.places, self._layout.kubelet_files(), f"{sandbox.box}/shm"
            ),
            read_only=container.security_context.read_only_root_filesystem,
        )
        return root, process

    async def _lay_out_volumes(self, sandbox: Sandbox) -> None:
        failures = 0
        for volume in self.spec.volumes:
            while volume.name not in self._layout.places:
                try:
                    await self._layout.lay_out(volume, sandbox)
                except Unstartable as missing:
                    failures += 1
                    self.reason = f"volume {volume.name!r}: {missing}"
                    self._note(What.POD_WAITING, None, self.reason)
                    await asyncio.sleep(self.node.backoff.pause_s(failures))
        self.reason = ""

    async def _leave(self) -> None:
        """Stops all containers: main ones at once, each sidecar when those after it have ended.

        The hooks of all of them begin at once, the sidecars' too: the kubelet runs preStop before
        it waits for a container's turn.
        """
        sidecars = [part for part in self.containers if part.kind is Kind.SIDECAR]
        others = [part for part in self.containers if part.kind is not Kind.SIDECAR]
        leaving: list[Coroutine[object, object, None]] = [
            part.leave(self._grace_s, None) for part in others
        ]
        for index, part in enumerate(sidecars):
            before = [*others, *sidecars[index + 1 :]]

            async def turn(before: list[Supervised] = before) -> None:
                for earlier in before:
                    await earlier.done.wait()

            leaving.append(part.leave(self._grace_s, turn))
        await asyncio.gather(*leaving)

    async def _remove(self) -> None:
        try:
            if self._end:
                await self.node.network.detach(self._end)
        finally:
            if self._sandbox is not None:
                await self._sandbox.close()
            self.node.network.free(self.identity.pod_ip)
            with suppress(FileNotFoundError):
                shutil.rmtree(self._directory)
            self.gone = True
            self._note(What.POD_GONE, None)

    def _note(self, what: What, container: str | None, detail: str = "") -> None:
        self.node.record(Event(time.monotonic(), self.identity.name, container, what, detail))
        if self.ready is not self._ready_before:
            self._ready_before = self.ready
            word = What.POD_READY if self.ready else What.POD_NOT_READY
            self.node.record(Event(time.monotonic(), self.identity.name, None, word))
