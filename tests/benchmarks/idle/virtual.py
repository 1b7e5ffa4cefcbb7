"""Idle rows beside a trace of interactive requests, in virtual time.

The sidecar's own admission in front of a model of an engine, with the step time and prefill rate
that an H200 was measured with (`docs/measurements/engine.md`). Each way gets the same requests:

    none      no rows: what interactive requests get
    learned   rows of the class `idle`
    N         the same, but that N of them run at once, set by hand, whatever the engine does
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Final

from orch_sidecar.tools.simulate.compare import capacity
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.fronts import Admitted, Direct, Outcomes, Sight
from orch_sidecar.tools.simulate.run import Course, Run
from orch_sidecar.tools.simulate.traffic import BulkClients, Replay, Workload
from orch_sidecar.tools.traces import read
from tests.benchmarks.idle.by_hand import ByHand
from tests.benchmarks.idle.several import Several
from vllm_plugin.contracts import profile
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE

TRACE: Final = Path(__file__).parents[2] / "traces" / "azure_llm_2023_conv.csv"
# An H200 with a model of 8B parameters, profile `cloud`.
H200: Final = EngineShape.of(
    profile.load("cloud"), t0_ms=5.38, c_ms=0.027, alpha=0.96, prefill_tokens_per_s=53_200
)
RATIO: Final = 1.1
POINTS: Final = 1.0
BULK_RATIO: Final = 0.85
FIGURES: Final = (
    "TTFT p50", "p95", "over none", "TPOT p95", "over none", "refused",
    "rows/s", "bulk/s", "cuts per row", "occupancy", "bound",
)  # fmt: skip
CLASSES: Final = INTERACTIVE, BULK, IDLE
SEED: Final = 20_261_128
# Mean tokens of rows, and of bulk requests; the sigma of their logarithm is 0.5.
ROWS: Final = Workload(prompt=600, output=150, bulk_factor=1)
LONG_ROWS: Final = replace(ROWS, prompt=3_000)
SHORT_ROWS: Final = replace(ROWS, prompt=20, output=20)
BULK_LENGTHS: Final = Workload(prompt=300, output=400, bulk_factor=1)
IN_FLIGHT: Final = 2  # rows that a runner keeps in flight, per slot


@dataclass(frozen=True, slots=True)
class Load:
    """The trace at `load` times the engine's capacity, beside so many clients with bulk work.
    `requests`: of the trace, in place of the seconds that its first ones take. `sidecars`: that
    share the engine, where what they learn is measured."""

    load: float
    bulk_clients: int = 0
    shape: EngineShape = H200
    seconds: float = 600.0
    requests: int | None = None
    sidecars: int = 1
    rows: Workload = ROWS
    trace: Path = TRACE

    @property
    def name(self) -> str:
        return f"{self.load:g}" + (f" + {self.bulk_clients} bulk" if self.bulk_clients else "")


def _engine(
    t0_ms: float, c_ms: float, alpha: float, rate: float, slots: int | None = None
) -> EngineShape:
    return EngineShape.of(
        profile.load("cloud"), slots, t0_ms=t0_ms, c_ms=c_ms, alpha=alpha, prefill_tokens_per_s=rate
    )


# Other engines and other rows, at loads at which idle rows are felt most.
CURVES: Final = {
    "steep: 20 + 1.5 b^0.9 ms, 32 slots": Load(0.8, shape=_engine(20, 1.5, 0.9, 8_000, 32)),
    "like a CPU: 3 + 3 b ms, 16 slots": Load(0.8, shape=_engine(3, 3, 1, 4_000, 16)),
    "flat: 8 + 0.02 b ms": Load(0.8, shape=_engine(8, 0.02, 1, 20_000)),
    "flat at 0.5": Load(0.5, shape=_engine(8, 0.02, 1, 20_000)),
    "4 slots": Load(0.8, shape=replace(H200, slots=4)),
    "256 slots": Load(0.8, shape=replace(H200, slots=256)),
    "rows of 3 000 tokens": Load(0.5, rows=LONG_ROWS),
    "rows of 20 tokens": Load(0.5, rows=SHORT_ROWS),
    "2 sidecars": Load(0.5, sidecars=2),
    "4 sidecars": Load(0.5, sidecars=4),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a way gave. TTFT in milliseconds, of interactive requests; `refused`: the share of
    them; `bulk_per_s`: of bulk requests that ended; `cut`: rows that were cut, per row served;
    `occupancy`: of the slots' time, None where it is not known."""

    ttft_p50: float
    ttft_p95: float
    tpot_p95: float
    refused: float
    rows_per_s: float
    bulk_per_s: float
    cut: float
    occupancy: float | None

    def keeps_bound(self, none: Outcome) -> bool:
        """Whether others do not notice the rows, or hardly. `none`: without them."""
        return (
            self.ttft_p95 <= RATIO * none.ttft_p95
            and self.refused <= none.refused + POINTS / 100
            and self.bulk_per_s >= BULK_RATIO * none.bulk_per_s
        )

    def cells(self, none: Outcome) -> list[str]:
        """Returns the columns of FIGURES. `none`: without rows, or itself."""
        return [
            f"{self.ttft_p50:.0f} ms",
            f"{self.ttft_p95:.0f} ms",
            f"{self.ttft_p95 / none.ttft_p95:.3f}",
            f"{self.tpot_p95:.1f} ms",
            f"{self.tpot_p95 / none.tpot_p95:.2f}",
            f"{100 * self.refused:.1f} %",
            f"{self.rows_per_s:.2f}",
            f"{self.bulk_per_s:.2f}",
            f"{self.cut:.2f}",
            "" if self.occupancy is None else f"{100 * self.occupancy:.0f} %",
            "" if self is none else "kept" if self.keeps_bound(none) else "missed",
        ]


