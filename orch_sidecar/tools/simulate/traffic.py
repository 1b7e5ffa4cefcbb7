"""Requests: drawn from a seed or replayed from a trace, and clients that always have bulk work.

Drawn intervals have a gamma distribution of shape `burstiness` (1: Poisson, below 1: burstier), as
in vLLM's own benchmark; lengths of prompts and outputs a lognormal one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count as numbers
from itertools import cycle, islice
from math import log
from random import Random
from typing import Final, TypeAlias

from orch_sidecar.tools.traces import Trace, merged
from vllm_plugin.contracts.profile import BULK, INTERACTIVE, ServiceClass

# Lengths are capped at this multiple of the mean, so that requests fit a context length and a
# single draw does not dominate a run.
LONGEST: Final = 8


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request. `max_tokens`: the `output` as known to admission, None if unknown."""

    at: float
    service_class: ServiceClass
    prompt: int
    output: int
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class Workload:
    """The distribution of requests. Lengths are mean tokens; bulk ones `bulk_factor` times that.

    `spread`: sigma of the logarithm of a length. `max_tokens_known`: whether requests give it.
    """

    bulk_share: float = 0.7
    prompt: float = 128.0
    output: float = 64.0
    bulk_factor: float = 8.0
    spread: float = 0.5
    burstiness: float = 1.0
    max_tokens_known: bool = True

    def alone(self, service_class: ServiceClass) -> Workload:
        """Returns the same traffic with requests of this class only."""
        return replace(self, bulk_share=float(service_class is BULK))

    def arrivals(self, rate: float, seconds: float, seed: int) -> list[Arrival]:
        """Returns the requests of that many seconds, at `rate` per second."""
        times, lengths = Random(f"{seed} times"), Random(f"{seed} lengths")  # noqa: S311 (no secret)
        scale = 1 / (rate * self.burstiness)
        found: list[Arrival] = []
        at = times.gammavariate(self.burstiness, scale)
        while at < seconds:
            found.append(self._draw(at, lengths))
            at += times.gammavariate(self.burstiness, scale)
        return found

    def at_once(self, count: int, seed: int) -> list[Arrival]:
        """Returns that many requests, all at time 0."""
        lengths = Random(f"{seed} lengths")  # noqa: S311 (no secret)
        return [self._draw(0.0, lengths) for _ in range(count)]

    def _draw(self, at: float, random: Random) -> Arrival:
        service_class = BULK if random.random() < self.bulk_share else INTERACTIVE
        factor = self.bulk_factor if service_class is BULK else 1.0
        prompt = self._length(factor * self.prompt, random)
        output = self._length(factor * self.output, random)
        return Arrival(at, service_class, prompt, output, output if self.max_tokens_known else None)

    def _length(self, mean: float, random: Random) -> int:
        drawn = random.lognormvariate(log(mean) - self.spread**2 / 2, self.spread)
        return max(1, min(round(drawn), round(LONGEST * mean)))


# Requests of clients are drawn by so many, from seeds that far apart.
_DRAWN: Final = 256
_SEEDS_APART: Final = 7919


@dataclass(frozen=True, slots=True)
class Replay:
    """The requests of a trace as interactive ones, and of a second trace as bulk ones. Both classes
    have `prompt` and `output`, mean tokens of an interactive request, and the same methods.

    `max_tokens_known`: whether requests give the length of their answers.
    """

    trace: Trace
    bulk: Trace | None = None
    max_tokens_known: bool = True

    @property
    def prompt(self) -> float:
        requests = self.trace.requests
        return sum(each.prompt_tokens for each in requests) / len(requests)

    @property
    def output(self) -> float:
        requests = self.trace.requests
        return sum(each.output_tokens for each in requests) / len(requests)

    @property
    def count(self) -> int:
        """Requests of both traces."""
        return len(self.trace.requests) + (len(self.bulk.requests) if self.bulk else 0)

    @property
    def rate(self) -> float:
        """Requests per second of the trace as it is, the second one's included: 1 / mean gap."""
        found = self._arrivals(1.0)
        last = found[-1].at
        return (len(found) - 1) / last if last else float(len(found))

    def alone(self, service_class: ServiceClass) -> Replay:
        """Returns the same traffic with requests of this class only."""
        if service_class is INTERACTIVE:
            return replace(self, bulk=None)
        raise ValueError("a trace's bulk requests are not replayed alone")

    def arrivals(self, rate: float, seconds: float, seed: int) -> list[Arrival]:
        """The trace again and again, each time from its beginning, until the seconds have passed.

        All times are multiplied by one factor, so that the mean rate is `rate`. `seed` is not used.
        """
        once = self._arrivals(self.rate / rate)
        period = len(once) / rate
        found: list[Arrival] = []
        for turn in numbers():
            later = [replace(each, at=each.at + turn * period) for each in once]
            found += [each for each in later if each.at < seconds]
            if later[-1].at >= seconds:
                return found
        raise AssertionError("an endless count ended")

    def at_once(self, count: int, seed: int) -> list[Arrival]:
        """Returns that many requests, all at time 0."""
        return [replace(each, at=0.0) for each in islice(cycle(self._arrivals(1.0)), count)]

    def _arrivals(self, time: float) -> list[Arrival]:
        return [
            Arrival(
                time * each.at_s,
                service_class,
                each.prompt_tokens,
                each.output_tokens,
                each.output_tokens if self.max_tokens_known else None,
            )
            for each, service_class, _ in merged(self.trace, self.bulk)
        ]


# Requests whose rate can be set.
Traffic: TypeAlias = Workload | Replay


@dataclass(frozen=True, slots=True)
class BulkClients:
    """Clients that send their next request when one has ended: bulk ones, of the `lengths` of its
    bulk ones, or as many idle ones."""

    count: int
    lengths: Workload
    service_class: ServiceClass = BULK

    def requests(self, seed: int) -> Iterator[Arrival]:
        """Yields their requests without end; the caller sets the times."""
        workload = self.lengths.alone(BULK)
        for turn in numbers():
            for each in workload.at_once(_DRAWN, seed + turn * _SEEDS_APART):
                yield replace(each, service_class=self.service_class)
