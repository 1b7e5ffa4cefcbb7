"""A cluster of one machine that really runs what manifests say: the tests' way in.

    with Cluster(images={"vllm/vllm-openai-cpu:v1": python_image(venv, project, "orch-sidecar")},
                 state_dir=tmp_path) as cluster:
        cluster.apply(yaml.safe_load_all(text))
        cluster.wait(lambda: cluster.ready("orch-cloud") >= 1, within_s=120)

What is as in a cluster: a network namespace and address per pod, volumes, users and capabilities,
read-only roots, init containers, native sidecars, probes, the order and the times of leaving. What
is not: images are this machine's own files, names are in /etc/hosts, a Service is its pods, nothing
is scheduled, limited, filtered or rolled out. A field that is neither done nor listed as without
effect is an error.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.k8s.runner.container import Executed
from tests.k8s.runner.control import Control
from tests.k8s.runner.events import Event
from tests.k8s.runner.image import Image
from tests.k8s.runner.node import Backoff
from tests.k8s.runner.tools import ToolFailed
from tests.k8s.runner.view import Pod, shown, told

T = TypeVar("T")
_CALL_S = 60.0  # no call of this class into its loop takes longer, unless it has its own limit


class NotReached(AssertionError):
    """What a test waited for did not come; the message shows every pod as it is."""


class Cluster:
    """A context manager; at its end nothing is left but `state_dir` with logs and claims."""

    def __init__(
        self, images: Mapping[str, Image], state_dir: Path, *, backoff: Backoff | None = None
    ) -> None:
        """`state_dir` is a directory of a disk's file system; it may exist already."""
        self._images, self._backoff = dict(images), backoff or Backoff()
        self._state_dir = state_dir.resolve()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._control: Control | None = None

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all pods at once and removes everything from the machine."""
        try:
            if self._control is not None:
                self._call(self._control.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    @property
    def events(self) -> list[Event]:
        """Everything that happened so far, in order."""
        return list(self._held.events)

    def apply(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Takes objects as `kubectl apply` does: all of them, or none where one is wrong.

        Raises:
            SpecError: names object and field.
        """
        items = [item for item in objects if item]
        self._ask(lambda control: control.apply(items))

    def scale(self, deployment: str, replicas: int, namespace: str = "default") -> None:
        """`kubectl scale`: returns at once."""

        def do(control: Control) -> None:
            control.scale(control.deployment(deployment, namespace), replicas)

        self._ask(do)

    def delete_pod(self, name: str, *, grace_s: float | None = None) -> None:
        """`kubectl delete pod --wait=false`; `grace_s` in place of the pod's own grace."""
        self._ask(lambda control: control.pod(name).delete(grace_s))

    def pods(self, deployment: str, namespace: str = "default") -> list[Pod]:
        """The Deployment's pods that are not gone, oldest first, terminating ones included."""
        return self._ask(
            lambda control: [
                shown(pod) for pod in control.pods_of(control.deployment(deployment, namespace))
            ]
        )

    def ready(self, deployment: str, namespace: str = "default") -> int:
        """How many pods are ready and not leaving."""
        pods = self.pods(deployment, namespace)
        return sum(pod.ready and not pod.terminating for pod in pods)

    def claim(self, name: str, namespace: str = "default") -> Path:
        """The directory of a PersistentVolumeClaim, to be filled or looked into.

        Raises:
            LookupError: no such claim was applied.
        """
        path = self._held.claim(namespace, name)
        if path is None:
            raise LookupError(f"no PersistentVolumeClaim {name!r} in namespace {namespace!r}")
        return path

    def exec(
        self, pod: str, container: str, command: Sequence[str], *, within_s: float = 30.0
    ) -> Executed:
        """`kubectl exec`: as the container's user, in its namespaces, with its environment.

        Raises:
            LookupError: no such pod, or its container does not run.
            TimeoutError: the command took longer.
        """

        async def do() -> Executed:
            for part in self._held.pod(pod).containers:
                if part.container.name == container and part.run is not None and part.run.alive:
                    done = await part.run.execute(list(command), within_s)
                    if done is None:
                        raise TimeoutError(f"{command} in {pod} took longer than {within_s} s")
                    return done
            raise LookupError(f"container {container!r} of pod {pod!r} does not run")

        return self._call(do(), within_s + _CALL_S)

    def wait(self, condition: Callable[[], bool], within_s: float, every_s: float = 0.05) -> None:
        """Waits until the condition holds.

        Raises:
            NotReached: it did not in time, or the harness itself failed; with all pods' states.
        """
        deadline = time.monotonic() + within_s
        while not condition():
            if self._held.failures:
                wrong = self._held.failures[0]
                raise NotReached(f"the harness failed: {wrong!r}\n{self.report()}") from wrong
            if time.monotonic() > deadline:
                raise NotReached(f"not within {within_s} s\n{self.report()}")
            time.sleep(every_s)

    def report(self) -> str:
        """Every pod: its containers' states, their probes' last results, their last lines."""
        return self._ask(lambda control: "\n".join(told(entry.pod) for entry in control.controlled))

    @property
    def _held(self) -> Control:
        if self._control is None:
            raise RuntimeError("the cluster is not open: use it as a context manager")
        return self._control

    async def _open(self) -> None:
        self._control = Control(self._images, self._state_dir, self._backoff)
        await self._control.open()

    def _ask(self, question: Callable[[Control], T]) -> T:
        """Calls `question` inside the loop, where nothing changes meanwhile."""

        async def do() -> T:
            return question(self._held)

        return self._call(do())

    def _call(self, work: Coroutine[object, object, T], within_s: float = _CALL_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s)
