"""The control plane: makes and deletes Deployments' pods until the cluster is as it should be.

Everything here runs in one event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.k8s.runner import rollout
from tests.k8s.runner.endpoints import Backend
from tests.k8s.runner.events import Event
from tests.k8s.runner.identity import Identity
from tests.k8s.runner.image import Image
from tests.k8s.runner.names import NameServer
from tests.k8s.runner.network import Network
from tests.k8s.runner.node import Backoff, Node
from tests.k8s.runner.pod import PodRun
from tests.k8s.runner.rollout import Replica
from tests.k8s.runner.schema.objects import Deployment, parse
from tests.k8s.runner.schema.part import SpecError
from tests.k8s.runner.services import Services
from tests.k8s.runner.store import Store
from tests.k8s.runner.tools import LIMIT_S

NODE_NAME = "runner-node"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # what Kubernetes makes generated names of


@dataclass(frozen=True, slots=True)
class Controlled:
    """A pod with the Deployment (namespace, name) and the revision that it belongs to."""

    pod: PodRun
    deployment: tuple[str, str]
    revision: str
    task: asyncio.Task[None]


class Control:
    """Opened and closed in the loop that it works in."""

    def __init__(self, images: Mapping[str, Image], state_dir: Path, backoff: Backoff) -> None:
        self.events: list[Event] = []
        self.failures: list[BaseException] = []
        self.network = Network()
        self.store = Store(state_dir / "claims")
        self.services = Services(self.store, self.network, self._backends)
        self.controlled: list[Controlled] = []
        self._images, self._changed = images, asyncio.Event()
        self._names = NameServer(self.services.lookup)
        self._node = Node(
            state_dir=state_dir,
            network=self.network,
            images=images,
            backoff=backoff,
            sources=self.store.sources,
            links=self.services.links,
            claim=self.store.claim,
            record=self._record,
        )
        self._loop_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises ToolFailed or OSError where the machine does not allow what is needed."""
        asyncio.get_running_loop().set_exception_handler(self._unseen)
        (self._node.state_dir / "logs").mkdir(parents=True, exist_ok=True)
        await self.network.open()
        await self._names.open(self.network.address)
        self._loop_task = asyncio.create_task(self._reconcile_for_ever())

    async def close(self) -> None:
        """Ends everything at once, without grace."""
        tasks = [entry.task for entry in self.controlled]
        if self._loop_task is not None:
            tasks.append(self._loop_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.services.close()
        await self._names.close()
        await self.network.close()
        # Runs that were about to start end with their sandbox; their ends are still to be read.
        rest = asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task}
        if rest:
            await asyncio.wait(rest, timeout=LIMIT_S)

    async def apply(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Takes all objects, or none: raises SpecError where one is wrong."""
        parsed = [parse(data) for data in objects]
        for item in parsed:
            if isinstance(item, Deployment):
                check_images(item, self._images)
        self.store.apply(parsed)
        await self.services.give_addresses()
        for entry in self.controlled:
            entry.pod.refresh()
        self._changed.set()

    def scale(self, deployment: Deployment, replicas: int) -> None:
        spec = deployment.spec.model_copy(update={"replicas": replicas})
        self.store.put(deployment.model_copy(update={"spec": spec}))
        self._changed.set()

    def pods_of(self, deployment: Deployment) -> list[PodRun]:
        """All its pods that are not gone, terminating ones included, oldest first."""
        key = (deployment.metadata.namespace, deployment.metadata.name)
        return [entry.pod for entry in self.controlled if entry.deployment == key]

    def pod(self, name: str) -> PodRun:
        """Raises LookupError where no pod has the name."""
        for entry in self.controlled:
            if entry.pod.identity.name == name:
                return entry.pod
        raise LookupError(f"no pod is named {name!r}")

    def _unseen(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio would only log is a failure of the harness, which `wait` raises."""
        self.failures.append(context.get("exception") or RuntimeError(context["message"]))

    def _record(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    async def _reconcile_for_ever(self) -> None:
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                self.controlled = [entry for entry in self.controlled if not entry.pod.gone]
                for deployment in self.store.all(Deployment):
                    self._reconcile(deployment)
                await self.services.sync()
        except Exception as wrong:
            self.failures.append(wrong)
            raise

    def _reconcile(self, deployment: Deployment) -> None:
        spec = deployment.spec
        key = (deployment.metadata.namespace, deployment.metadata.name)
        template = spec.template.model_dump_json().encode()
        revision = hashlib.sha256(template).hexdigest()[:10]
        mine = [entry for entry in self.controlled if entry.deployment == key]
        replicas = [
            Replica(e.pod.identity.name, e.revision, e.pod.ready, e.pod.terminating) for e in mine
        ]
        step = rollout.step(spec.replicas, revision, spec.strategy, replicas)
        for entry in mine:
            if entry.pod.identity.name in step.delete:
                entry.pod.delete(None)
        for _ in range(step.create):
            self._create(deployment, revision)

    def _create(self, deployment: Deployment, revision: str) -> None:
        template, meta = deployment.spec.template, deployment.metadata
        suffix = "".join(random.choices(_ALPHABET, k=5))
        identity = Identity(
            name=f"{meta.name}-{revision}-{suffix}",
            namespace=meta.namespace,
            uid=str(uuid.uuid4()),
            labels={**template.metadata.labels, "pod-template-hash": revision},
            annotations=template.metadata.annotations,
            service_account=template.spec.service_account_name,
            node_name=NODE_NAME,
            host_ip=self.network.address,
            pod_ip=self.network.pod_address(),
        )
        pod = PodRun(self._node, identity, template.spec)
        task = asyncio.create_task(self._live(pod))
        self.controlled.append(Controlled(pod, (meta.namespace, meta.name), revision, task))

    async def _live(self, pod: PodRun) -> None:
        try:
            await pod.live()
        except Exception as wrong:
            self.failures.append(wrong)
            raise

    def _backends(self) -> list[Backend]:
        """The pods as Services see them; one without a sandbox yet has no address to be found."""
        return [
            Backend(
                ip=pod.identity.pod_ip,
                namespace=pod.identity.namespace,
                labels=pod.identity.labels,
                ports=_named_ports(pod),
                ready=pod.ready,
                terminating=pod.terminating,
            )
            for pod in (entry.pod for entry in self.controlled)
            if pod.has_address and not pod.gone
        ]


def _named_ports(pod: PodRun) -> dict[str, int]:
    parts = (*pod.spec.containers, *pod.spec.sidecars)
    ports = (port for part in parts for port in part.ports)
    return {port.name: port.container_port for port in ports if port.name is not None}


def check_images(deployment: Deployment, images: Mapping[str, Image]) -> None:
    """Raises SpecError for an image that the cluster was not given."""
    spec = deployment.spec.template.spec
    for container in (*spec.init_containers, *spec.containers):
        if container.image not in images:
            raise SpecError(
                f"Deployment/{deployment.metadata.name}: container {container.name!r} has image "
                f"{container.image!r}, which the cluster was not given: {sorted(images)}"
            )
