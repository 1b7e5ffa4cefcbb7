"""Models one engine: the time of its steps, the sequences in its cache, what it makes of traffic.

Pure. The time of a decode step by its batch is of the engine's own counts before and after a run;
counted are steps that only decoded. The engine reports the size of its cache and how many blocks a
sequence of a given length takes, so nothing is guessed about its layers. By the decode curve alone
more slots would always seem worth having: prompts take steps, too, and every stream waits for them.
So the traffic is run through the simulated engine, step by step, with all of its slots in use.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any, Final

from orch_sidecar.engine_state.report import decode_steps_of, report_of
from orch_sidecar.tools.bench.results.sweep import Curve, fit
from orch_sidecar.tools.simulate.compare import FullLoad, full_load
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.traffic import Traffic
from vllm_plugin.contracts.profile import Profile

# Fewer steps of a size are not enough: one slow step would move their mean.
LEAST_STEPS: Final = 5
# Beyond this multiple of the largest batch that was measured nothing is concluded from the fit.
FURTHEST: Final = 2.0


class NotEnough(ValueError):
    """Too little is known of an engine; the message states what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Point:
    """The mean time of `steps` decode steps of `batch` sequences."""

    batch: int
    steps: int
    ms: float

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of such steps."""
        return 1000 * self.batch / self.ms


@dataclass(frozen=True, slots=True)
class StepCurve(Curve):
    """The curve of the milliseconds of a decode step through the measured points, which are in
    ascending order of their batch."""

    points: tuple[Point, ...] = ()

    @property
    def largest(self) -> int:
        """The largest batch that was measured."""
        return self.points[-1].batch

    @property
    def steps(self) -> int:
        return sum(point.steps for point in self.points)

    def tokens_per_s(self, batch: float) -> float:
        """Generated tokens per second while every step decodes `batch` sequences."""
        return 1000 * batch / self.at(batch)


Steps = Mapping[int, tuple[int, float]]
"""Decode steps and their seconds, by batch."""


def steps_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> Steps:
    """Returns the decode steps between two entries of one engine in `/v1/capabilities`."""
    earlier = {batch: (steps, s) for batch, steps, s in decode_steps_of(before) or ()}
    found = {}
    for batch, steps, seconds in decode_steps_of(after) or ():
        steps_before, seconds_before = earlier.get(batch, (0, 0.0))
        if batch > 0 and steps > steps_before:
            found[batch] = steps - steps_before, seconds - seconds_before
    return found


def curve_of(
    runs: Iterable[Steps], remedy: str = "raise the length of the run or of its answers"
) -> StepCurve:
    """Returns the curve through the steps of several runs. Raises NotEnough."""
    counts, seconds = Counter[int](), defaultdict[int, float](float)
    for run in runs:
        for batch, (count, took_s) in run.items():
            counts[batch] += count
            seconds[batch] += took_s
    return through(
        (
            Point(batch, count, 1000 * seconds[batch] / count)
            for batch, count in counts.items()
            if count >= LEAST_STEPS and seconds[batch] > 0
        ),
        f"the engine had {LEAST_STEPS} decode steps",
        remedy,
    )


def through(found: Iterable[Point], had: str, remedy: str) -> StepCurve:
    """Returns the curve through some points. Raises NotEnough, which says who `had` them."""
    points = tuple(sorted(found, key=lambda point: point.batch))
    curve = fit([(point.batch, point.ms) for point in points]) if points else None
    if curve is None:
        sizes = ", ".join(str(point.batch) for point in points) or "none"
        raise NotEnough(
            f"{had} of these batches only: {sizes}; a curve needs three that differ: {remedy}"
        )
    return StepCurve(curve.t0, curve.c, curve.alpha, curve.worst_error, points)


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """The sequences that fit at once. `tokens`: their context length, prompt and answer.
    `kv_tokens`: the cache's size in tokens of such sequences."""

    tokens: int
    sequences: int
    kv_tokens: int

    @property
    def text(self) -> str:
        """One line: what fits, and why."""
        return (
            f"KV cache of {self.kv_tokens} tokens: {self.sequences} sequences of {self.tokens} "
            "tokens"
        )


