"""The control plane: makes and deletes Deployments' pods, and tells pods each other's addresses.

Everything here runs in one event loop. A Deployment's pods are never updated: what was applied
once stays, but for its number of replicas.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.k8s.runner.environment import Sources
from tests.k8s.runner.events import Event
from tests.k8s.runner.identity import Identity
from tests.k8s.runner.image import Image
from tests.k8s.runner.network import Network
from tests.k8s.runner.node import Backoff, Node
from tests.k8s.runner.pod import PodRun
from tests.k8s.runner.schema.objects import (
    ClaimObject,
    ConfigMap,
    Deployment,
    Object,
    Secret,
    Service,
    parse,
)
from tests.k8s.runner.tools import LIMIT_S

NODE_NAME = "runner-node"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # what Kubernetes makes generated names of

AnyObject = TypeVar("AnyObject", bound=Object)


@dataclass(frozen=True, slots=True)
class Controlled:
    """A pod with the Deployment (namespace, name) that it belongs to."""

    pod: PodRun
    deployment: tuple[str, str]
    task: asyncio.Task[None]


class Control:
    """Opened and closed in the loop that it works in."""

    def __init__(self, images: Mapping[str, Image], state_dir: Path, backoff: Backoff) -> None:
        self.events: list[Event] = []
        self.failures: list[BaseException] = []
        self.controlled: list[Controlled] = []
        self._network, self._claims = Network(), state_dir / "claims"
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._changed = asyncio.Event()
        self._node = Node(
            state_dir=state_dir,
            network=self._network,
            images=images,
            backoff=backoff,
            sources=self._sources,
            hosts=self._hosts,
            claim=self.claim,
            record=self._record,
        )
        self._loop_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises ToolFailed or OSError where the machine does not allow what is needed."""
        asyncio.get_running_loop().set_exception_handler(self._unseen)
        (self._node.state_dir / "logs").mkdir(parents=True, exist_ok=True)
        await self._network.open()
        self._loop_task = asyncio.create_task(self._reconcile_for_ever())

    async def close(self) -> None:
        """Ends everything at once, without grace."""
        tasks = [entry.task for entry in self.controlled]
        if self._loop_task is not None:
            tasks.append(self._loop_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._network.close()
        # Runs that were about to start end with their sandbox; their ends are still to be read.
        rest = asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task}
        if rest:
            await asyncio.wait(rest, timeout=LIMIT_S)

    def apply(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Takes all objects, or none: raises SpecError where one is wrong."""
        for item in [parse(data) for data in objects]:
            self._objects[item.kind, item.metadata.namespace, item.metadata.name] = item
            if isinstance(item, ClaimObject):
                path = self._claims / f"{item.metadata.namespace}_{item.metadata.name}"
                path.mkdir(parents=True, exist_ok=True)
        self._changed.set()

    def scale(self, deployment: Deployment, replicas: int) -> None:
        spec = deployment.spec.model_copy(update={"replicas": replicas})
        meta = deployment.metadata
        key = (deployment.kind, meta.namespace, meta.name)
        self._objects[key] = deployment.model_copy(update={"spec": spec})
        self._changed.set()

    def deployment(self, name: str, namespace: str) -> Deployment:
        """Raises LookupError where there is none of that name."""
        found = self._objects.get(("Deployment", namespace, name))
        if not isinstance(found, Deployment):
            raise LookupError(f"no Deployment {name!r} in namespace {namespace!r}")
        return found

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

    def claim(self, namespace: str, name: str) -> Path | None:
        """The directory of a PersistentVolumeClaim; None where there is no such claim."""
        known = ("PersistentVolumeClaim", namespace, name) in self._objects
        return self._claims / f"{namespace}_{name}" if known else None

    def _all(self, model: type[AnyObject]) -> list[AnyObject]:
        return [item for item in self._objects.values() if isinstance(item, model)]

    def _sources(self, namespace: str) -> Sources:
        """ConfigMaps and Secrets of a namespace, as its pods refer to them."""

        def config_map(name: str) -> Mapping[str, bytes] | None:
            item = self._objects.get(("ConfigMap", namespace, name))
            return item.content() if isinstance(item, ConfigMap) else None

        def secret(name: str) -> Mapping[str, bytes] | None:
            item = self._objects.get(("Secret", namespace, name))
            return item.content() if isinstance(item, Secret) else None

        return Sources(config_map, secret)

    def _hosts(self, namespace: str) -> str:
        """A line for each pod of each Service: those that are ready, or all of them."""
        lines = []
        for service in self._all(Service):
            name, inside = service.metadata.name, service.metadata.namespace
            full = f"{name}.{inside}.svc"
            short = f"{name} " if inside == namespace else ""
            for pod in (entry.pod for entry in self.controlled):
                chosen = service.spec.selector.items() <= pod.identity.labels.items()
                up = service.spec.publish_not_ready_addresses or (pod.ready and not pod.terminating)
                if chosen and up and pod.has_address and pod.identity.namespace == inside:
                    names = f"{short}{name}.{inside} {full} {full}.cluster.local"
                    lines.append(f"{pod.identity.pod_ip}\t{names}\n")
        return "".join(lines)

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
                for deployment in self._all(Deployment):
                    self._reconcile(deployment)
                for entry in self.controlled:
                    entry.pod.refresh()
        except Exception as wrong:
            self.failures.append(wrong)
            raise

    def _reconcile(self, deployment: Deployment) -> None:
        """A pod that leaves no longer counts; of too many the youngest go."""
        live = [pod for pod in self.pods_of(deployment) if not pod.terminating]
        for pod in live[deployment.spec.replicas :]:
            pod.delete(None)
        for _ in range(deployment.spec.replicas - len(live)):
            self._create(deployment)

    def _create(self, deployment: Deployment) -> None:
        template, meta = deployment.spec.template, deployment.metadata
        suffix = "".join(random.choices(_ALPHABET, k=5))
        identity = Identity(
            name=f"{meta.name}-{suffix}",
            namespace=meta.namespace,
            uid=str(uuid.uuid4()),
            labels=template.metadata.labels,
            annotations=template.metadata.annotations,
            service_account=template.spec.service_account_name,
            node_name=NODE_NAME,
            host_ip=self._network.address,
            pod_ip=self._network.pod_address(),
        )
        pod = PodRun(self._node, identity, template.spec)
        task = asyncio.create_task(self._live(pod))
        self.controlled.append(Controlled(pod, (meta.namespace, meta.name), task))

    async def _live(self, pod: PodRun) -> None:
        try:
            await pod.live()
        except Exception as wrong:
            self.failures.append(wrong)
            raise
