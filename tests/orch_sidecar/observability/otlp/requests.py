"""Random requests, and what happens to them, for any `Tracing`.

What happens has times of its own, so that two tracings can be compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final

from hypothesis import strategies as st
from opentelemetry.sdk.trace.id_generator import IdGenerator

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.refusal import Reason
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.observability.tracing import Trace, Tracing
from tests.orch_sidecar.records import record_of

EDGES: Final = ("", "x" * 63, "x" * 64, "x" * 127, "x" * 128, "ä" * 64, "😀" * 5000)
# Long ones differ where they are cut, and behind that.
MODELS: Final = ("half \ud800 a pair", *("x" * 199 + end for end in ("ab", "bb", "bc", "b")))
MEMBERS: Final = ("a=1", "b@c=2 3", "vendor=x", "*=", "A=1", "a=ä", "a", " d=4\t", "")
TRACESTATES: Final = (
    ",".join(f"k{number}=v" for number in range(33)),
    "a=" + "x" * 256,
    "a=" + "x" * 9000,
)


@dataclass(frozen=True)
class Step:
    """What happens to a request: it is placed, dispatched or retried."""

    what: str
    # Which of the world's labels; none of them if there are not so many.
    labels: int
    at: int
    admitted: int | None
    lease: str | None
    reason: Reason


@dataclass(frozen=True)
class Life:
    """A request from its beginning to its end.

    `first`: its steps, before it `shares`: starts a generation for others too, joins the last one
    or the last two, or none of that. `steps`: of the generation that it starts, otherwise of the
    request. `then`: of the request, after that. `outlives`: the generation ends after the request.
    """

    identity: Mapping[str, Any]
    fields: Mapping[str, Any]
    headers: Mapping[str, str]
    first: list[Step]
    shares: str
    steps: list[Step]
    then: list[Step]
    outlives: bool
    outcome: Outcome | Reason


class Lives:
    """Makes requests at random. `texts` and `numbers`: some of what they consist of."""

    def __init__(self, texts: list[str], numbers: list[int]) -> None:
        self._texts = (*EDGES, *texts)
        self._numbers = numbers
        self._endpoints = [Endpoint(text, "POST", operation=text) for text in self._texts]
        self._last: Life | None = None

    def life(self, seed: int) -> Life:
        """Makes a request; often one that differs from the last one in one field only."""
        draw = random.Random(seed)
        life, last = self._life(draw), self._last
        if last is not None and draw.random() < 0.6:
            fields, identity = dict(last.fields), dict(last.identity)
            name = draw.choice((*fields, *identity, "model", "model", "model"))
            both = (identity, life.identity) if name in identity else (fields, life.fields)
            both[0][name] = both[1][name]
            outcome = draw.choice((life.outcome, last.outcome))
            life = replace(last, identity=identity, fields=fields, outcome=outcome)
        self._last = life
        return life

    def _life(self, draw: random.Random) -> Life:
        many = draw.choice((0.2, 0.8))  # of what may be missing

        def text() -> str:
            return draw.choice(self._texts)

        def number() -> int:
            return draw.choice((*self._numbers, draw.randrange(300), draw.randrange(70_000)))

        def moment() -> int:
            return draw.randrange(10**12)

        def maybe(value: Callable[[], Any]) -> Any:
            return value() if draw.random() < many else None

        def step() -> Step:
            what = draw.choice(("placed", "dispatched", "dispatched", "retried"))
            labels, reason = draw.randrange(4), draw.choice(tuple(Reason))
            return Step(what, labels, moment(), maybe(moment), maybe(text), reason)

        def steps() -> list[Step]:
            return [step() for _ in range(draw.randrange(6))]

        identity = {
            "endpoint": draw.choice(self._endpoints),
            "request_id": text(),
            "correlation_id": text(),
            "method": text(),
            "arrived": moment(),
            "arrived_ns": 10**13 + draw.randrange(1 << 62),
        }
        fields = {
            "model": draw.choice((text(), *MODELS)),
            "cost": draw.choice((0, 1, 2, number())),
            "stream": draw.random() < 0.5,
            "max_tokens": maybe(number),
            "input_tokens": maybe(number),
            "output_tokens": maybe(number),
            "cached_tokens": maybe(number),
            "reasoning_tokens": maybe(number),
            "placement": maybe(text),
            "first_byte": maybe(moment),
            "last_token": maybe(moment),
            "coalesced": draw.random() < 0.5,
            "parts": draw.choice((0, 0, 2, 2048)),
            "fanout": draw.choice((0, 0, 1, 2, number())),
            "scenario": maybe(text),
            "run": maybe(text),
            "status": draw.choice((0, 200, 404, 503, number())),
        }
        life = Life(
            identity,
            fields,
            self._headers(draw),
            steps() if draw.random() < 0.3 else [],
            draw.choice(("", "", "starts", "joins", "joins two")),
            steps(),
            steps() if draw.random() < 0.3 else [],
            draw.random() < 0.5,
            draw.choice((*Outcome, *Reason)),
        )
        if draw.random() < 0.5:
            return life
        placed = replace(step(), what="placed", labels=0)
        dispatched = replace(step(), what="dispatched", admitted=moment(), lease=text())
        return replace(life, first=[], shares="", steps=[placed, dispatched], then=[])  # as most do

    def _headers(self, draw: random.Random) -> dict[str, str]:
        version = draw.choice(("00", "00", "00", "00", "01", "cc", "ff", "0g"))
        trace_id = draw.choice((0, *[draw.getrandbits(128) for _ in range(5)]))
        span_id = draw.choice((0, *[draw.getrandbits(64) for _ in range(5)]))
        flags = draw.choice((0, 1, 1, 2, 3, draw.randrange(256)))
        end = draw.choice(("", "", "", "", "-more", " ", "x" * 512))
        parent = f"{version}-{trace_id:032x}-{span_id:016x}-{flags:02x}{end}"
        members = ",".join(draw.choices(MEMBERS, k=draw.randrange(4)))
        headers = {}
        if draw.random() < 0.7:
            headers["traceparent"] = draw.choice((parent, parent, parent, draw.choice(self._texts)))
        if draw.random() < 0.6:
            headers["tracestate"] = draw.choice((members, members, members, *TRACESTATES))
        return headers


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0

    def time_ns(self) -> int:
        return self.now

    def monotonic_ns(self) -> int:
        return self.now


class Ids(IdGenerator):
    """Counts; `at` is set before each step, since what is not sampled needs fewer ids."""

    def __init__(self, trace_ids: int, *, random: bool) -> None:
        self.at = 0
        self._trace_id = trace_ids
        self._random = random

    def generate_span_id(self) -> int:
        self.at += 1
        return self.at

    def span_id(self) -> bytes:
        return self.generate_span_id().to_bytes(8)

    def generate_trace_id(self) -> int:
        self._trace_id = self._trace_id * 6364136223846793005 + 1 & (1 << 128) - 1 or 1
        return self._trace_id

    def is_trace_id_random(self) -> bool:
        return self._random


class World:
    """Lets requests live, with a tracing."""

    def __init__(
        self, tracing: Tracing, ids: Ids, clock: Clock, labels: list[dict[str, Any]]
    ) -> None:
        self._tracing = tracing
        self._ids = ids
        self._clock = clock
        self._labels = labels
        self._generations: list[Trace] = []
        self._steps = 0
        self.headers: list[str] = []
        self.trace_ids: list[bytes] = []

    def live(self, lives: list[Life]) -> None:
        later: list[Callable[[], None]] = []
        for life in lives:
            later += self._live(life)
        for end in later:
            self._tick(10**12)
            end()

    def _live(self, life: Life) -> list[Callable[[], None]]:
        self._tick(0)
        record = record_of(**life.identity)
        trace = self._tracing.begin(record, life.headers)
        assert trace is not None
        self.trace_ids.append(record.trace_id)
        for name, value in life.fields.items():
            setattr(record, name, value)
        runs = self._happen(record, trace, life.first)
        later = []
        if life.shares == "starts":
            of_generation = record.of_generation()
            generation = trace.shared(of_generation)
            self._generations.append(generation)
            self._happen(of_generation, generation, life.steps)

            def end() -> None:
                of_generation.end(life.outcome)
                generation.ended()

            if life.outlives:
                later.append(end)
            else:
                end()
        elif life.shares.startswith("joins") and self._generations:
            for generation in self._generations[-2 if life.shares == "joins two" else -1 :]:
                trace.joined(generation)
        else:
            runs = self._happen(record, trace, life.steps, runs=runs)
        self._happen(record, trace, life.then, runs=runs)
        record.end(life.outcome)
        trace.ended()
        return later

    def _happen(
        self, record: RequestRecord, trace: Trace, steps: list[Step], *, runs: bool = False
    ) -> bool:
        """A record that was dispatched is retried before another attempt changes it, and has a
        lease only in a pool where it was admitted. `runs`, also returned: it was dispatched."""
        for step in steps:
            self._tick(step.at)
            if step.what == "retried" or runs:
                trace.retried(step.reason)
                runs = False
            if step.what == "placed":
                named = dict(enumerate(self._labels))
                record.labels = named.get(step.labels)
            elif step.what == "dispatched":
                record.admitted = step.admitted
                admitted = step.admitted is not None and record.labels is not None
                record.lease = step.lease if admitted else None
                self.headers.append(trace.dispatched())
                runs = True
        self._tick(10**12)
        return runs

    def _tick(self, now: int) -> None:
        self._steps += 1
        self._clock.now = now + self._steps
        self._ids.at = 1000 * self._steps


def _labels(texts: list[str], seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    names = ("measurement_type", "orch.profile", "orch.batching", "orch.pool", "orch.class")
    values = (*EDGES[:3], *texts, True, False)
    return {name: draw.choice(values) for name in draw.sample(names, draw.randint(1, 5))}


SEEDS: Final = st.integers(0, (1 << 32) - 1)


@st.composite
def worlds(draw: st.DrawFn) -> SimpleNamespace:
    """What a World needs, and the requests that live in it."""
    texts = draw(st.lists(st.text(max_size=20), min_size=1, max_size=3))
    numbers = draw(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=3))
    lives = Lives(texts, numbers)
    return SimpleNamespace(
        lives=[lives.life(seed) for seed in draw(st.lists(SEEDS, min_size=1, max_size=12))],
        labels=[_labels(texts, seed) for seed in draw(st.lists(SEEDS, max_size=3))],
        unplaced=_labels(texts, draw(SEEDS)),
        trace_ids=draw(st.integers(1, (1 << 128) - 1)),
        random=draw(st.booleans()),
    )
