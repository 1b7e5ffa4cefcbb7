"""Counts the events and violations of a soak by kind, with the first example of each."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

_EXAMPLES: Final = 3
_REMEMBERED: Final = 6  # things that were done before a breach


@dataclass(slots=True)
class Breach:
    """One kind of what must not happen. `at_s`: seconds since the soak began, the first time."""

    count: int = 0
    at_s: float = 0.0
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Readings:
    """The sidecar's process at one moment, when nothing was in it."""

    rss_bytes: int
    descriptors: int
    threads: int
    tasks: int

    def __str__(self) -> str:
        return (
            f"RSS {self.rss_bytes / 2**20:.1f} MiB, {self.descriptors} descriptors, "
            f"{self.threads} threads, {self.tasks} tasks"
        )


class Report:
    """The counts of all scenes together."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.scene = ""
        self.lifecycles = 0
        self.outcomes: Counter[str] = Counter()
        self.behaviours: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.breaches: dict[str, Breach] = {}
        self.notes: list[str] = []
        self._began = time.monotonic()
        self._lately: deque[str] = deque(maxlen=_REMEMBERED)
        self._loaded_s = 0.0
        self._scene_began: tuple[float, int] = (0.0, 0)
        self._slowest: tuple[float, str] = (0.0, "")

    def begin(self, scene: str) -> None:
        self.scene = scene
        self._scene_began = time.monotonic(), self.lifecycles
        self._slowest = 0.0, ""
        print(f"{scene} ...", flush=True)

    def answered(self, took_s: float, request: object) -> None:
        """A request has its answer, so many seconds after it was sent or its turn came."""
        if took_s > self._slowest[0]:
            self._slowest = took_s, str(request)

    def loaded(self) -> None:
        """The clients of this scene have ended."""
        began, lifecycles = self._scene_began
        seconds = time.monotonic() - began
        self._loaded_s += seconds
        done = self.lifecycles - lifecycles
        self.note(f"{done} lifecycles in {seconds:.0f} s")
        took_s, request = self._slowest
        self.note(f"the slowest answer took {took_s:.1f} s: {request}")

    def note(self, text: str) -> None:
        self.notes.append(f"{self.scene}: {text}")
        print(f"  {text}", flush=True)

    def remember(self, what: str) -> None:
        """Records what was done to an engine, for the report of breaches that follow."""
        self._lately.append(f"{time.monotonic() - self._began:.1f} s {what}")

    def breach(self, kind: str, detail: str) -> None:
        """Something that must not happen has. Returns: a soak goes on, it may find more."""
        known = self.breaches.setdefault(kind, Breach(at_s=time.monotonic() - self._began))
        known.count += 1
        if len(known.examples) < _EXAMPLES:
            at = f"{self.scene}, {time.monotonic() - self._began:.1f} s"
            known.examples.append(f"{at}: {detail}\n    lately: {'; '.join(self._lately)}")
            print(f"  BREACH {kind}: {detail}", file=sys.stderr, flush=True)

    def text(self) -> str:
        rate = self.lifecycles / self._loaded_s if self._loaded_s else 0.0
        lines = [
            f"seed {self.seed}: {self.lifecycles} request lifecycles, {rate:.0f} per second",
            f"  clients   {_counts(self.behaviours)}",
            f"  outcomes  {_counts(self.outcomes)}",
            f"  faults    {_counts(self.faults)}",
            *(f"  {note}" for note in self.notes),
        ]
        for kind, breach in self.breaches.items():
            lines.append(f"BREACH {kind}: {breach.count} times, first after {breach.at_s:.1f} s")
            lines += [f"  {example}" for example in breach.examples]
        lines.append("no breach" if not self.breaches else f"{len(self.breaches)} kinds of breach")
        return "\n".join(lines)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common()) or "none"
