"""The state of one engine as `/v1/capabilities` documents it, and the subscribers of its changes.

Pure: every event and time is passed in, and subscribers are woken by a callback.
The vocabulary is that of BATCHING/ORCH-3910 and 3911.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from vllm_plugin.engine_facts import EngineFacts
from vllm_plugin.kv_cache import KvCache
from vllm_plugin.leases import Leases
from vllm_plugin.prefix_cache import PrefixCache
from vllm_plugin.readiness import READY, STALLED, NotReady, Readiness
from vllm_plugin.request_numbers import RequestNumbers
from vllm_plugin.stall_detector import StallDetector
from vllm_plugin.step_time import StepSamples, StepTime
from vllm_plugin.steps import Prefill, StepRing
from vllm_plugin.token_time import TokenTimes

API_VERSION: Final = "1.0.0"

# A fit takes up to 2 ms of the event loop, and is reported no more often; in ten times that while
# the batch grows beyond what the engine was seen with.
FIT_EVERY_S: Final = 1.0
FIT_GROWING_EVERY_S: Final = 0.1

_STALL: Final = NotReady(STALLED, "the engine has sequences, but has reported no step for too long")

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    """One report of the scheduler; `batch` is None when no step ran (idle, or an abort)."""

    at_s: float
    running: int
    waiting: int
    kv_cache_usage: float
    preempted: int
    batch: int | None = None
    decode_only: bool = False
    elapsed_s: float = 0.0
    prompt_tokens: int = 0  # computed in this step
    decoding: int = 0  # sequences of the batch that were past their prompts
    recomputing: bool = False  # one of these was preempted and computes its tokens again
    outputs: int = 0  # sequences that received tokens, not their first ones
    generated: int = 0  # tokens of all sequences
    prefix_queries: int = 0  # prompt tokens looked up in the prefix cache
    prefix_hits: int = 0  # those of them that were found


class Subscriber:
    """One reader of the state: is woken by changes, and collects the ended leases it owns."""

    def __init__(self, instance: str | None, wake: Callable[[], None]) -> None:
        self.instance = instance
        self.wake = wake
        self.ended: list[str] = []


class EngineState:
    """The state of one engine. All calls come from the thread of its API server's event loop."""

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts
        self.kv_cache = KvCache()  # replaced before anything is served
        self.conditions = facts.conditions  # completed before anything is served
        self.models = facts.models
        self.workloads: tuple[str, ...] = ()
        self.steps = StepRing()
        self.leases = Leases()
        self.request_numbers = RequestNumbers()
        self.prefix_cache = PrefixCache()
        self.prefill = Prefill()
        self.step_time: StepTime | None = None
        self._step_samples = StepSamples(facts.slots_total)
        self._token_times = TokenTimes()
        self._fitted_at_s = float("-inf")
        self.batch_seen = 0  # the largest, as of the last fit
        self._fit_document: State | None = None
        self.readiness = Readiness()
        self._reported_not_ready: NotReady | None = None
        self._stall_detector = StallDetector()
        self._subscribers: set[Subscriber] = set()
        self._running = 0
        self._waiting = 0
        self._prefilling = 0
        self._peak = 0
        self._kv_cache_usage = 0.0
        self._preemptions = 0
        self._generated = 0  # tokens

    def subscribe(self, subscriber: Subscriber) -> None:
        """Wakes the subscriber at each change from now on."""
        self._subscribers.add(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Stops waking the subscriber. Does nothing if it is not subscribed."""
        self._subscribers.discard(subscriber)

    def record(self, report: SchedulerReport) -> None:
        """Takes a report of the scheduler in O(1); wakes subscribers only if a field changed."""
        in_engine = report.running + report.waiting
        self._stall_detector.report(
            report.at_s, in_engine, None if report.batch is None else report.elapsed_s
        )
        if report.batch is not None:
            self._record_step(report, report.batch)
        if report.prefix_queries:
            self.prefix_cache.record(report.at_s, report.prefix_queries, report.prefix_hits)
        foreign_changed = self.leases.reported(in_engine, report.at_s)
        usage = round(report.kv_cache_usage, 3)
        # Counts are taken after a step: a sequence that ended in it is in the batch only.
        in_step = max(report.running, report.batch or 0) + report.waiting
        in_prefill = (
            0 if report.batch is None or report.decode_only else report.batch - report.decoding
        )
        prefilling = report.waiting + in_prefill
        unchanged = (
            report.running == self._running
            and report.waiting == self._waiting
            and prefilling == self._prefilling
            and usage == self._kv_cache_usage
            and in_step <= self._peak
            and not report.preempted
            and not foreign_changed
        )
        if unchanged:
            return
        self._running, self._waiting = report.running, report.waiting
        self._prefilling, self._kv_cache_usage = prefilling, usage
        self._peak = max(self._peak, in_step)
        self._preemptions += report.preempted
        self._wake_all()

    def _record_step(self, report: SchedulerReport, batch: int) -> None:
        """Adds a step to the statistics of the engine's speed."""
        self._generated += report.generated
        elapsed_s = report.elapsed_s
        self.steps.record(report.at_s, elapsed_s, batch, decode_only=report.decode_only)
        prompt_s = 0.0
        if report.prompt_tokens:
            fit = self.step_time if report.decoding else None
            # With a poor fit the decode part would be a guess: the whole step counts as prefill.
            decode_s = fit.seconds(report.decoding) if fit and fit.good else 0.0
            prompt_s = max(0.0, elapsed_s - decode_s)
            self.prefill.record(report.prompt_tokens, elapsed_s, decode_s)
        elif report.decode_only and not report.recomputing:
            self._step_samples.record(batch, elapsed_s)
            self._step_samples.generated(report.outputs, report.generated)
        self._token_times.record(report.at_s, elapsed_s, batch, report.decoding, prompt_s)
        self._fit(report.at_s)

    def _fit(self, now_s: float) -> None:
        """Fits the step time if the last fit is old enough, and compares the traffic with it."""
        growing = self._token_times.batch_seen > self.batch_seen
        every_s = FIT_GROWING_EVERY_S if growing else FIT_EVERY_S
        # A clock that is set back does not stop the fits.
        if 0 <= now_s - self._fitted_at_s < every_s:
            return
        self._fitted_at_s = now_s
        self.batch_seen = self._token_times.batch_seen
        if self._step_samples.fresh:
            self.step_time = self._step_samples.fit()
        fit = self.step_time
        if fit is not None:
            traffic = self._token_times.traffic(fit.seconds, now_s)
            self._fit_document = fit.document() | traffic.document()
        if growing:
            self._wake_all()

    def set_models(self, models: tuple[str, ...]) -> None:
        """Sets the names under which the engine serves requests, the base model's first."""
        if models != self.models:
            self.models = models
            self._wake_all()

    def enter(self, lease: str | None, traceparent: str | None = None) -> int | None:
        """Adds a generating request with these headers, `X-Orch-Lease` and `traceparent`.

        Returns its number, the key for `leave`: the first request has 1. Returns None if the lease
        is spent and the request is rejected, which takes no number.
        """
        entry = self.leases.enter(lease)
        if entry is None:
            return None
        number, _ = entry
        self.request_numbers.enter(number, traceparent)
        self._wake_all()
        return number

    def body_received(self, key: int, at_s: float) -> None:
        """Expects the scheduler to report soon: the request has been received completely."""
        self._stall_detector.expect_report(key, at_s)

    def leave(self, key: int) -> None:
        """Removes a request that has ended, and passes its lease to the owner's subscribers."""
        self._stall_detector.forget(key)
        self.request_numbers.leave(key)
        request = self.leases.leave(key)
        for subscriber in self._subscribers:
            if request.lease is not None and request.instance == subscriber.instance:
                subscriber.ended.append(request.lease)
        self._wake_all()

    def _wake_all(self) -> None:
        for subscriber in self._subscribers:
            subscriber.wake()

    def change_fields(self, instance: str | None) -> State:
        """Returns the fields that are sent as soon as they change, as seen by `instance`."""
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

    def heartbeat_fields(self, now_s: float | None = None) -> State:
        """Returns the fields that grow with every step and are sent with heartbeats, the next of
        which comes at once when `batch_seen` grows.

        Stalls are detected as of `now_s`; without a time none is reported.
        """
        if now_s is not None:
            self._fit(now_s)
        not_ready = self._not_ready(now_s)
        rate = self.prefill.tokens_per_s()
        return {
            "state": READY if not_ready is None else not_ready.state,
            "message": None if not_ready is None else not_ready.message,
            "requests_total": self.leases.entered,
            "steps_by_batch": self.steps.by_batch(),
            "steps_total": self.steps.count,
            "busy_seconds_total": round(self.steps.busy_s, 6),
            "batch_seen": self.batch_seen,
            "step_time": self._fit_document,
            "generated_tokens_total": self._generated,
            "prefill": self.prefill.document(),
            "prefill_tokens_per_s": None if rate is None else round(rate, 1),
            "prefix_cache": self.prefix_cache.document(),
        }

    def readiness_changed(self, now_s: float) -> None:
        """Wakes subscribers if `readiness` has changed; a suspended engine counts as no stall."""
        before, self._reported_not_ready = self._reported_not_ready, self.readiness.not_ready
        if before is not None or self._reported_not_ready is not None:
            self._stall_detector.restart(now_s)
        if before != self._reported_not_ready:
            self._wake_all()

    def _not_ready(self, now_s: float | None) -> NotReady | None:
        if now_s is None or self.readiness.not_ready is not None:
            return self.readiness.not_ready
        fit = self.step_time
        expected_s = 0.0 if fit is None else fit.seconds(max(1, self._running))
        return _STALL if self._stall_detector.stalled(now_s, expected_s) else None

    def document(self, instance: str | None, now_s: float | None = None) -> State:
        """Returns the engine's whole entry in `/v1/capabilities`, as seen by `instance`."""
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
            **self.change_fields(instance),
            **self.heartbeat_fields(now_s),
            "epoch": facts.epoch,
            "gpu": facts.hardware.gpu,
            "gpu_count": facts.hardware.gpu_count,
            "precision": facts.hardware.precision,
            "weights": facts.weights,
            "conditions": asdict(self.conditions),
            "supported_workloads": list(self.workloads),
            "rate_limits": facts.rate_limits,
            "features": facts.features,
        }
