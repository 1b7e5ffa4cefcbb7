"""Several sidecars in front of one engine, in virtual time; their messages may be late or lost.

The engine's books are the plugin's own `EngineState`, each sidecar's admission and its claims are
real. What runs between them is written here: requests and their responses, which overtake each
other; the state stream, in order; claims, one at a time, but a lost one may arrive later.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from tests.orch_sidecar.admission.cluster_sidecar import Sidecar
from tests.vllm_plugin.examples import FACTS
from vllm_plugin.state.engine_state import EngineState

SLOTS = FACTS.slots_total


@dataclass
class Cluster:
    """One engine and its sidecars. `delay_s`: of each message, one way."""

    now: float = 1000.0
    takes_s: float = 0.008  # a request
    varies: float = 0.0  # by how much of that, up and down
    delay_s: float = 0.0
    slots: int = SLOTS
    peak: int = 0
    sidecars: list[Sidecar] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = EngineState(replace(FACTS, slots_total=self.slots), lambda: self.now)
        self._chance = random.Random(1)
        self._instances = 0

    def takes(self) -> float:
        return self.takes_s * (1 + self.varies * self._chance.uniform(-1, 1))

    def add(self, delay_s: float | None = None) -> Sidecar:
        self._instances += 1
        delay_s = self.delay_s if delay_s is None else delay_s
        sidecar = Sidecar(self, f"{self._instances:016x}", delay_s)
        sidecar.read()
        self.sidecars.append(sidecar)
        return sidecar

    def kill(self, sidecar: Sidecar) -> None:
        """A sidecar dies: its connections are closed, and the engine aborts its requests."""
        self.sidecars.remove(sidecar)
        sidecar.disconnect()
        for attempt in sidecar.running:
            assert attempt.key is not None
            self.engine.leave(attempt.key)

    def run(self, milliseconds: int) -> None:
        """Delivers everything that is due by the millisecond. Those in which nothing is are passed
        over: what admission and engine say of when they have something to do has to hold."""
        due = self.now  # whatever was done since the last run
        for _ in range(milliseconds):
            self.now += 0.001
            if self.now >= due:
                self.engine.tick()
                for sidecar in self.sidecars:
                    self._run(sidecar)
                due = min(each.due() for each in self.sidecars)
                if (ticks_at := self.engine.ticks_at()) is not None:
                    due = min(due, ticks_at)

    def _run(self, sidecar: Sidecar) -> None:
        now = self.now
        for attempt in [each for each in sidecar.sent if each.due <= now]:
            sidecar.deliver(attempt)
        for attempt in [each for each in sidecar.running if each.due <= now]:
            sidecar.finish(attempt)
        self.peak = max(self.peak, self.engine.leases.leased())
        for answer in [each for each in sidecar.answers if each[0].due <= now]:
            sidecar.receive(answer)
        if sidecar.call is not None and sidecar.call[1] <= now:
            sidecar.deliver_call()
        sidecar.push()
        while sidecar.stream and sidecar.stream[0][2] <= now:
            sidecar.read()
        sidecar.timer()
        sidecar.put()
        sidecar.revoke()

    def settle(self, most_ms: int) -> None:
        """Runs until all requests are answered."""
        for _ in range(most_ms):
            if not any(each.requests for each in self.sidecars):
                return
            self.run(1)
        waiting = {
            each.instance: (len(each.requests), each.claims.total_claim) for each in self.sidecars
        }
        raise AssertionError(f"not answered in {most_ms} ms: {waiting}")
