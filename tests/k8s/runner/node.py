"""The node: what every pod of the cluster uses, and what it asks the rest of the cluster for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.k8s.runner.environment import Sources
from tests.k8s.runner.events import Event
from tests.k8s.runner.image import Image
from tests.k8s.runner.network import Network


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses before the next try: doubling, bounded. The kubelet's own are 10 s to 300 s."""

    first_s: float = 0.2
    most_s: float = 5.0

    def pause_s(self, failures: int) -> float:
        """The pause after so many failures in a row, from 1 up."""
        return float(min(self.most_s, self.first_s * 2 ** min(failures - 1, 30)))


@dataclass(frozen=True, slots=True)
class Node:
    """What every pod of the cluster uses."""

    state_dir: Path
    network: Network
    images: Mapping[str, Image]
    backoff: Backoff
    sources: Callable[[str], Sources]  # of a namespace
    hosts: Callable[[str], str]  # lines of /etc/hosts: the Services of a namespace, now
    claim: Callable[[str, str], Path | None]  # directory of a namespace's claim
    record: Callable[[Event], None]
