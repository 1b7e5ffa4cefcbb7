"""The scheduler's state as the world is told of it, and those who listen to its changes.

Pure: it is told what happened, and calls its listeners; it knows no clock and no HTTP.
The vocabulary is that of `/v1/capabilities` (BATCHING/ORCH-3910, 3911).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from vllm_plugin.duty import READY, STALLED, Duty, Hold
from vllm_plugin.kv_cache import KvCache
from vllm_plugin.leases import Leases, Presence
from vllm_plugin.pulse import Pulse
from vllm_plugin.step_time import StepTime, StepTimes
from vllm_plugin.steps import Prefill, StepRing

API_VERSION: Final = "1.0.0"

# A fit takes up to 2 ms of the event loop, and nobody is told of it more often.
FIT_EVERY_S: Final = 1.0

_STALL: Final = Hold(STALLED, "the engine holds sequences and has made no step for too long")

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hardware:
    """`gpu`: the accelerator's name as its driver tells it; without one `CPU (<model>)`.

    `gpu_count`: accelerators that one copy of the model is spread over; 0 without one.
    `precision`: of the weights, `BF16` for instance, or the method of a quantized model.
    """

    gpu: str
    gpu_count: int
    precision: str


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What does not change while an engine lives. `models`: the names that it starts with."""

    engine_version: str
    pool: str
    models: tuple[str, ...]
    ctx_max: int
    profile: str
    measurement_type: str
    batching: bool
    slots_total: int
    epoch: str
    features: dict[str, Any]
    hardware: Hardware
    rate_limits: dict[str, int] = field(default_factory=dict)  # vLLM's own, by its options


@dataclass(frozen=True, slots=True)
class StepReport:
    """One report of the scheduler; batch is None when no step ran (idle, or an abort)."""

    at_s: float
    running: int
    waiting: int
    kv_cache_usage: float
    preempted: int
    batch: int | None
    decode_only: bool
    elapsed_s: float
    prompt_tokens: int = 0  # computed in this step
    decoding: int = 0  # sequences of the batch that were past their prompts
    recomputing: bool = False  # of these, one that was preempted computes its tokens again
    outputs: int = 0  # sequences that got tokens and had some before
    generated: int = 0  # tokens of all sequences


class Listener:
    """One reader of the state: is told that something changed, and collects ended leases."""

    def __init__(self, instance: str | None, wake: Callable[[], None]) -> None:
        self.instance = instance
        self.wake = wake
        self.ended: list[str] = []


