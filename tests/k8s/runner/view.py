"""Pods as tests see them: values, and words for an error message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.k8s.runner.pod import Phase, PodRun

_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as it was when it was asked for. `restarts` counts starts after the first one."""

    name: str
    namespace: str
    ip: str
    phase: Phase
    ready: bool
    terminating: bool
    labels: Mapping[str, str]
    restarts: Mapping[str, int]
    logs: Mapping[str, Path]

    def log(self, container: str) -> str:
        """All the container wrote so far, over all its runs; empty before its first one."""
        path = self.logs[container]
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def shown(pod: PodRun) -> Pod:
    """The pod as it is now."""
    spec = pod.spec
    names = [part.name for part in (*spec.init_containers, *spec.containers)]
    return Pod(
        name=pod.identity.name,
        namespace=pod.identity.namespace,
        ip=pod.identity.pod_ip,
        phase=pod.phase,
        ready=pod.ready,
        terminating=pod.terminating,
        labels=pod.identity.labels,
        restarts={part.container.name: max(0, part.runs - 1) for part in pod.containers},
        logs={name: pod.log_path(name) for name in names},
    )


def told(pod: PodRun) -> str:
    """The pod, its containers' states, their probes' last results and their last lines."""
    state = "terminating" if pod.terminating else pod.phase
    lines = [f"pod {pod.identity.name} {pod.identity.pod_ip} {state} {pod.reason}".rstrip()]
    for part in pod.containers:
        ready = "ready" if part.ready else "not ready"
        lines.append(
            f"  {part.kind} {part.container.name}: {part.reason}, {ready}, {part.runs}. run"
        )
        lines += [f"    {name} probe: {last.detail}" for name, last in part.results.items()]
        if part.log.exists():
            text = part.log.read_text(encoding="utf-8", errors="replace")
            lines += [f"    | {line}" for line in text.splitlines()[-_TAIL_LINES:]]
    return "\n".join(lines)
