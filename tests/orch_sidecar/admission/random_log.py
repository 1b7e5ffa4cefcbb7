"""`python -m tests.orch_sidecar.admission.random_log SEED...`: prints what admission decides.

For each seed, random events happen to one admission: requests of all classes and keys arrive, leave
and end, an engine reports, restarts and goes, others claim slots, and offers come. Each decision
and each prediction is printed with all its digits: two builds that print the same decide alike.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any, Final
from zlib import crc32

from orch_sidecar.admission.availability import Drain, OrderedBy
from orch_sidecar.admission.claims import ClaimCalls, EngineClaims
from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import (
    AdmissionRequest,
    Decision,
    EngineReport,
    Lease,
    Queued,
    StepTime,
)
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.status import status_of
from tests.orch_sidecar.admission.examples import kv_of
from tests.orch_sidecar.admission.happenings import RULES
from vllm_plugin.contracts.kv_cache import KvCache, KvGroup
from vllm_plugin.contracts.lease_protocol import NO_ADAPTER, NO_SLOT, Claim, ClaimCall
from vllm_plugin.contracts.profile import ServiceClass

EVENTS: Final = 1500
PARENTS: Final = ("p0", "p1")
ADAPTERS: Final = ("l0", "l1", "l2")
WEIGHTS: Final = {b"": 1.0, b"a": 1.0, b"b": 2.5, b"c": 0.3}
CACHES: Final = (
    None,
    kv_of(20_000, 16),
    KvCache(900, (KvGroup(16, 4, 8), KvGroup(16))),
    KvCache(600, (KvGroup(16, 4, 8, 1, 2), KvGroup(16)), 3),
    KvCache(500),
)


def shown(value: Any) -> str:
    """A value with all digits. A number looks the same as an integer and as a float."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, Constraint):
        return value.reason
    if isinstance(value, dict):
        return shown(list(value.items()))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if is_dataclass(value):
        names = [each.name for each in fields(value) if each.name != "request"]
        return " ".join(f"{name}={shown(getattr(value, name))}" for name in names)
    return str(value)


