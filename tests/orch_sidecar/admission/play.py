"""An admission in front of slots that serve each request for its own time, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Decision, Lease, Queued, StepTime
from orch_sidecar.api.refusal import Refusal
from tests.orch_sidecar.admission.examples import BULK, INTERACTIVE
from vllm_plugin.contracts.profile import ServiceClass

# 100 tokens take a second, whatever the batch.
STEP_TIME = StepTime(10.0, 0.0, 1.0, 1024)
TOKENS_PER_S = 100


@dataclass(frozen=True, slots=True)
class Coming:
    """A request that arrives at `at` and takes `service_s`, whatever is expected of it."""

    at: float
    request: AdmissionRequest
    service_s: float


@dataclass(frozen=True, slots=True)
class Went:
    """A request that was dispatched: when, its wait, and what was promised."""

    request: AdmissionRequest
    at: float
    service_s: float
    waited_s: float
    promised_ms: int | None


@dataclass(slots=True)
class Played:
    """What came of it."""

    core: AdmissionController
    went: list[Went] = field(default_factory=list)
    arrived: dict[ServiceClass, int] = field(default_factory=lambda: dict.fromkeys(ServiceClass, 0))
    idle_slot_s: float = 0.0  # reserved slots that bulk requests waited for

    def of(self, service_class: ServiceClass) -> list[Went]:
        return [each for each in self.went if each.request.service_class is service_class]

    def served(self, service_class: ServiceClass) -> float:
        """The share of its requests that were dispatched."""
        return len(self.of(service_class)) / self.arrived[service_class]

    def share(self, service_class: ServiceClass, begin: float, end: float) -> float:
        """The share of the slots' time that a class had."""
        slot_s = sum(
            max(0.0, min(each.at + each.service_s, end) - max(each.at, begin))
            for each in self.of(service_class)
        )
        return slot_s / (self.core.ledger.slots_total * (end - begin))


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


def play(core: AdmissionController, coming: Iterable[Coming], until: float) -> Played:
    """Plays it until then, without a look at the controller but when it asks for one."""
    played, requests = Played(core), dict[str, tuple[Coming, int | None]]()
    ends: list[tuple[float, int, str]] = []  # of leases
    arrivals = sorted(coming, key=lambda each: each.at)
    number, now = 0, 0.0

    def dispatched(decisions: Iterable[Decision]) -> None:
        for each in decisions:
            if isinstance(each.outcome, Lease):
                one, promised_ms = requests[each.ticket]
                waited_s = now - one.at
                played.went.append(Went(one.request, now, one.service_s, waited_s, promised_ms))
                heappush(ends, (now + one.service_s, len(played.went), each.ticket))

    while now < until:
        timer = core.next_event(now)
        times = [until if timer is None else timer, until]
        times += [ends[0][0]] if ends else []
        times += [arrivals[number].at] if number < len(arrivals) else []
        then = min(times)
        played.idle_slot_s += core.constraints.reserve.kept_free(now) * (then - now)
        now = then
        if ends and ends[0][0] <= now:
            ticket = heappop(ends)[2]
            tokens = round(requests[ticket][0].service_s * TOKENS_PER_S)
            dispatched(core.release(ticket, now, tokens))
        elif number < len(arrivals) and arrivals[number].at <= now:
            one, ticket = arrivals[number], f"r{number}"
            number += 1
            played.arrived[one.request.service_class] += 1
            outcome = core.arrive(ticket, one.request, now)
            promised_ms = outcome.predicted_start_ms if isinstance(outcome, Queued) else None
            requests[ticket] = one, promised_ms
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
    return played
