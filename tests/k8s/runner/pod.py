"""A pod's life on the node: sandbox, volumes, init containers and sidecars, main containers, end.

It does not know Deployments or Services.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.k8s.runner import spec as specs
from tests.k8s.runner.container import Run
from tests.k8s.runner.events import Event
from tests.k8s.runner.image import Image, build_layer
from tests.k8s.runner.network import Network
from tests.k8s.runner.sandbox import Sandbox
from tests.k8s.runner.script import Bind, Root
from tests.k8s.runner.spec import Content, Missing, Spec
from tests.k8s.runner.supervise import Kind, Supervised

_RETRY_S = 0.2
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Node:
    """What every pod of the cluster uses."""

    state_dir: Path
    network: Network
    images: Mapping[str, Image]
    look: Content
    claim: Callable[[str], Path | None]
    record: Callable[[Event], None]


class Pod:
    """One pod, from creation to gone."""

    def __init__(self, node: Node, name: str, template: Spec) -> None:
        self.name, self.spec = name, template["spec"]
        self.labels: Mapping[str, str] = template["metadata"]["labels"]
        self.ip = node.network.pod_address()
        self.terminating = self.gone = False
        self.containers: list[Supervised] = []
        self._node = node
        self._directory = node.state_dir / "pods" / name
        self._grace_s = float(self.spec.get("terminationGracePeriodSeconds", 30))
        self._deletion, self._stirred = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._sandbox = Sandbox(name, self._directory / "box")
        self._end = ""  # the host's end of the pod's veth pair
        self._places: dict[str, tuple[Path, bool]] = {}  # of volumes; True: read-only
        self._waiting = ""

    @property
    def ready(self) -> bool:
        """Whether every container and every native sidecar is ready."""
        init = self.spec.get("initContainers", ())
        wanted = len(self.spec["containers"]) + sum("restartPolicy" in each for each in init)
        counted = [part for part in self.containers if part.kind is not Kind.INIT]
        return len(counted) == wanted and all(part.ready for part in counted)

    @property
    def has_address(self) -> bool:
        """Whether its sandbox is on the network."""
        return bool(self._end) and not self.gone

    @property
    def restarts(self) -> dict[str, int]:
        """Starts of each container after its first one."""
        return {part.name: max(0, part.runs - 1) for part in self.containers}

    def log(self, container: str) -> str:
        """Returns all that a container wrote so far, over all its runs."""
        path = self._log_path(container)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def report(self) -> str:
        """Describes the pod: its containers, their probes' last results, their last lines."""
        lines = [f"pod {self.name} {self.ip} {self._waiting}".rstrip()]
        for part in self.containers:
            ready = "ready" if part.ready else "not ready"
            lines.append(f"  {part.kind} {part.name}: {part.reason}, {ready}, {part.runs}. run")
            lines += [f"    {name} probe: {last.detail}" for name, last in part.results.items()]
            lines += [f"    | {line}" for line in self.log(part.name).splitlines()[-_TAIL_LINES:]]
        return "\n".join(lines)

    def delete(self) -> None:
        """Sets the deletion timestamp; `live` does the rest."""
        self.terminating = True
        self._deletion.set()
        self._stirred.set()

    def write_hosts(self, services: str) -> None:
        """Brings its /etc/hosts up to date: in place, for it is mounted, and in one write."""
        content = f"127.0.0.1\tlocalhost\n{self.ip}\t{self.name}\n{services}".encode()
        file = os.open(self._directory / "hosts", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            before = os.read(file, 1 << 20)
            if before.rstrip() != content.rstrip():
                os.pwrite(file, content + b"\n" * (len(before) - len(content)), 0)
        finally:
            os.close(file)

    async def live(self) -> None:
        """Runs the pod until it was deleted and everything of it is gone."""
        starting = self._task(self._start())
        try:
            while not self._deletion.is_set():
                await self._stirred.wait()
                self._stirred.clear()
                for task in self._tasks:
                    if task.done():
                        task.result()  # raises what went wrong in any task of the pod
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

    def _log_path(self, container: str) -> Path:
        return self._node.state_dir / "logs" / f"{self.name}_{container}.log"

    async def _start(self) -> None:
        self._sandbox.box.mkdir(parents=True)
        await self._sandbox.open()
        (self._directory / "hostname").write_text(f"{self.name}\n", encoding="utf-8")
        (self._directory / "resolv.conf").write_text("nameserver 127.0.0.1\n", encoding="utf-8")
        self.write_hosts("")
        self._end = await self._node.network.attach(self._sandbox.pid, self.ip)
        for volume in self.spec.get("volumes", ()):
            while volume["name"] not in self._places:
                try:
                    self._places[volume["name"]] = self._lay_out(volume)
                except Missing as missing:
                    self._waiting = f"volume {volume['name']!r}: {missing}"
                    await asyncio.sleep(_RETRY_S)
        for container in self.spec.get("initContainers", ()):
            kind = Kind.SIDECAR if "restartPolicy" in container else Kind.INIT
            part = self._supervise(container, kind)
            await (part.started if kind is Kind.SIDECAR else part.done).wait()
        for container in self.spec["containers"]:
            self._supervise(container, Kind.MAIN)

    def _lay_out(self, volume: Spec) -> tuple[Path, bool]:
        """Makes a volume. Raises Missing."""
        path = self._directory / "volumes" / str(volume["name"])
        group = self.spec.get("securityContext", {}).get("fsGroup")
        if "persistentVolumeClaim" in volume:
            name = volume["persistentVolumeClaim"]["claimName"]
            claim = self._node.claim(name)
            if claim is None:
                raise Missing(f"PersistentVolumeClaim {name!r} does not exist")
            for place in (claim, *claim.rglob("*")):
                _give(place, group)
            return claim, False
        if volume.get("emptyDir", {}).get("medium") == "Memory":
            path = self._sandbox.box / "memory" / str(volume["name"])
            inside = self._sandbox.inside(path)
            inside.mkdir()
            inside.chmod(0o1777)
            return path, False
        found = specs.files(volume, self._node.look)
        path.mkdir(parents=True)
        path.chmod(0o777 if found is None else 0o755)
        for name, (data, mode) in (found or {}).items():
            file = path / name
            file.write_bytes(data)
            file.chmod(mode)
            _give(file, group, read_only=True)
        return path, found is not None

    def _supervise(self, container: Spec, kind: Kind) -> Supervised:
        name = str(container["name"])
        part = Supervised(
            container,
            kind,
            self.ip,
            self._log_path(name),
            self._grace_s,
            partial(self._run, container),
            lambda what, which, detail: self._node.record(Event(self.name, which, what, detail)),
        )
        self.containers.append(part)
        self._task(part.keep())
        return part

    async def _run(self, container: Spec, number: int) -> Run:
        """Starts the container's next run. Raises Missing, NotStarted."""
        name = str(container["name"])
        image = self._node.images[container["image"]]
        given = specs.variables(container, self._fields(), self._node.look)
        process = specs.process(container, self.spec, image, self.name, given)
        layer = self._sandbox.box / "layer" / name
        if not (inside := self._sandbox.inside(layer)).exists():
            inside.mkdir()
            build_layer(inside, image)
        root = Root(
            layer=str(layer),
            writable=str(self._sandbox.box / "writable" / f"{name}-{number}"),
            point=str(self._sandbox.box / "root"),
            binds=self._binds(container),
            read_only=container.get("securityContext", {}).get("readOnlyRootFilesystem", False),
        )
        run = Run(self._sandbox, process)
        await run.start(root, self._log_path(name))
        return run

    def _binds(self, container: Spec) -> tuple[Bind, ...]:
        files = ("hosts", "hostname", "resolv.conf")
        found = [Bind(str(self._directory / name), f"/etc/{name}", is_file=True) for name in files]
        for mount in container.get("volumeMounts", ()):
            path, read_only = self._places[mount["name"]]
            read_only = read_only or mount.get("readOnly", False)
            found.append(Bind(str(path), mount["mountPath"], read_only=read_only))
        if all(bind.target != "/dev/shm" for bind in found):
            found.append(Bind(f"{self._sandbox.box}/shm", "/dev/shm"))
        return tuple(found)

    def _fields(self) -> dict[str, str]:
        """The downward API."""
        return {
            "metadata.name": self.name,
            "metadata.namespace": "orch",
            "metadata.uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name)),
            "spec.nodeName": "node",
            "status.podIP": self.ip,
            **{f"metadata.labels['{key}']": value for key, value in self.labels.items()},
        }

    async def _leave(self) -> None:
        """Stops all containers: main ones at once, each sidecar when those after it have ended.

        The hooks of all of them begin at once, the sidecars' too: the kubelet runs preStop before
        it waits for a container's turn.
        """
        sidecars = [part for part in self.containers if part.kind is Kind.SIDECAR]
        others = [part for part in self.containers if part.kind is not Kind.SIDECAR]
        leaving = [part.leave(self._grace_s, None) for part in others]
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
                await self._node.network.detach(self._end)
        finally:
            await self._sandbox.close()
            with suppress(FileNotFoundError):
                shutil.rmtree(self._directory)
            self.gone = True


def _give(path: Path, group: int | None, *, read_only: bool = False) -> None:
    """fsGroup: the group may read, and write where the volume can be written."""
    if group is not None and not path.is_symlink():
        os.chown(path, -1, group)
        more = 0o2770 if path.is_dir() else 0o440 if read_only else 0o660
        path.chmod(path.stat().st_mode & 0o7777 | more)
