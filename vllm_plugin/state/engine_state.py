"""The state of one engine as `/v1/capabilities` documents it, and the subscribers of its changes.

Pure: every event and the clock are passed in, and subscribers are woken by a callback.
The vocabulary is that of BATCHING/ORCH-3910 and 3911.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from time import time
from typing import Any

from vllm_plugin.contracts.kv_cache import KvCache
from vllm_plugin.contracts.lease_protocol import API_VERSION, Claim, ClaimCall, parse_lease
from vllm_plugin.contracts.slot_claims import SlotClaims, Subscriber, Subscribers
from vllm_plugin.state.adapter_use import AdapterUse
from vllm_plugin.state.engine_facts import EngineFacts
from vllm_plugin.state.engine_speed import NO_LORA, EngineSpeed, SchedulerLoad, SchedulerReport
from vllm_plugin.state.leases import Leases, Rejected, RequestNumbers
from vllm_plugin.state.readiness import READY, STALL, NotReady, Readiness, StallDetector
from vllm_plugin.state.steps import PrefixCache

State = dict[str, Any]


class EngineState:
    """The state of one engine. All calls come from the thread of its API server's event loop."""

    def __init__(self, facts: EngineFacts, clock: Callable[[], float] = time) -> None:
        self.facts = facts
        self.kv_cache = KvCache()  # replaced before anything is served
        self.conditions = facts.conditions  # completed before anything is served
        self.models = facts.models
        self.adapters: tuple[str, ...] = ()
        self.workloads: tuple[str, ...] = ()
        self.speed = EngineSpeed(facts.slots_total)
        self.leases = Leases()
        self.claims = SlotClaims()
        self.adapter_use = AdapterUse(int(facts.features.get("max_loras", 0)))
        self.rejected_for_slots = 0  # requests
        self.request_numbers = RequestNumbers()
        self.prefix_cache = PrefixCache()
        self.readiness = Readiness()
        self._reported_not_ready: NotReady | None = None
        self._stall_detector = StallDetector()
        self._subscribers = Subscribers()
        self._load = SchedulerLoad()
        self._peak = 0
        self._preemptions = 0
        self._clock = clock

    def subscribe(self, subscriber: Subscriber) -> None:
        """Wakes the subscriber at the next change after each `look`, from now on. It replaces the
        same sidecar's former one, whose connection may be lost without an end."""
        former = [each for each in self._subscribers if each.instance == subscriber.instance]
        if subscriber.claims and subscriber.instance is not None:
            self.claims.opened(subscriber.instance)
            self._subscribers.wake_all()  # the number of sidecars has changed
        self._subscribers.add(subscriber)
        self._subscribers.looked(subscriber)
        for each in former if subscriber.instance is not None else ():
            self.unsubscribe(each)
            each.replace()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Stops waking the subscriber. Does nothing if it is not subscribed."""
        if subscriber not in self._subscribers:
            return
        self._subscribers.discard(subscriber)
        if subscriber.claims and subscriber.instance is not None:
            self.claims.closed(subscriber.instance)
            self.adapter_use.closed(subscriber.instance)
            self._slots_changed()

    def record(self, report: SchedulerReport) -> None:
        """Takes a report of the scheduler in O(1); wakes subscribers only if a field changed."""
        in_engine = report.running + report.waiting
        self._stall_detector.report(
            report.at_s, in_engine, None if report.batch is None else report.elapsed_s
        )
        if report.batch is not None and self.speed.record(report, report.batch):
            self._subscribers.wake_all()
        if report.prefix_queries:
            self.prefix_cache.record(report.at_s, report.prefix_queries, report.prefix_hits)
        foreign_changed = self.leases.reported(in_engine, report.at_s)
        if foreign_changed:
            self._offer()
        if self.adapters:
            use = report.load.lora if self.leases.unleased() else NO_LORA
            self.adapter_use.reported((*use.running, *use.waiting))
        # Counts are taken after a step: a sequence that ended in it is in the batch only.
        in_step = max(report.running, report.batch or 0) + report.waiting
        load = report.load
        unchanged = (
            load == self._load
            and in_step <= self._peak
            and not report.preempted
            and not foreign_changed
        )
        if unchanged:
            return
        self._load = load
        self._peak = max(self._peak, in_step)
        self._preemptions += report.preempted
        self._subscribers.change()

    def set_models(self, models: tuple[str, ...], adapters: tuple[str, ...] = ()) -> None:
        """Sets the names under which the engine serves requests: the base model's, then those of
        LoRA adapters."""
        if models + adapters != self.models:
            self.models, self.adapters = models + adapters, adapters
            self._subscribers.change()

    def enter(
        self,
        lease: str | None,
        traceparent: str | None = None,
        *,
        urgent: bool = True,
        adapter: str | None = None,
    ) -> int | Rejected:
        """Adds a generating request with these headers, `X-Orch-Lease` and `traceparent`.

        Returns its number, the key for `leave`: the first request has 1. A rejected one takes no
        number. A request without a lease always enters. `urgent`: it is not a bulk request.
        `adapter`: that it has, by its header.
        """
        if adapter not in self.adapters:
            adapter = None
        parsed = parse_lease(lease) if lease else None
        if parsed is not None:
            if self.leases.is_used(parsed):
                return Rejected.SPENT
            if parsed.cost > self.facts.slots_total:
                return Rejected.TOO_LARGE
            self.tick()
            now_s, instance = self._clock(), parsed.instance
            if adapter is not None and not self.adapter_use.try_enter(instance, adapter, now_s):
                self._slots_changed()  # others learn that it is wanted
                return Rejected.NO_ADAPTER
            claim = Claim(parsed.cost, urgent)
            if not self.claims.try_enter(instance, claim, self._free(), now_s):
                self.rejected_for_slots += 1
                self._slots_changed()  # an offer that did not suffice is free again
                return Rejected.NO_SLOT if self.claims.reads(instance) else Rejected.BUSY
        number = self.leases.enter(parsed, interactive=urgent)
        if parsed is not None and adapter is not None:
            self.adapter_use.entered(number, instance, adapter, now_s)
        self.request_numbers.enter(number, traceparent)
        self._slots_changed()  # more may have been offered than it took
        return number

    def body_received(self, key: int, at_s: float) -> None:
        """Expects the scheduler to report soon: the request has been received completely."""
        self._stall_detector.expect_report(key, at_s)

    def model_received(self, key: int, model: str) -> None:
        """Counts a request by the model that its body names, whatever its header said."""
        use, request = self.adapter_use, self.leases.request(key)
        adapter = model if model in self.adapters else None
        if request is None or adapter == use.adapter_of(key):
            return
        use.left(key)
        if adapter is not None:
            use.entered(key, request.instance, adapter, self._clock())
        self._subscribers.change()

    def leave(self, key: int) -> None:
        """Removes a request that has ended, and passes its lease to the owner's subscribers."""
        self._stall_detector.forget(key)
        self.request_numbers.leave(key)
        self.adapter_use.left(key)
        request = self.leases.leave(key)
        for subscriber in self._subscribers:
            if request.lease is not None and request.instance == subscriber.instance:
                subscriber.ended.append(request.lease)
                if subscriber.changed:  # else it is woken by what follows
                    subscriber.wake()
        self._slots_changed()

    def claim(self, instance: str, call: ClaimCall) -> bool:
        """Takes a sidecar's call. False: it does not read the state, and can be offered nothing."""
        if not self.claims.reads(instance):
            return False
        now_s = self._clock()
        self.claims.call(instance, call, now_s)
        if self.claims.number_of(instance) == call.number:  # no later call was first
            self.adapter_use.wants(instance, call.adapters, now_s)
        self._slots_changed()
        return True

    def tick(self) -> None:
        """Ends what has lasted until now: offers, unleased sequences that no report renewed, and
        the times for which adapters in use may go before others."""
        now_s = self._clock()
        foreign_changed, wanted = self.leases.expire(now_s), self.adapter_use.expire(now_s)
        if self.claims.expire(now_s) or foreign_changed or wanted:
            self._slots_changed()

    def ticks_at(self) -> float | None:
        """Returns when `tick` has something to do; None: not before something changes."""
        times = (
            self.claims.expires_at,
            self.leases.expires_at(),
            self.adapter_use.expires_at(),
        )
        return min((at for at in times if at is not None), default=None)

    def _free(self) -> int:
        """Returns the slots that no request has; offered ones are among them."""
        return self.facts.slots_total - self.leases.in_use()

    def _slots_changed(self) -> None:
        self._offer()
        self._subscribers.change()

    def _offer(self) -> None:
        """Offers free slots to the sidecars that claim them."""
        if not self.claims.has_claims:
            return
        for offer in self.claims.offer(self._free(), self._clock()):
            for subscriber in self._subscribers:
                if subscriber.claims and subscriber.instance == offer.instance:
                    subscriber.offers.append(offer)
                    subscriber.wake()

    def look(self, subscriber: Subscriber) -> State:
        """Returns the fields that are sent as soon as they change; wakes at the next change."""
        self._subscribers.looked(subscriber)
        return self.change_fields(subscriber.instance)

    @property
    def step_s(self) -> float:
        """Seconds of a decode step of the current batch; 0: unknown."""
        return self.speed.seconds(max(1, self._load.running))

    def change_fields(self, instance: str | None) -> State:
        """Returns the fields that are sent as soon as they change, as seen by `instance`."""
        load = self._load
        in_engine = load.running + load.waiting
        return {
            "slots_free": max(0, self.facts.slots_total - in_engine),
            "running": load.running,
            "waiting": load.waiting,
            "prefilling": load.prefilling,
            "peak": self._peak,
            # What is offered to others is theirs.
            "foreign": self.leases.foreign_to(instance) + self.claims.offered_to_others(instance),
            "foreign_interactive": self.leases.foreign_interactive_to(instance),
            "leased": self.leases.leased(),
            "kv_cache_usage": load.kv_cache_usage,
            "preemptions_total": self._preemptions,
            "models": list(self.models),
            "sidecars": self.claims.sidecars,
            "contended": self.claims.contended(instance),
            **self._lora_field(instance),
            **self.claim_fields(instance),
        }

    def _lora_field(self, instance: str | None) -> State:
        """Returns the adapters that can be asked for, and those of requests; without LoRA none."""
        if not self.adapter_use.most:
            return {}
        use = asdict(self._load.lora) | self.adapter_use.fields(instance)
        return {"lora": {"adapters": list(self.adapters), **use}}

    def claim_fields(self, instance: str | None) -> State:
        """Returns what a sidecar claims, as the engine knows it, and from which of its calls."""
        claims, claim = self.claims, self.claims.claim_of(instance)
        return {
            "claim": None if claim is None else claim._asdict(),
            "waits": claims.has_unclaimed_demand(instance),
            "claimed": claims.number_of(instance),
        }

    def heartbeat_fields(self, now_s: float | None = None) -> State:
        """Returns the fields that grow with every step and are sent with heartbeats, the next of
        which comes at once when `batch_seen` grows.

        Stalls are detected as of `now_s`; without a time none is reported.
        """
        if now_s is not None and self.speed.fit(now_s):
            self._subscribers.wake_all()
        not_ready = self._not_ready(now_s)
        return {
            "state": READY if not_ready is None else not_ready.state,
            "message": None if not_ready is None else not_ready.message,
            "requests_total": self.leases.entered,
            "no_slot_total": self.rejected_for_slots,
            **self.speed.document(),
            "prefix_cache": self.prefix_cache.document(),
        }

    def readiness_changed(self, now_s: float) -> None:
        """Wakes subscribers if `readiness` has changed; a suspended engine counts as no stall."""
        before, self._reported_not_ready = self._reported_not_ready, self.readiness.not_ready
        if before is not None or self._reported_not_ready is not None:
            self._stall_detector.restart(now_s)
        if before != self._reported_not_ready:
            self._subscribers.wake_all()

    def _not_ready(self, now_s: float | None) -> NotReady | None:
        if now_s is None or self.readiness.not_ready is not None:
            return self.readiness.not_ready
        expected_s = self.speed.seconds(max(1, self._load.running))
        return STALL if self._stall_detector.stalled(now_s, expected_s) else None

    def document(self, instance: str | None, now_s: float | None = None) -> State:
        """Returns the engine's whole entry in `/v1/capabilities`, as seen by `instance`."""
        facts = self.facts
        return {
            "api_version": API_VERSION,
            "engine": "vllm",
            "engine_version": facts.engine_version,
            "pool": facts.pool,
            "ctx_max": facts.ctx_max,
            "profile": facts.profile,
            "measurement_type": facts.measurement_type,
            "batching": facts.batching,
            "slots_total": facts.slots_total,
            "unleased": facts.unleased.value,
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
