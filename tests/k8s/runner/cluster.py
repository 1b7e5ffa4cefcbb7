"""A cluster of one machine that really runs what manifests describe: the tests' way in.

    with Cluster(images={"vllm/vllm-openai-cpu:v1": python_image(venv, project, "orch-sidecar")},
                 state_dir=tmp_path) as cluster:
        cluster.apply(yaml.safe_load_all(text))
        cluster.wait(lambda: cluster.ready("orch-cloud") >= 1, within_s=120)

Objects are known by kind and name: there is one namespace. A Deployment's pods are never updated:
what was applied first stays, but for its number of replicas.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from tests.k8s.runner.container import Executed
from tests.k8s.runner.events import Event
from tests.k8s.runner.image import Image
from tests.k8s.runner.network import Network
from tests.k8s.runner.pod import Node, Pod
from tests.k8s.runner.spec import content
from tests.k8s.runner.tools import LIMIT_S, ToolFailed

T = TypeVar("T")
_CALL_S: Final = 60.0  # no call into the loop takes longer, unless it has its own limit
_TICK_S: Final = 0.1
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # what Kubernetes makes generated names of


class NotReached(AssertionError):
    """What a test waited for did not come; the message shows every pod as it is."""


class Cluster:
    """A context manager; at its end nothing is left but `state_dir` with logs and claims.

    Everything but what tests call runs in one event loop, in a thread of its own.
    """

    def __init__(self, images: Mapping[str, Image], state_dir: Path) -> None:
        """`state_dir` is a directory of a disk's file system; it may exist already."""
        self.events: list[Event] = []
        self._failures: list[BaseException] = []
        self._objects: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._replicas: dict[str, int] = {}
        self._pods: dict[Pod, str] = {}  # with the Deployment of each
        self._lives: list[asyncio.Task[None]] = []
        self._network = Network()
        self._state_dir = state_dir.resolve()
        self._node = Node(
            state_dir=self._state_dir,
            network=self._network,
            images=dict(images),
            look=self._look,
            claim=self._claim,
            record=self.events.append,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            self._loop.close()
            raise ToolFailed(f"running manifests needs root, this is uid {os.geteuid()}")
        self._thread.start()
        try:
            self._call(self._open())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all pods at once and removes everything from the machine."""
        try:
            self._call(self._end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def apply(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Takes objects as `kubectl apply` does."""
        for body in objects:
            kind, name = body["kind"], body["metadata"]["name"]
            if kind == "PersistentVolumeClaim":
                (self._state_dir / "claims" / name).mkdir(parents=True, exist_ok=True)
            self._objects[kind, name] = body
            if kind == "Deployment":
                self._replicas.setdefault(name, body["spec"].get("replicas", 1))

    def scale(self, deployment: str, replicas: int) -> None:
        """`kubectl scale`: returns at once."""
        self._replicas[deployment] = replicas

    def delete_pod(self, name: str) -> None:
        """`kubectl delete pod --wait=false`."""
        [pod] = [each for each in self._pods if each.name == name]
        self._loop.call_soon_threadsafe(pod.delete)

    def pods(self, deployment: str) -> list[Pod]:
        """The Deployment's pods that are not gone, oldest first, terminating ones included."""
        return [pod for pod, owner in list(self._pods.items()) if owner == deployment]

    def ready(self, deployment: str) -> int:
        """How many pods are ready and not leaving."""
        return sum(pod.ready and not pod.terminating for pod in self.pods(deployment))

    def claim(self, name: str) -> Path:
        """The directory of a PersistentVolumeClaim that was applied."""
        path = self._claim(name)
        assert path is not None, name
        return path

    def exec(
        self, pod: Pod, container: str, command: Sequence[str], *, within_s: float = 30.0
    ) -> Executed:
        """`kubectl exec`: as the container's user, in its namespaces, with its environment.

        Raises TimeoutError.
        """
        [part] = [each for each in pod.containers if each.name == container]
        assert part.run is not None, part.reason
        done = self._call(part.run.execute(list(command), within_s), within_s + _CALL_S)
        if done is None:
            raise TimeoutError(f"{command} in {pod.name} took longer than {within_s} s")
        return done

    def wait(self, condition: Callable[[], bool], within_s: float, every_s: float = 0.05) -> None:
        """Waits until the condition holds.

        Raises NotReached if it did not in time, or if this package failed; with all pods' states.
        """
        deadline = time.monotonic() + within_s
        while not condition():
            if self._failures:
                wrong = self._failures[0]
                raise NotReached(f"the runner failed: {wrong!r}\n{self.report()}") from wrong
            if time.monotonic() > deadline:
                raise NotReached(f"not within {within_s} s\n{self.report()}")
            time.sleep(every_s)

    def report(self) -> str:
        """Describes every pod."""
        return "\n".join(pod.report() for pod in list(self._pods))

    def _look(self, kind: str, name: str) -> Mapping[str, bytes] | None:
        body = self._objects.get((kind, name))
        return None if body is None else content(body)

    def _claim(self, name: str) -> Path | None:
        known = ("PersistentVolumeClaim", name) in self._objects
        return self._state_dir / "claims" / name if known else None

    async def _open(self) -> None:
        """Raises ToolFailed or OSError where the machine does not allow what is needed."""
        self._loop.set_exception_handler(self._unseen)
        (self._state_dir / "logs").mkdir(parents=True, exist_ok=True)
        await self._network.open()
        self._lives.append(asyncio.create_task(self._watched(self._reconcile())))

    async def _end(self) -> None:
        for task in self._lives:
            task.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)
        await self._network.close()
        # Runs that were about to start end with their sandbox; their ends are still to be read.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        if rest:
            await asyncio.wait(rest, timeout=LIMIT_S)

    def _unseen(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio would only log is a failure of this package, which `wait` raises."""
        self._failures.append(context.get("exception") or RuntimeError(context["message"]))

    async def _watched(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception as wrong:
            self._failures.append(wrong)
            raise

    async def _reconcile(self) -> None:
        """Creates and deletes pods, and writes their Services' addresses into them."""
        while True:
            self._pods = {pod: owner for pod, owner in self._pods.items() if not pod.gone}
            for name, replicas in list(self._replicas.items()):
                live = [pod for pod in self.pods(name) if not pod.terminating]
                for pod in live[replicas:]:
                    pod.delete()
                for _ in range(replicas - len(live)):
                    self._create(name)
            services = self._services()
            for pod in self._pods:
                if pod.has_address:
                    pod.write_hosts(services)
            await asyncio.sleep(_TICK_S)

    def _create(self, deployment: str) -> None:
        suffix = "".join(random.choices(_ALPHABET, k=5))
        template = self._objects["Deployment", deployment]["spec"]["template"]
        pod = Pod(self._node, f"{deployment}-{suffix}", template)
        self._pods[pod] = deployment
        self._lives.append(asyncio.create_task(self._watched(pod.live())))

    def _services(self) -> str:
        """Lines of /etc/hosts: the pods of each Service that are ready, or all of them."""
        lines = []
        for (kind, name), body in list(self._objects.items()):
            spec = body.get("spec", {}) if kind == "Service" else {}
            for pod in self._pods if spec else ():
                chosen = spec["selector"].items() <= pod.labels.items()
                up = spec.get("publishNotReadyAddresses") or (pod.ready and not pod.terminating)
                if chosen and up and pod.has_address:
                    lines.append(f"{pod.ip}\t{name} {name}.orch\n")
        return "".join(lines)

    def _call(self, work: Coroutine[object, object, T], within_s: float = _CALL_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s)
