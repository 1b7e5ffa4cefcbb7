"""Which trace is replayed, at which load, beside which bulk work. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orch_sidecar.tools.simulate.traffic import Arrival, BulkClients, Replay, Workload
from orch_sidecar.tools.traces import read
from tests.benchmarks.policy import work
from vllm_plugin.contracts.profile import ServiceClass

EXCERPTS: Final = Path(__file__).parents[2] / "traces"
CLIENTS: Final = 24
# Mean tokens of bulk requests, and the sigma of their logarithm.
BULK: Final = Workload(prompt=48, output=96, bulk_factor=1, spread=0.5)
SEED: Final = 20_261_123

# Keys of requests that make different prompts: of the schedule, and of bulk clients.
_KEYS_OF_CLIENTS: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Kind:
    """One scenario. `load`: times the capacity; None: the times of the trace as they are."""

    trace: str
    load: float | None
    bulk: bool

    @property
    def name(self) -> str:
        load = "" if self.load is None else f"-{self.load:g}"
        return f"{self.trace}{load}{'+bulk' if self.bulk else ''}"


KINDS: Final = {
    kind.name: kind
    for kind in (
        *(Kind("conv", load, bulk) for bulk in (False, True) for load in (0.5, 1.0, 2.0)),
        *(Kind("code", None, bulk) for bulk in (False, True)),
    )
}


@dataclass(frozen=True, slots=True)
class Files:
    """The trace files, and the factor of their lengths."""

    conv: Path = EXCERPTS / "azure_llm_2023_conv.csv"
    code: Path = EXCERPTS / "azure_llm_2023_code.csv"
    length_factor: float = 1 / 16

    def replay(self, trace: str) -> Replay:
        path = self.conv if trace == "conv" else self.code
        return Replay(read(path).scaled(lengths=self.length_factor))


def rate_of(kind: Kind, replay: Replay, capacity_per_s: float) -> float:
    """Returns the mean rate of a scenario, requests/s."""
    return replay.rate if kind.load is None else kind.load * capacity_per_s


def seconds_of(kind: Kind, replay: Replay, seconds: float) -> float:
    """Returns how long a scenario lasts: a trace with its own times is not repeated."""
    return min(seconds, replay.trace.requests[-1].at_s) if kind.load is None else seconds


def clients(kind: Kind) -> BulkClients | None:
    return BulkClients(CLIENTS, BULK) if kind.bulk else None


def schedule(replay: Replay, rate: float, seconds: float) -> list[work.Request]:
    """Returns the interactive requests of a replay, with prompts of their own."""
    arrivals = replay.arrivals(rate, seconds, SEED)
    return [_request(each, number) for number, each in enumerate(arrivals)]


def bulk_requests() -> Iterator[work.Request]:
    """Yields the requests of bulk clients without end."""
    for number, each in enumerate(BulkClients(CLIENTS, BULK).requests(SEED)):
        yield _request(each, _KEYS_OF_CLIENTS + number)


def endless(replay: Replay) -> Iterator[work.Request]:
    """Yields the requests of a trace again and again, for a closed loop."""
    number = 0
    while True:
        for each in replay.trace.requests:
            lengths = (each.prompt_tokens, each.output_tokens)
            arrival = Arrival(0.0, ServiceClass.INTERACTIVE, *lengths, None)
            yield _request(arrival, 2 * _KEYS_OF_CLIENTS + number)
            number += 1


def _request(arrival: Arrival, key: int) -> work.Request:
    most = work.CONTEXT_TOKENS // 2 - 1
    return work.Request(
        arrival.at,
        arrival.service_class,
        min(most, arrival.prompt),
        min(most, arrival.output),
        SEED + key,
    )
