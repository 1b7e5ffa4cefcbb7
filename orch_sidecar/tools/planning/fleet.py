"""Predicts the goodput of several equal engines in virtual time.

Pure. A request goes to the engine on which the fewest are running by then, as routing does where
prompts share no prefix; each engine then runs the admission of the profile and the model of vLLM's
scheduler of `orch simulate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from orch_sidecar.tools.facts.labels.figures import percentile
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.fronts import Admitted, Sight
from orch_sidecar.tools.simulate.run import Record, Run
from orch_sidecar.tools.simulate.traffic import Arrival
from vllm_plugin.contracts.profile import INTERACTIVE, AdmissionRules


@dataclass(frozen=True, slots=True)
class Prediction:
    """What `engines` would do with the traffic. `goodput`: the share of all interactive requests
    that are served within the SLO, which generate `good_tokens_per_s`; `refused`: that are
    rejected. `occupancy`: of the slots."""

    engines: int
    requests: int
    goodput: float
    goodput_per_s: float
    refused: float
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    tokens_per_s: float
    good_tokens_per_s: float
    occupancy: float


def predict(
    engines: int,
    shape: EngineShape,
    arrivals: Sequence[Arrival],
    seconds: float,
    rules: AdmissionRules,
    slo_ms: Mapping[str, float],
) -> Prediction:
    """Runs the traffic through that many engines. `seconds`: of the arrivals."""
    records: list[Record] = []
    tokens, busy_s = 0, 0.0
    for number, own in enumerate(spread(engines, shape, arrivals)):
        if own:
            run = Run(
                shape,
                own,
                seconds,
                lambda outcomes, seed=number: Admitted(rules, Sight(), outcomes, seed),  # type: ignore[misc]
                number,
            )
            course = run.to_the_end()
            records += course.records
            tokens += course.tokens
            busy_s += course.busy_s
    asked = [each for each in records if each.arrival.service_class is INTERACTIVE] or records
    served = [done for each in asked if (done := each.completed) is not None]
    kept = [each for each in served if each.meets(slo_ms)]
    first = [1000 * each.ttft_s for each in served if each.ttft_s is not None]
    each_ms = [1000 * each.tpot_s for each in served if each.tpot_s is not None]
    return Prediction(
        engines=engines,
        requests=len(asked),
        goodput=len(kept) / len(asked) if asked else 1.0,
        goodput_per_s=len(kept) / seconds,
        refused=1 - len(served) / len(asked) if asked else 0.0,
        ttft_p95_ms=percentile(first, 95),
        tpot_p95_ms=percentile(each_ms, 95),
        tokens_per_s=tokens / seconds,
        good_tokens_per_s=sum(each.output_tokens for each in kept) / seconds,
        occupancy=busy_s / (seconds * shape.slots * engines),
    )


def spread(engines: int, shape: EngineShape, arrivals: Sequence[Arrival]) -> list[list[Arrival]]:
    """Returns the arrivals of each engine."""
    found: list[list[Arrival]] = [[] for _ in range(engines)]
    running: list[list[float]] = [[] for _ in range(engines)]  # heaps of expected ends
    for arrival in arrivals:
        for ends in running:
            while ends and ends[0] <= arrival.at:
                heappop(ends)
        least = min(range(engines), key=lambda number: (len(running[number]), len(found[number])))
        found[least].append(arrival)
        batch = min(shape.slots, len(running[least]) + 1)
        waits = max(1.0, (len(running[least]) + 1) / shape.slots)
        own_s = arrival.output * shape.step_ms(batch) / 1000
        own_s += arrival.prompt / shape.prefill_tokens_per_s
        heappush(running[least], arrival.at + waits * own_s)
    return found


def grow(
    most: int,
    target: float,
    shape: EngineShape,
    arrivals: Sequence[Arrival],
    seconds: float,
    rules: AdmissionRules,
    slo_ms: Mapping[str, float],
) -> Iterator[Prediction]:
    """Predicts one engine, two and so on, until one more than `target` needs, or `most`."""
    enough = False
    for engines in range(1, most + 1):
        found = predict(engines, shape, arrivals, seconds, rules, slo_ms)
        yield found
        if enough:
            return
        enough = found.goodput >= target