class HandSet(Admitted):
    """Admission in which so many idle requests run at once, whatever is measured."""

    def __init__(self, many: int, outcomes: Outcomes) -> None:
        super().__init__(profile.load("cloud").admission, Sight(), outcomes, SEED)
        room = self._controller.constraints.idle
        room.__class__ = ByHand
        room.many = many  # type: ignore[attr-defined]


def outcome(load: Load, way: int | None, *, rows: bool = True) -> Outcome:
    """Runs one way. `way`: set by hand, None where it is learned. `rows`: there are any."""
    replay = Replay(read(load.trace))
    rate = load.load * capacity(load.shape, replay, SEED)
    seconds = load.seconds if load.requests is None else load.requests / rate
    arrivals = replay.arrivals(rate, seconds, SEED)
    bulk = BulkClients(load.bulk_clients, BULK_LENGTHS) if load.bulk_clients else None
    idle = BulkClients(IN_FLIGHT * load.shape.slots, load.rows, IDLE)

    def learned(outcomes: Outcomes) -> Admitted:
        return Admitted(profile.load("cloud").admission, Sight(), outcomes, SEED)

    def front(outcomes: Outcomes) -> Direct:
        if way is not None:
            return HandSet(way, outcomes)
        if load.sidecars > 1:
            return Several(load.sidecars, learned, outcomes)
        return learned(outcomes)

    run = Run(
        replace(load.shape), arrivals, seconds, front, SEED,
        filter(None, [bulk, idle if rows else None]),
    )  # fmt: skip
    return _outcome(run.to_the_end())


def _outcome(course: Course) -> Outcome:
    of = {each: [r for r in course.records if r.arrival.service_class is each] for each in CLASSES}
    served = {
        each: [done for record in of[each] if (done := record.completed) is not None]
        for each in CLASSES
    }
    per_s = {
        each: sum(done.ended_s <= course.seconds for done in served[each]) / course.seconds
        for each in CLASSES
    }
    ttft = sorted(done.ttft_s for done in served[INTERACTIVE] if done.ttft_s is not None)
    tpot = sorted(done.tpot_s for done in served[INTERACTIVE] if done.tpot_s is not None)
    return Outcome(
        1000 * at_share(ttft, 0.5),
        1000 * at_share(ttft, 0.95),
        1000 * at_share(tpot, 0.95),
        1 - len(served[INTERACTIVE]) / len(of[INTERACTIVE]),
        per_s[IDLE],
        per_s[BULK],
        sum(record.reclaimed for record in of[IDLE]) / max(1, len(served[IDLE])),
        course.busy_s / (course.seconds * course.shape.slots),
    )


def at_share(ordered: list[float], share: float) -> float:
    """Returns a percentile by nearest rank."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