class RandomLog:
    """An admission and what has happened to it."""

    def __init__(self, seed: int, write: Callable[[str], object]) -> None:
        self.chance = chance = random.Random(seed)
        self.write = write
        self.core = core = AdmissionController(chance.choice(RULES), random.Random(seed))
        self.claims = EngineClaims(core, "self")
        self.claims.on_change = lambda: self.say("claims change")
        self.claims.on_parent_offers = lambda parents: self.say("offers", list(parents))
        for each in PARENTS:
            self.claims.parents.claim_table.opened(each)
        self.calls = ClaimCalls(self.claims)
        core.keeps_queue = chance.random() < 0.7
        core.reclaim.is_unseen = lambda lease: (
            lease in self.running and crc32(lease.encode()) % 3 > 0
        )
        self.now = chance.choice((0.0, 1234.5678, 5e6))
        self.requests: dict[str, AdmissionRequest] = {}
        self.arrived: dict[str, float] = {}
        self.running: dict[str, Lease] = {}
        self.waiting: dict[str, Queued] = {}
        self.rejected: list[str] = []  # not yet queued again
        self.slots, self.sidecars = chance.choice((1, 2, 4, 8, 16, 32)), chance.choice((1, 1, 2))
        self.cache, self.adapters = chance.choice(CACHES), chance.choice((0, 0, 1, 2))
        self.epoch = self.preemptions = self.offers = 0
        self.measures = chance.random() < 0.8
        self.report()

    def say(self, *what: Any) -> None:
        self.write(" ".join(map(shown, what)))

    def run(self, events: int) -> None:
        happen: dict[Callable[[], None], int] = {
            self.arrive: 33, self.end: 25, self.requeue: 4, self.leave: 4, self.pass_time: 10,
            self.report: 10, self.go_away: 1, self.drain: 1, self.resume: 2, self.reload: 1,
            self.offer: 4, self.parent_claims: 2, self.call: 2, self.predict: 3,
        }  # fmt: skip
        for _ in range(events):
            self.now += self.chance.choice((0.0, 0.0, 1e-3, 0.01, 0.1, self.chance.expovariate(8)))
            [event] = self.chance.choices(list(happen), list(happen.values()))
            event()
            core, claims = self.core, self.claims
            self.say(self.now, core.blocked_by, core.queues.depth, core.ledger.leased, claims.all)
            if self.chance.random() < 0.2:
                self.say("status", status_of(core, self.now)[1:])

    def perform(self, decisions: Iterable[Decision]) -> None:
        for each in decisions:
            self.settle(each.ticket, each.outcome)
        if self.core.ledger.idle:
            self.abort(self.core.reclaim.cut_idle(self.now))
        self.claims.update()

    def settle(self, ticket: str, outcome: Lease | Refusal | Queued) -> None:
        self.say(ticket, outcome)
        self.waiting.pop(ticket, None)
        if isinstance(outcome, Lease):
            self.running[ticket] = outcome
        elif isinstance(outcome, Queued):
            self.waiting[ticket] = outcome
        elif self.requests[ticket].identity and outcome.retry_after_ms is not None:
            request, until = self.requests[ticket], self.now + outcome.retry_after_ms / 1000
            demand = self.core.constraints.reserve.demand(request.service_class)
            demand.refused(request, until, self.now)

    def abort(self, leases: Iterable[str]) -> None:
        for each in leases:
            if self.running.pop(each, None) is not None:
                self.rejected.append(each)
                self.perform(self.core.release(each, self.now))

    def new(self, request: AdmissionRequest, arrived: float) -> str:
        ticket = f"r{len(self.requests)}"
        self.requests[ticket], self.arrived[ticket] = request, arrived
        return ticket

    # Requests

    def request(self) -> AdmissionRequest:
        choice = self.chance.choice
        key, all_bulk = choice(list(WEIGHTS)), self.core.rules.interactive is None
        return AdmissionRequest(
            choice(list(ServiceClass)[all_bulk:]),
            choice((1, 1, 1, 1, 2, 3, 7)),
            choice((0, 10, 50, 400, 400, 1500, 6000)),
            choice((None, 1, 10, 100, 1000)),
            key=key,
            weight=WEIGHTS[key],
            adapter=choice((None, *ADAPTERS)) if self.adapters else None,
            is_later_part=self.chance.random() < 0.05,
            deadline_ms=choice((None,) * 8 + (0.0, 40, 1000.0, 3000, 20_000.0)),
            max_wait_ms=choice((None,) * 8 + (0.0, 40, 800.0, 5000)),
            tpot_ms=choice((None,) * 9 + (12.0, 20, 50.0)),
            may_queue=self.chance.random() < 0.9,
            identity=choice((0, 0, 0, 1, 2, 3)),
            parent=choice(("", "", "", *PARENTS)),
        )

    def arrive(self) -> None:
        for _ in range(self.chance.choice((1, 1, 1, 3, 8))):
            request = self.request()
            ticket = self.new(request, self.now)
            if self.chance.random() < 0.2:
                self.say("forecast", self.core.forecast(request, self.now))
            arrive = self.claims.arrive if request.parent else self.core.arrive
            outcome = arrive(ticket, request, self.now)
            self.say(request)
            self.settle(ticket, outcome)
            self.perform(self.core.take_displaced())
            self.abort(self.core.reclaim.take())

    def end(self) -> None:
        for _ in range(self.chance.choice((1, 1, 2, 4))):
            if not self.running:  # an end may have others cut
                return
            lease = self.chance.choice(list(self.running))
            del self.running[lease]
            how, tokens = self.chance.random(), self.chance.choice((None, 1, 77, 300))
            if how < 0.1:
                self.rejected.append(lease)
                tokens = None
                kind = self.chance.choice((None, NO_SLOT, NO_ADAPTER))
                if kind is None:
                    self.core.pause(lease, self.chance.choice((0.0, 0.3, 99)), self.now)
                else:
                    self.core.rejected(lease, kind, self.now)
            elif how < 0.14:
                self.core.ledger.abandon(lease)
            served, sent = self.chance.random() < 0.95, self.chance.random() < 0.9
            self.say("end", lease, tokens, served, sent)
            self.perform(self.core.release(lease, self.now, tokens, served, sent))

    def requeue(self) -> None:
        if self.rejected:
            lease = self.rejected.pop(self.chance.randrange(len(self.rejected)))
            request, arrived = self.requests[lease], self.arrived[lease]
            ticket = self.new(request, arrived)
            self.settle(ticket, self.core.requeue(ticket, request, arrived, self.now))
            self.perform(self.core.dispatch(self.now))

    def leave(self) -> None:
        if self.waiting:
            ticket = self.chance.choice(list(self.waiting))
            del self.waiting[ticket]
            self.perform(self.core.leave(ticket, self.now))

    def predict(self) -> None:
        for ticket in self.waiting:
            self.say("place", ticket, self.core.place(ticket, self.now))
        blocked_by = self.core.order.blocked_by
        for service_class in ServiceClass:
            for queued, start_s in self.core.forecaster.starts(service_class, blocked_by, self.now):
                self.say("start", start_s, queued)

    # Time, the operator, the engine, and others at it

    def pass_time(self) -> None:
        for _ in range(self.chance.randrange(1, 5)):
            at = self.core.next_event(self.now)
            self.say("next", at)
            if at is not None:
                self.now = max(self.now, at)
                self.perform(self.core.dispatch(self.now))

    def drain(self) -> None:
        order = self.chance.choice((OrderedBy.OPERATOR, OrderedBy.ENGINE_STOP))
        self.perform(self.core.drain(Drain(order, 0.0)))

    def resume(self) -> None:
        self.core.resume()

    def reload(self) -> None:
        rules = self.chance.choice(RULES)
        if (rules.interactive is None) == (self.core.rules.interactive is None):
            self.perform(self.core.replace_rules(rules, self.now))

    def go_away(self) -> None:
        refusal = Refusal(self.chance.choice((Reason.ENGINE_STALE, Reason.ENGINE_DOWN)), "gone")
        expected = self.chance.choice((None, True, False))
        self.perform(self.core.engine_unavailable(refusal, self.now, expected=expected))

    def step_time(self) -> StepTime:
        choice = self.chance.choice
        return StepTime(
            t0_ms=choice((10, 9.7)), c_ms=choice((1.0, 0.31, 0, 0.05)), alpha=choice((1, 0.83)),
            largest=choice((1, 8, 64)), tokens=choice((1, 1.7)), good=self.chance.random() < 0.95,
            traffic=choice((1, 1.3, 2.2)), prompt_share=choice((0, 0.4)),
        )  # fmt: skip

    def report(self) -> None:
        choice, some = self.chance.choice, self.chance.sample
        if choice(range(50)) == 0:
            self.epoch += 1
            self.running.clear()
        if choice(range(20)) == 0:
            self.slots = choice((1, 4, 8, 16, 30))
        self.preemptions += choice((0,) * 9 + (1,))
        leased = self.core.ledger.leased
        report = EngineReport(
            f"e{self.epoch}",
            self.slots,
            foreign=choice((0, 0, 0, 0, 1, 2)),
            foreign_interactive=choice((0, 0, 1)),
            kv=self.cache,
            kv_usage=choice((0, 0.0, self.chance.random(), 0.5, 0.95, 1)),
            preemptions_total=self.preemptions,
            batch_seen=choice((0, 1, 4, self.slots)),
            step_time=self.step_time() if self.measures else None,
            prefill_tokens_per_s=choice((None, 100, 1000.0, 4000.3, 20_000)),
            chunk_tokens=choice((None, 256, 512)),
            step_tokens=choice((None, 512, 2048)),
            prefilling=choice((0, 0, 1, 3)),
            waiting=choice((0, 0, 1)),
            scheduled=choice((None, leased, max(0, leased - 1))),
            sidecars=self.sidecars,
            contended=self.sidecars > 1 and self.chance.random() < 0.5,
            max_loras=self.adapters,
            adapters_foreign=frozenset(some(ADAPTERS, choice((0, 0, 1)))),
            adapters_wanted=frozenset(some(ADAPTERS, choice((0, 0, 0, 1)))),
            adapters_joinable=self.chance.random() < 0.9,
        )
        self.perform(self.core.engine_reports(report, self.now))

    def offer(self) -> None:
        self.offers += 1
        slots = self.chance.choice((1, 1, 2, 5))
        self.perform(self.claims.offered(slots, self.offers, self.now))
        self.say("parents", *map(self.claims.parents.offers, PARENTS))

    def parent_claims(self) -> None:
        choice = self.chance.choice
        claim = choice((None, Claim(choice((1, 2)), choice((True, False)), choice((0, 1, 4)))))
        call = ClaimCall(claim, unused=choice((0, 0, 1)), number=len(self.requests))
        self.say("claimed", self.claims.claimed(choice(PARENTS), call, self.now))
        self.claims.expire(self.now)

    def call(self) -> None:
        call = self.calls.next(again=self.chance.random() < 0.5)
        self.say("call", call)
        if call is not None and self.chance.random() < 0.2:
            self.calls.failed()
        elif call is not None:
            self.say(self.calls.reported(call.claim, call.waits, call.number))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        RandomLog(int(argument), print).run(EVENTS)