def memory_bound(entry: Mapping[str, Any], tokens: int) -> MemoryBound | None:
    """Returns the bound for sequences of `tokens`, from an engine's entry in `/v1/capabilities`.

    None: the engine does not report its cache.
    """
    report = report_of(entry)
    if report.kv is None or report.ctx_max is None:
        return None
    least = min(tokens, report.ctx_max)
    sequences = report.kv.blocks_total // max(1, report.kv.blocks_of(least))
    return MemoryBound(least, sequences, entry.get("kv_tokens_total", 0))


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One engine. `source`: of these values, in words. What is not known is None.

    `step_tokens`, `chunk_tokens`: of the engine as it runs; None: those of a profile.
    `accelerators`: that it is spread over, 0 without one.
    """

    source: str
    curve: StepCurve
    prefill_tokens_per_s: float | None
    memory: MemoryBound | None = None
    step_tokens: int | None = None
    chunk_tokens: int | None = None
    accelerators: int = 0

    def shape(self, profile: Profile | None = None, slots: int | None = None) -> EngineShape:
        """Returns the engine to simulate. Prompts take no time where prefill is not known.

        `profile`: has what is not known, and the slots if they are None.
        """
        curve = self.curve
        return EngineShape.of(
            profile,
            slots,
            self.step_tokens,
            self.chunk_tokens,
            t0_ms=curve.t0,
            c_ms=curve.c,
            alpha=curve.alpha,
            prefill_tokens_per_s=self.prefill_tokens_per_s or inf,
            kv_tokens=(self.memory and self.memory.kv_tokens) or None,
        )


def model_of(
    entry: Mapping[str, Any], tokens: int, curve: StepCurve, prefill_tokens_per_s: float | None
) -> EngineModel:
    """Returns the model of a running engine, from its entry in `/v1/capabilities`.

    `tokens`: mean context of a request, for the memory bound.
    """
    features = entry.get("features", {})
    return EngineModel(
        f"{entry.get('gpu') or 'an engine'}, as its /v1/capabilities reports",
        curve,
        prefill_tokens_per_s,
        memory_bound(entry, tokens),
        features.get("max_num_batched_tokens") or None,
        features.get("long_prefill_token_threshold") or None,
        entry.get("gpu_count") or 0,
    )


_SEED: Final = 0


class FullSlots:
    """`late`: times per token (95th percentile) that were measured, over those simulated."""

    def __init__(self, shape: EngineShape, traffic: Traffic) -> None:
        """`shape`: of the engine; its slots and the size of its KV cache do not matter here."""
        self.late = 1.0
        self._shape = replace(shape, kv_tokens=None)
        self._traffic = traffic
        self._known: dict[int, FullLoad] = {}

    def at(self, slots: int) -> FullLoad:
        """What the engine does with so many slots."""
        if slots not in self._known:
            shape = replace(self._shape, slots=slots)
            self._known[slots] = full_load(shape, self._traffic, _SEED)
        return self._known[slots]

    def tokens_per_s(self, slots: int) -> float:
        return self.at(slots).tokens_per_s

    def tpot_p95_ms(self, slots: int) -> float:
        """Milliseconds per token of requests, 95th percentile; 0 where none has a second token."""
        return self.late * (self.at(slots).tpot_p95_ms or 0.0)

    def measured(self, times: Iterable[tuple[int, float]]) -> None:
        """Sets `late` by measurements: slots in use, and their milliseconds per token."""
        own = [(ms, self.at(slots).tpot_p95_ms) for slots, ms in times]
        ratios = [ms / simulated for ms, simulated in own if simulated]
        self.late = max(1.0, median(ratios)) if ratios else 1.0
