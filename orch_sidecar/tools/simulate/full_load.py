"""What an engine makes of traffic while a request waits for each slot that comes free. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from orch_sidecar.tools.simulate.engine import Engine, EngineShape, Sequence
from orch_sidecar.tools.simulate.report import spread
from orch_sidecar.tools.simulate.traffic import Traffic

_PER_SLOT: Final = 30  # requests: the first ones, which all start at once, are few of them


@dataclass(frozen=True, slots=True)
class FullLoad:
    """Requests and generated tokens per second, and the 95th percentile of requests' milliseconds
    per token, with the prompts that are read meanwhile; None: none has a second token."""

    requests_per_s: float
    tokens_per_s: float
    tpot_p95_ms: float | None


def full_load(shape: EngineShape, traffic: Traffic, seed: int) -> FullLoad:
    """Returns what the engine makes of this traffic, in order of arrival."""
    engine = Engine(replace(shape, by_priority=False), seed)
    arrivals = traffic.at_once(_PER_SLOT * shape.slots, seed)
    sequences = [Sequence(at, each.prompt, each.output) for at, each in enumerate(arrivals)]
    for sequence in sequences:
        engine.add(sequence)
    now, tpot_s = 0.0, list[float]()
    while engine.waiting:
        took = engine.begin_step(now)
        assert took is not None, "a sequence is waiting"
        now += took
        for ended in engine.end_step(now):
            if ended.output > 1 and ended.first_token_at is not None:
                tpot_s.append((now - ended.first_token_at) / (ended.output - 1))
    tokens_each = sum(each.output for each in arrivals) / len(arrivals)
    tokens_per_s = engine.tokens / now
    return FullLoad(tokens_per_s / tokens_each, tokens_per_s, spread(tpot_s).p95)
