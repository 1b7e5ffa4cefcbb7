"""Makes requests of exact lengths and their arrivals from fixed seeds.

Pure. Lengths are tokens, times are seconds since the start. Lengths do not depend on the rate: the
same seed gives the same requests on a machine of any speed.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from vllm_plugin.contracts.profile import ServiceClass

MODEL: Final = "bench"
CONTEXT_TOKENS: Final = 2048

# Ids of the tokenizer's byte alphabet: each is one token, whatever the model.
_FIRST_ID, _LAST_ID = 16, 240


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal numbers of tokens: their mean, and sigma of the logarithm (0: all the same)."""

    mean: float
    sigma: float = 0.5
    most: int = CONTEXT_TOKENS // 2 - 1

    def draw(self, chance: random.Random) -> int:
        mu = math.log(self.mean) - self.sigma**2 / 2
        return min(self.most, max(1, round(chance.lognormvariate(mu, self.sigma))))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request, and its share of all."""

    service_class: ServiceClass
    share: float
    prompt: Lengths
    output: Lengths


Mix = tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What one client asks. `key`: requests of one key are identical, letter by letter."""

    at_s: float
    service_class: ServiceClass
    prompt_tokens: int
    output_tokens: int
    key: int

    def body(self, more: dict[str, Any] | None = None) -> bytes:
        """A streamed completion of exactly `output_tokens`."""
        chance = random.Random(self.key)
        prompt = chance.choices(range(_FIRST_ID, _LAST_ID), k=self.prompt_tokens)
        return completion(prompt, self.output_tokens, more)


def completion(prompt: list[int], output_tokens: int, more: dict[str, Any] | None) -> bytes:
    """The body of a streamed completion of exactly `output_tokens`."""
    return json.dumps(
        {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
            **(more or {}),
        }
    ).encode()


def endless(mix: Mix, rate: float, seed: int) -> Iterator[Request]:
    """Poisson arrivals at `rate` per second, for ever."""
    chance = random.Random(seed)
    weights = [kind.share for kind in mix]
    at_s = 0.0
    for number in count():
        at_s += chance.expovariate(1.0) / rate
        kind = chance.choices(mix, weights)[0]
        prompt, output = kind.prompt.draw(chance), kind.output.draw(chance)
        yield Request(at_s, kind.service_class, prompt, output, seed * 1_000_003 + number)


def arrivals(mix: Mix, rate: float, seconds: float, seed: int) -> list[Request]:
    """Those of the first `seconds`."""
    found: list[Request] = []
    for request in endless(mix, rate, seed):
        if request.at_s >= seconds:
            return found
        found.append(request)
    raise AssertionError("endless arrivals ended")


def mean_output(mix: Mix, requests: int = 20_000) -> float:
    """Tokens that a request of this mix generates, as drawn (they are bounded)."""
    stream = endless(mix, 1.0, 0)
    return sum(next(stream).output_tokens for _ in range(requests)) / requests


def two_classes(interactive: Kind, times: float) -> Mix:
    """An interactive kind, and a bulk kind that is `times` as long and has the other share."""
    bulk = Kind(
        ServiceClass.BULK,
        1 - interactive.share,
        Lengths(interactive.prompt.mean * times, interactive.prompt.sigma),
        Lengths(interactive.output.mean * times, interactive.output.sigma),
    )
    return (interactive, bulk)
