"""Makes random requests, and states the answers that each of them may get."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from tests.benchmarks.soak.answers import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from tests.benchmarks.soak.keys import Key, Keys
from tests.benchmarks.soak.orders import Fault, Order
from tests.benchmarks.soak.scenes import PoolPlan, Scene

_PATHS: Final = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS)
_SEVERAL: Final = (CHAT, COMPLETIONS, EMBEDDINGS)  # sequences of one request
_STREAM_FAULTS: Final = (
    Fault.ERROR_EVENT, Fault.RESET, Fault.CUT, Fault.CUT_WITHIN, Fault.BAD_CHUNK, Fault.HANG,
)  # fmt: skip
_WHOLE_FAULTS: Final = (Fault.RESET, Fault.CUT, Fault.HANG)
_ANY_FAULTS: Final = (
    Fault.DRIBBLE, Fault.EXTRA, Fault.GONE_ONCE, Fault.HTTP_400, Fault.HTTP_500, Fault.HTTP_503,
    Fault.RESET_FIRST, Fault.CLOSE_FIRST, Fault.BAD_HEAD, Fault.HANG_FIRST,
)  # fmt: skip
_HANGING: Final = frozenset({Fault.HANG, Fault.HANG_FIRST})
_FAULTY: Final = 0.08  # of all requests
_SHARED: Final = 0.15


@dataclass(slots=True)
class Request:
    """`id`: its X-Request-Id. `pools`: those that could serve it, by name; none: it is impossible.
    `behaviour`: of its client. `shared`: others ask for the same. `sent_class`: that of the header
    X-Orch-Class."""

    id: str
    path: str
    order: Order
    stream: bool
    choices: int
    usage: bool
    key: Key
    pools: tuple[str, ...]
    shared: bool
    behaviour: str = ""
    sent_class: str | None = None
    deadline: bool = False
    max_wait: bool = False
    do_not_queue: bool = False
    head: bytes = b""
    body: bytes = b""

    @property
    def bulk(self) -> bool:
        return self.key.bulk or self.sent_class == "bulk"

    def __str__(self) -> str:
        """As breaches name it."""
        pools = ",".join(self.pools) or "none"
        return (
            f"{self.id} {self.path} {self.behaviour} stream={self.stream} n={self.choices} "
            f"bulk={self.bulk} shared={self.shared} fault={self.order.fault} pools={pools}"
        )


class Requests:
    """Makes requests for one scene."""

    def __init__(self, scene: Scene, keys: Keys, chance: Random) -> None:
        self._scene = scene
        self._keys = keys
        self._chance = chance
        self._numbers = itertools.count(1)
        self._prefix = f"{chance.getrandbits(32):08x}"

    @property
    def steady_key(self) -> str:
        """A key that always holds."""
        return self._keys.steady[0].value

    def next(
        self, order: Order | None = None, headers: Sequence[str] = (), *, last: bool = True
    ) -> Request:
        """`order`: what the engine is to do, where that is not to be left to chance. `last`: no
        other request is sent behind it before its answer has come."""
        chance = self._chance
        own = f"soak-{self._prefix}-{next(self._numbers)}"
        path, stream = chance.choice(_PATHS), chance.random() < 0.6
        stream = stream and path != EMBEDDINGS
        choices = 1
        shared = order is None and path in (CHAT, COMPLETIONS) and chance.random() < _SHARED
        if order is None and not shared and path in _SEVERAL:
            choices = chance.choices((1, 2, 3, 9), (16, 4, 2, 1))[0]
        if shared:
            # A few orders at a time, the same for all who ask.
            number = next(self._numbers) // 200 * 8 + chance.randrange(4)
            order = self._order(Random(f"{self._prefix} {number}"), f"s{number}", stream)
        order = order or self._order(chance, own, stream)
        fields = list(headers)
        pools = self._pin(fields)
        request = Request(
            own, path, order, stream, choices, chance.random() < 0.5, self._keys.choose(),
            pools, shared,
        )  # fmt: skip
        self._wish(request, fields)
        if last and chance.random() < 0.03:
            fields.append("Connection: close")
        self._write(request, fields)
        return request

    def _order(self, chance: Random, key: str, stream: bool) -> Order:
        fault = Fault.NONE
        if chance.random() < _FAULTY:
            own = _STREAM_FAULTS if stream else _WHOLE_FAULTS
            fault = chance.choice(own if chance.random() < 0.5 else _ANY_FAULTS)
            if fault in _HANGING and chance.random() < 0.9:  # each takes its slots for seconds
                fault = Fault.NONE
        pace_ms = chance.choices((0.0, 1.0, 5.0, 20.0), (5, 3, 2, 0.5))[0]
        tokens = chance.randrange(1, 12)
        after, apart = chance.randrange(1, 6), chance.random() < 0.5
        return Order(key, tokens, fault, pace_ms, after, apart)

    def _pin(self, fields: list[str]) -> tuple[str, ...]:
        """Chooses a pool or a measurement type, at times. Returns the pools that are left."""
        chance, pools = self._chance, self._scene.pools
        left: Sequence[PoolPlan] = [each for each in pools if not each.on_request]
        draw = chance.random()
        if draw < 0.15:
            left = [chance.choice(pools)]
            fields.append(f"X-Orch-Pool: {left[0].name}")
        elif draw < 0.2:
            kind = chance.choice(pools).measurement_type
            left = [each for each in pools if each.measurement_type == kind]
            fields.append(f"X-Orch-Measurement-Type: {kind}")
        elif draw < 0.25:
            fields.append(f"X-Orch-Pool: {chance.choice(pools).name}; prefer")
        return tuple(each.name for each in left)

    def _wish(self, request: Request, fields: list[str]) -> None:
        chance = self._chance
        if chance.random() < 0.5:
            request.sent_class = chance.choice(("interactive", "bulk"))
            fields.append(f"X-Orch-Class: {request.sent_class}")
        draw = chance.random()
        if draw < 0.2:
            request.max_wait = True
            fields.append(f"X-Orch-Max-Wait-Ms: {chance.randrange(1, 21)}")
        elif draw < 0.25:
            request.deadline = True
            fields.append(f"X-Orch-Deadline-Ms: {chance.choice((1, 20, 500))}")
        elif draw < 0.3:
            request.do_not_queue = True
            fields.append("X-Orch-Do-Not-Queue: true")
        if chance.random() < 0.05:
            fields.append("X-Orch-No-Coalesce: true")

    def _write(self, request: Request, fields: list[str]) -> None:
        key = request.key.value
        fields.append(
            f"X-Api-Key: {key}" if request.path == MESSAGES else f"Authorization: Bearer {key}"
        )
        request.body = json.dumps(self._document(request)).encode()
        lines = [
            f"POST {request.path} HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            f"X-Request-Id: {request.id}",
            f"Content-Length: {len(request.body)}",
            *fields,
        ]
        request.head = "\r\n".join(lines).encode() + b"\r\n\r\n"

    def _document(self, request: Request) -> dict[str, Any]:
        chance, order = self._chance, request.order
        padding = 0
        if not request.shared and chance.random() < 0.02:
            padding = chance.choice((5_000, 70_000, 300_000 if request.choices == 1 else 90_000))
        prompt = order.prompt(padding)
        document: dict[str, Any] = {"model": "tiny", "stream": request.stream}
        if request.path == COMPLETIONS:
            several = request.choices > 1 and chance.random() < 0.5
            document["prompt"] = prompt
            if several:
                orders = [replace(order, first=number) for number in range(request.choices)]
                document["prompt"] = [each.prompt(padding) for each in orders]
            elif request.choices > 1:
                document |= {"n": request.choices, "seed": 0}
        elif request.path == EMBEDDINGS:
            orders = [replace(order, first=number) for number in range(request.choices)]
            document["input"] = [each.prompt(padding) for each in orders]
            del document["stream"]
        elif request.path == RESPONSES:
            document["input"] = prompt
        else:
            document["messages"] = [{"role": "user", "content": prompt}]
            if request.choices > 1:
                document |= {"n": request.choices, "seed": 0}
        if request.path == MESSAGES or (request.path != EMBEDDINGS and chance.random() < 0.5):
            limit = "max_output_tokens" if request.path == RESPONSES else "max_tokens"
            document[limit] = 16
        if request.shared:
            document |= {"temperature": 0, "max_tokens": 16}
        if request.path in (CHAT, COMPLETIONS) and request.stream and request.usage:
            document["stream_options"] = {"include_usage": True}
        return document
