"""An admission in front of slots that serve each request for its own time, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Decision, Lease, StepTime
from orch_sidecar.api.refusal import Refusal
from tests.orch_sidecar.admission.examples import BULK, INTERACTIVE, report
from vllm_plugin.contracts.profile import AdmissionRules, ServiceClass

# 100 tokens take a second, whatever the batch.
STEP_TIME = StepTime(10.0, 0.0, 1.0, 1024)
TOKENS_PER_S = 100


@dataclass(frozen=True, slots=True)
class Coming:
    """A request that arrives at `at` and takes `service_s`, whatever is expected of it."""

    at: float
    request: AdmissionRequest
    service_s: float


@dataclass(slots=True)
class Played:
    """What came of it. `used`: slots of a class over time, as (from, to) of each lease."""

    slots: int
    ended_at: float = 0.0
    used: dict[ServiceClass, list[tuple[float, float]]] = field(
        default_factory=lambda: {each: [] for each in ServiceClass}
    )
    arrived: dict[ServiceClass, int] = field(default_factory=lambda: dict.fromkeys(ServiceClass, 0))
    waits_s: dict[ServiceClass, list[float]] = field(
        default_factory=lambda: {each: [] for each in ServiceClass}
    )
    idle_slot_s: float = 0.0  # reserved slots that bulk requests waited for

    def served(self, service_class: ServiceClass) -> float:
        """The share of its requests that were dispatched."""
        return len(self.waits_s[service_class]) / self.arrived[service_class]

    def share(self, service_class: ServiceClass, begin: float, end: float) -> float:
        """The share of the slots' time that a class had."""
        used = self.used[service_class]
        slot_s = sum(max(0.0, min(to, end) - max(at, begin)) for at, to in used)
        return slot_s / (self.slots * (end - begin))


def bulk_backlog(count: int, service_s: float) -> list[Coming]:
    """So many bulk requests at once."""
    request = AdmissionRequest(BULK, max_tokens=int(service_s * TOKENS_PER_S))
    return [Coming(0.0, replace(request), service_s) for _ in range(count)]


def poisson(
    per_s: float, service_s: float, begin: float, end: float, seed: int = 1, **asked: float
) -> list[Coming]:
    """Interactive requests at random times; their tokens are known unless `asked` otherwise."""
    chance, at, found = random.Random(seed), begin, []
    request = AdmissionRequest(INTERACTIVE, max_tokens=int(service_s * TOKENS_PER_S))
    while (at := at + chance.expovariate(per_s)) < end:
        found.append(Coming(at, replace(request, **asked), service_s))  # type: ignore[arg-type]
    return found


def play(rules: AdmissionRules, slots: int, coming: Iterable[Coming], until: float) -> Played:
    """Plays it until then; the engine reports each second."""
    core = AdmissionController(rules, random.Random(1))
    core.engine_reports(report(slots, step_time=STEP_TIME), 0.0)
    played, requests = Played(slots), dict[str, Coming]()
    events: list[tuple[float, int, str]] = []  # ends of leases
    arrivals = sorted(coming, key=lambda each: each.at)
    number, now = 0, 0.0

    def dispatched(decisions: Iterable[Decision]) -> None:
        for each in decisions:
            if isinstance(each.outcome, Lease):
                one = requests[each.ticket]
                of = one.request.service_class
                played.used[of].append((now, now + one.service_s))
                played.waits_s[of].append(now - one.at)
                heappush(events, (now + one.service_s, len(events), each.ticket))

    while now < until:
        timer = core.next_event(now)
        times = [until if timer is None else timer, until]
        times += [events[0][0]] if events else []
        times += [arrivals[number].at] if number < len(arrivals) else []
        then = min(times)
        played.idle_slot_s += core.constraints.reserve.kept_free(now) * (then - now)
        now = then
        if events and events[0][0] <= now:
            ticket = heappop(events)[2]
            one = requests[ticket]
            dispatched(core.release(ticket, now, round(one.service_s * TOKENS_PER_S)))
        elif number < len(arrivals) and arrivals[number].at <= now:
            one, ticket = arrivals[number], f"r{number}"
            number += 1
            requests[ticket] = one
            played.arrived[one.request.service_class] += 1
            outcome = core.arrive(ticket, one.request, now)
            if isinstance(outcome, Lease):
                dispatched([Decision(ticket, outcome)])
            elif isinstance(outcome, Refusal) and one.request.identity:
                demand = core.constraints.reserve.demand(one.request.service_class)
                retry_s = (outcome.retry_after_ms or 0) / 1000
                demand.refused(one.request, now + retry_s, now)
            dispatched(core.take_displaced())
        else:
            dispatched(core.dispatch(now))
        assert core.ledger.violations == 0
    played.ended_at = now
    return played
