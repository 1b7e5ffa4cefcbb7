"""The ways to the engine that are compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tests.benchmarks.policy import profiles, rig
from tests.benchmarks.policy.call import Target
from tests.benchmarks.policy.rig import Engine, Sidecar
from tests.benchmarks.policy.work import Request
from vllm_plugin.contracts.profile import ServiceClass

SIDECAR, DIRECT, PRIORITY, FIFO = "sidecar", "direct", "direct-priority", "fifo"
WAYS: Final = (SIDECAR, DIRECT, PRIORITY, FIFO)


@dataclass(frozen=True, slots=True)
class Way:
    """Where requests go. `at_once`: no more of them are sent at the same time; None: no limit."""

    target: Target
    at_once: int | None = None


def _with_class(request: Request) -> bytes:
    return f"X-Orch-Class: {request.service_class}\r\n".encode()


@contextmanager
def way(name: str, engine: Engine, slots: int, slo_ms: float) -> Iterator[Way]:
    """Opens a way to the engine: the shipped profile with that SLO, or none at all."""
    if name == SIDECAR:
        document = profiles.policy(slo_ms, max_wait_s=600.0)
        path = profiles.write(rig.logs(), "traffic", document)
        with Sidecar(path, engine.url, name="sidecar-traffic") as sidecar:
            yield Way(Target(sidecar.port, _with_class))
    elif name == PRIORITY:  # vLLM: a lower one is served earlier
        bulk = ServiceClass.BULK
        yield Way(Target(engine.port, body=lambda r: {"priority": int(r.service_class is bulk)}))
    else:  # a semaphore in front of the engine, in order of arrival: what most people write first
        yield Way(Target(engine.port), slots if name == FIFO else None)
