"""Serves requests in several ways on one engine: one by one, in steps that alternate, in static
batches, and continuously."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from itertools import count
from statistics import fmean, median
from typing import Any, Final

from tests.benchmarks.policy import profiles, rig, work
from tests.benchmarks.policy.call import Answer, Target
from tests.benchmarks.policy.load import Run, in_turn, together
from tests.benchmarks.policy.rig import Engine, NotServing, Sidecar
from tests.benchmarks.published.models import BATCH, QUEUED, in_static_batches
from vllm_plugin.contracts.profile import ServiceClass

SIZES: Final = (2, 3, 4, 8, 10, 16)
SLOTS: Final = max(SIZES)
PROMPT, FIFTY, TEN = 16, 50, 10
MIXED: Final = (10, 90)  # in turns: a static batch lasts as long as its longest request
JSON: Final = {"Content-Type": "application/json"}
DETERMINISTIC: Final = {"temperature": 0.0}

# Steps that alternate are requests for one token each, whose earlier tokens the prefix cache has,
# but for those of a block that is not full: so it is as small as the CPU allows.
ARGUMENTS: Final = ("--enable-prefix-caching", "--block-size", "32")


class Ways:
    """The ways on one engine. `size`: of the model."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._keys = count(1)

    def measure(self) -> dict[str, float]:
        """Returns the figures by the keys of the claims."""
        found = self._sizes() | self._static() | self._streams()
        return found | {"alternating": self._alternating()}

    def _requests(self, lengths: Sequence[int]) -> list[work.Request]:
        return [
            work.Request(0.0, ServiceClass.BULK, PROMPT, length, next(self._keys))
            for length in lengths
        ]

    def _sidecar(self, most: int) -> Sidecar:
        """One that lets in so many at once, and shares no generation."""
        path = profiles.write(rig.logs(), f"batch-{most}", profiles.batch_of(most))
        return Sidecar(path, self._engine.url)

    def _sizes(self) -> dict[str, float]:
        """Tokens/s of several requests at once over those of one."""
        with self._sidecar(SLOTS) as sidecar:
            target = _bulk(sidecar)
            in_turn([(target, each) for each in self._requests([FIFTY])])
            alone = in_turn([(target, each) for each in self._requests([FIFTY] * TEN)])
            one_s = median(_ended_s(each) for each in alone)
            return {
                f"x{size}": size * one_s / _last_s(together(target, self._requests([FIFTY] * size)))
                for size in SIZES
            }

    def _static(self) -> dict[str, float]:
        """The queue that collects batches, beside continuous batching of as many at once."""
        found: dict[str, float] = {}
        with self._sidecar(BATCH) as sidecar:
            target = _bulk(sidecar)
            serial = in_turn([(target, each) for each in self._requests([FIFTY] * BATCH)])
            serial_s = sum(map(_ended_s, serial)) * QUEUED / BATCH
            for name, lengths in (("equal", (FIFTY, FIFTY)), ("mixed", MIXED)):
                wanted = lengths * (QUEUED // 2)
                static = asyncio.run(_in_batches(target, self._requests(wanted)))
                continuous = together(target, self._requests(wanted))
                found[f"over_{name}"] = _last_s(static) / _last_s(continuous)
                found["later"] = _mean_s(static) / _mean_s(continuous)
                if name == "equal":
                    found["static"] = serial_s / _last_s(static)
        return found

    def _streams(self) -> dict[str, float]:
        """Two streams that overlap, and three identical ones that share a generation."""
        path = profiles.write(rig.logs(), "shipped", profiles.coalescing())
        with Sidecar(path, self._engine.url) as sidecar:
            target = Target(sidecar.port, body=lambda request: DETERMINISTIC)
            first, second = together(target, self._requests([FIFTY, FIFTY]))
            overlap = (second.first_s or 0.0) < _ended_s(first)
            same = self._requests([FIFTY]) * 3
            together(target, same)
            [one] = in_turn([(target, each) for each in self._requests([FIFTY])])
            return {
                "before": float(overlap),
                "identical": _last_s(together(target, same)) / _ended_s(one),
            }

    def _alternating(self) -> float:
        """The seconds of token by token requests one after the other, over those in turns."""
        with self._sidecar(SLOTS) as sidecar:
            apart, turns = (
                [_tokens(sidecar.port, each) for each in self._requests([FIFTY] * TEN)]
                for _ in range(2)
            )
            began = time.monotonic()
            for stream in apart:
                for _ in stream:
                    pass
            between = time.monotonic()
            for _ in zip(*turns, strict=True):
                pass
            return (between - began) / (time.monotonic() - between)


async def _in_batches(target: Target, requests: Sequence[work.Request]) -> list[Answer]:
    run = Run(target)

    async def serve(batch: Sequence[work.Request]) -> None:
        await asyncio.gather(*(run.ask(each) for each in batch))

    await in_static_batches(requests, serve)
    return run.answers


def _tokens(port: int, request: work.Request) -> Iterator[int]:
    """Generates the tokens of a request, each by a request of its own for one token."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.loads(request.body()) | {"max_tokens": 1, "stream": False, "return_token_ids": True}
    for _ in range(request.output_tokens):
        connection.request("POST", "/v1/completions", json.dumps(body), JSON)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        if "choices" not in answer:
            raise NotServing(f"a token was not generated: {answer}")
        [token] = answer["choices"][0]["token_ids"]
        body["prompt"].append(token)
        yield token
    connection.close()


def _bulk(sidecar: Sidecar) -> Target:
    return Target(sidecar.port, lambda request: b"X-Orch-Class: bulk\r\n")


def _ended_s(answer: Answer) -> float:
    if not answer.complete or answer.last_s is None:
        raise NotServing(f"a request was not answered: {answer.code}")
    return answer.last_s


def _last_s(answers: Sequence[Answer]) -> float:
    return max(map(_ended_s, answers))


def _mean_s(answers: Sequence[Answer]) -> float:
    return fmean(map(_ended_s, answers))
