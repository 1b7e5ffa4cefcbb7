"""Draws the arrivals and lengths of requests from a seed.

Intervals have a gamma distribution of shape `burstiness` (1: Poisson, below 1: burstier), as in
vLLM's own benchmark; lengths of prompts and outputs a lognormal one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from random import Random
from typing import Final

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