class Board:
    """State of one engine. All calls come from the thread of its API server's event loop."""

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts
        self.kv_cache = KvCache()  # until the engine core was asked, before anything is served
        self.models = facts.models
        self.workloads: tuple[str, ...] = ()
        self.steps = StepRing()
        self.leases = Leases()
        self.prefill = Prefill()
        self.step_time: StepTime | None = None
        self._step_times = StepTimes(facts.slots_total)
        self._fitted_at_s = float("-inf")
        self.duty = Duty()
        self._held_by: Hold | None = None
        self._pulse = Pulse()
        self._listeners: set[Listener] = set()
        self._running = 0
        self._waiting = 0
        self._prefilling = 0
        self._peak = 0
        self._kv_cache_usage = 0.0
        self._preemptions = 0
        self._generated = 0  # tokens

    def listen(self, listener: Listener) -> None:
        self._listeners.add(listener)

    def unlisten(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def stepped(self, report: StepReport) -> None:
        """The scheduler reported. O(1), and wakes listeners only if they would see a change."""
        self._pulse.heard(
            report.at_s,
            report.running + report.waiting,
            None if report.batch is None else report.elapsed_s,
        )
        if report.batch is not None:
            self._ran(report, report.batch)
        news = self.leases.reported(report.running + report.waiting, report.at_s)
        usage = round(report.kv_cache_usage, 3)
        # Counts are taken after a step: what ended in it shows in the batch only.
        held = max(report.running, report.batch or 0) + report.waiting
        read = 0 if report.batch is None or report.decode_only else report.batch - report.decoding
        prefilling = report.waiting + read
        same = (
            report.running == self._running
            and report.waiting == self._waiting
            and prefilling == self._prefilling
            and usage == self._kv_cache_usage
            and held <= self._peak
            and not report.preempted
            and not news
        )
        if same:
            return
        self._running, self._waiting = report.running, report.waiting
        self._prefilling, self._kv_cache_usage = prefilling, usage
        self._peak = max(self._peak, held)
        self._preemptions += report.preempted
        self._wake_all()

    def _ran(self, report: StepReport, batch: int) -> None:
        """Keeps what a step says about the engine's speed."""
        self._generated += report.generated
        elapsed_s = report.elapsed_s
        self.steps.record(report.at_s, elapsed_s, batch, decode_only=report.decode_only)
        if report.prompt_tokens:
            known = self.step_time if report.decoding else None
            # A fit that is poor would be a guess: then the whole step counts as prefill.
            decode_s = known.seconds(report.decoding) if known and known.good else 0.0
            self.prefill.record(report.prompt_tokens, elapsed_s, decode_s)
        elif report.decode_only and not report.recomputing:
            self._step_times.record(batch, elapsed_s)
            self._step_times.generated(report.outputs, report.generated)
        self._fit(report.at_s)

    def _fit(self, now_s: float) -> None:
        """Fits anew if there is something new and the last time is long enough ago."""
        # A clock that was set back does not stop the fits.
        if self._step_times.fresh and not 0 <= now_s - self._fitted_at_s < FIT_EVERY_S:
            self._fitted_at_s = now_s
            self.step_time = self._step_times.fit()

    def serves(self, models: tuple[str, ...]) -> None:
        """The engine serves under these names now, the base model's first."""
        if models != self.models:
            self.models = models
            self._wake_all()

    def entered(self, header: str | None) -> int | None:
        """A generating request came in. Returns the key for `left`, None to turn it away."""
        entry = self.leases.enter(header)
        if entry is None:
            return None
        self._wake_all()
        return entry[0]

    def submitted(self, key: int, at_s: float) -> None:
        """The generating request has come in whole, so the scheduler will hear of it."""
        self._pulse.submitted(key, at_s)

    def left(self, key: int) -> Presence:
        """The generating request has left the engine."""
        self._pulse.left(key)
        presence = self.leases.leave(key)
        for listener in self._listeners:
            if presence.lease is not None and presence.instance == listener.instance:
                listener.ended.append(presence.lease)
        self._wake_all()
        return presence

    def _wake_all(self) -> None:
        for listener in self._listeners:
            listener.wake()

    def moving(self, instance: str | None) -> State:
        """The part of the state that is reported as soon as it changes."""
        in_engine = self._running + self._waiting
        return {
            "slots_free": max(0, self.facts.slots_total - in_engine),
            "running": self._running,
            "waiting": self._waiting,
            "prefilling": self._prefilling,
            "peak": self._peak,
            "foreign": self.leases.foreign_to(instance),
            "leased": self.leases.leased(),
            "kv_cache_usage": self._kv_cache_usage,
            "preemptions_total": self._preemptions,
            "models": list(self.models),
        }

    def slow(self, now_s: float | None = None) -> State:
        """The part that grows all the time and is told once a heartbeat, as of `now_s`.

        Without a time nothing can be said to take too long: the engine is `ready`.
        """
        if now_s is not None:
            self._fit(now_s)
        hold = self._hold(now_s)
        rate = self.prefill.tokens_per_s()
        return {
            "state": READY if hold is None else hold.state,
            "message": None if hold is None else hold.message,
            "requests_total": self.leases.entered,
            "steps_by_batch": self.steps.by_batch(),
            "steps_total": self.steps.count,
            "busy_seconds_total": round(self.steps.busy_s, 6),
            "step_time": None if self.step_time is None else self.step_time.told(),
            "generated_tokens_total": self._generated,
            "prefill": self.prefill.told(),
            "prefill_tokens_per_s": None if rate is None else round(rate, 1),
        }

    def held_up(self, now_s: float) -> None:
        """What `duty` knows may have changed: a pause is no stall, and readers are to know."""
        before, self._held_by = self._held_by, self.duty.hold
        if before is not None or self._held_by is not None:
            self._pulse.held_up(now_s)
        if before != self._held_by:
            self._wake_all()

    def _hold(self, now_s: float | None) -> Hold | None:
        if now_s is None or self.duty.hold is not None:
            return self.duty.hold
        fit = self.step_time
        expected_s = 0.0 if fit is None else fit.seconds(max(1, self._running))
        return _STALL if self._pulse.stalled(now_s, expected_s) else None

    def state(self, instance: str | None, now_s: float | None = None) -> State:
        """The engine's whole entry in `/v1/capabilities`, as seen by a sidecar instance."""
        facts = self.facts
        return {
            "engine": "vllm",
            "engine_version": facts.engine_version,
            "pool": facts.pool,
            "ctx_max": facts.ctx_max,
            "profile": facts.profile,
            "measurement_type": facts.measurement_type,
            "batching": facts.batching,
            "slots_total": facts.slots_total,
            **self.kv_cache.document(facts.ctx_max),
            **self.moving(instance),
            **self.slow(now_s),
            "epoch": facts.epoch,
            "gpu": facts.hardware.gpu,
            "gpu_count": facts.hardware.gpu_count,
            "precision": facts.hardware.precision,
            "supported_workloads": list(self.workloads),
            "rate_limits": facts.rate_limits,
            "features": facts.features,
        }
