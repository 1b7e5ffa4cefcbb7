"""Predicts when requests will start, and the places of those that are queued.

Pure: times are seconds of a monotonic clock. Knows the order of the queues and the service times
of requests; dispatches nothing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from orch_sidecar.admission.constraints.constraint import Ahead, Constraint, Scope
from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.fair_queue import MAX_LISTED_REQUESTS
from orch_sidecar.admission.prediction.freed_slots import (
    MIN_WINDOW_S,
    WINDOW_S,
    FreedSlots,
    LentSlots,
    ReleaseRates,
    Schedule,
    SlotAverage,
)
from orch_sidecar.admission.prediction.service_time import output_of
from orch_sidecar.admission.types import AdmissionRequest, QueuedRequest
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, ServiceClass

# Up to this number, starts are predicted one by one; later requests start at the same rate.
_MAX_PREDICTED_REQUESTS: Final = 1024

# How old the places may be, and how much older for each queued request, which costs microseconds.
_MAX_AGE_S: Final = 0.1
_MAX_AGE_S_PER_REQUEST: Final = 1e-4
# Requests behind these keep the place and the prediction of their arrival.
_MAX_PLACES: Final = 16_384


class Forecast(NamedTuple):
    """Milliseconds from now to a request's slot, to its first token and to its end."""

    start_ms: float
    first_token_ms: float
    end_ms: float


class Start(NamedTuple):
    """Seconds until a request has its slots, and until its first token if that is known."""

    slots_s: float
    first_token_s: float | None

    @property
    def ms(self) -> int:
        return round(1000 * self.slots_s)


class Forecaster:
    """Predicts the waits and ends of one engine's requests."""

    def __init__(self, constraints: AdmissionConstraints, freed_slots: FreedSlots) -> None:
        self._freed_slots = freed_slots
        self._service_times = constraints.service_times
        self.release_rates = ReleaseRates()
        self._bulk_slots = SlotAverage()
        self._ledger, self.queues = constraints.ledger, constraints.queues
        self._constraints = constraints

    def _schedule_of(
        self, service_class: ServiceClass, blocked_by: Constraint | None, now: float
    ) -> Schedule | None:
        """Predicts the slots as the queued requests of a class will find them. None: unknown."""
        ledger, is_bulk = self._ledger, service_class is BULK
        room = ledger.slots_total - ledger.non_idle
        free = max(0, room)
        reserved = ledger.slots_total - self._constraints.bulk_batch(now) if is_bulk else 0
        only = None
        if blocked_by is not None:
            if blocked_by.wastes_slots:
                reserved -= free
                free = 0
            if blocked_by.scope is Scope.CLASS and not is_bulk:
                only = INTERACTIVE  # only the ends of such requests let it in
        schedule = self._freed_slots.schedule(now, free, only)
        if schedule is None:
            return None
        if room < 0:  # others have taken some of the slots, or the engine has fewer than it had
            schedule = schedule.copy(without=-room)
        if (kept := self._constraints.offers.share_kept) < 1.0:
            schedule = schedule.with_share(kept)
        if is_bulk:
            self._queue_up(schedule, INTERACTIVE, None, now)
            schedule = schedule.copy(without=max(0, reserved))
        return schedule

    def _queue_up(
        self,
        schedule: Schedule,
        service_class: ServiceClass,
        until: AdmissionRequest | None,
        now: float,
    ) -> Ahead:
        """Places the queued requests of a class: all, or only those before the new one `until`.
        Returns what they are."""
        line, aside = self.queues.line(service_class), self.queues.aside(service_class)
        starts_behind, ahead = self._constraints.starts_behind, Ahead()
        for group in aside:  # a few of each one by one
            most = MAX_LISTED_REQUESTS // aside.groups + 1
            # Bulk ones delay those in line less than a place in the schedule would.
            for each in islice(group, 0 if service_class is BULK else most):
                blocked_s = starts_behind(ahead, each.request, now)
                self._place(schedule, each.request, ahead, blocked_s)
            needed = group.constraint.group(group.first.request)
            ahead.needing[group.constraint, needed] = group.cost
        if not line.size:
            return ahead
        if line.size <= MAX_LISTED_REQUESTS:
            for each in line if until is None else line.before(until):
                blocked_s = starts_behind(ahead, each.request, now)
                self._place(schedule, each.request, ahead, blocked_s)
            return ahead
        sequences, tokens = line.cost, float(line.tokens)
        if until is not None:
            _, sequences, tokens = line.ahead(until)
        if sequences > 0:
            share = min(1.0, tokens / line.tokens)
            prompts, output = share * line.prompt_work, output_of(share * line.prompt_work, tokens)
            self._freed_slots.fill(schedule, prompts, output, sequences)
            ahead.sequences += sequences
            ahead.prompt_tokens += prompts
            ahead.output_tokens += output
        return ahead

    def _place(
        self, schedule: Schedule, request: AdmissionRequest, ahead: Ahead, blocked_s: float | None
    ) -> None:
        """Places a queued request behind those that are `ahead`, if it is known for how long
        something other than slots blocks it."""
        if blocked_s is None:
            return
        if blocked_s > ahead.held_s:  # others pass it until then
            insort(ahead.passed, (blocked_s, request), key=itemgetter(0))
            return
        if ahead.passed:
            self._place_passed(schedule, ahead)
        self._freed_slots.place(schedule, request)

    def _place_passed(self, schedule: Schedule, ahead: Ahead) -> None:
        """Places the requests that others pass only until the next slot comes free."""
        while ahead.passed:
            next_s = self._freed_slots.start_s(schedule, 1)
            if next_s is None or ahead.passed[0][0] > next_s:
                return
            self._freed_slots.place(schedule, ahead.passed.pop(0)[1])

    def start(
        self,
        request: AdmissionRequest,
        blocked_by: Constraint | None,
        now: float,
    ) -> Start | None:
        """Predicts the start of a request that arrives now and is `blocked_by` a constraint. None:
        unknown."""
        times = self._service_times
        if blocked_by is None:
            return Start(0.0, times.first_token_s(request, times.prompts.unread(now)))
        is_bulk = request.service_class is BULK
        if request.service_class is IDLE:
            return None  # nobody knows what the others will leave
        lent = self._lent_slots(request.cost, now) if is_bulk else None
        schedule = (
            lent.schedule if lent else self._schedule_of(request.service_class, blocked_by, now)
        )
        if schedule is None:
            return None
        ahead = self._queue_up(schedule, request.service_class, request, now)
        self._place_passed(schedule, ahead)
        if lent:
            slots_s = lent.start_s(request.cost, self.queues.ahead(request).sequences)
        else:
            slots_s = self._freed_slots.start_s(schedule, request.cost)
        if slots_s is None:
            return None
        blocked_s = self._constraints.starts_behind(ahead, request, now)
        if blocked_s is None:
            return None
        slots_s = _clear_s(max(slots_s, blocked_s), request, blocked_by, now)
        if slots_s is None:
            return None
        unread = times.prompts.unread_after(schedule.prompt_tokens, slots_s)
        own_s = times.first_token_s(request, unread)
        return Start(slots_s, None if own_s is None else slots_s + own_s)

    def start_after(self, request: AdmissionRequest, wait_s: float) -> Start:
        """Returns the start of a request that gets its slots after `wait_s`."""
        own_s = self._service_times.first_token_s(request)
        return Start(wait_s, None if own_s is None else wait_s + own_s)

    def _lent_slots(self, cost: int, now: float) -> LentSlots | None:
        """Returns at least `cost` slots of bulk requests beside interactive traffic. None: there is
        no such traffic, or what bulk requests have beside it is unknown."""
        ledger, reserve, times = self._ledger, self._constraints.reserve, self._service_times
        waiting = self.queues.size(BULK) > 0
        average = self._bulk_slots.recent_average(ledger.bulk_slot_s(now), waiting, now)
        pace, token_s = reserve.bulk.pace, times.pace_s(0)
        if average is None or not token_s or not pace.service_s or not reserve.has_traffic(now):
            return None
        guaranteed = reserve.rules.bulk_share / reserve.sidecars * ledger.slots_total
        schedule, recent_average = (
            self._freed_slots.schedule(now, 0, BULK),
            max(average, guaranteed),
        )
        if schedule is None or recent_average * WINDOW_S < MIN_WINDOW_S:
            return None
        return LentSlots(schedule, recent_average, pace.token_s / token_s, pace.service_s, cost)

    def starts(
        self,
        service_class: ServiceClass,
        blocked_by: Constraint | None,
        now: float,
    ) -> Iterator[tuple[QueuedRequest, float | None]]:
        """Predicts in how many seconds each queued request of a class gets its slots, in the order
        of their dispatch; None: unknown. Where the ends of running requests are unknown, recent
        releases show how fast slots of the class come free.

        `blocked_by`: what the head of the queue waits for.
        """
        freed, is_bulk, ahead = self._freed_slots, service_class is BULK, Ahead()
        lent = self._lent_slots(1, now) if is_bulk else None
        if lent:
            schedule: Schedule | None = lent.schedule
        elif service_class is IDLE:
            schedule = None
        else:
            schedule = self._schedule_of(service_class, blocked_by, now)
        for group in self.queues.aside(service_class):
            for queued in group:
                aside_s = self._constraints.starts_behind(ahead, queued.request, now)
                aside_s = _clear_s(aside_s, queued.request, group.constraint, now)
                if aside_s is not None and schedule is not None:
                    slots_s = freed.start_s(schedule, queued.request.cost)
                    if not is_bulk:
                        self._place(schedule, queued.request, ahead, aside_s)
                    aside_s = None if slots_s is None else max(aside_s, slots_s)
                yield queued, aside_s
        slots_s, sequences = None, 0
        rates = self.release_rates.of(service_class)
        rate = rates.per_second(now) if schedule is None else None
        for number, queued in enumerate(self.queues.line(service_class)):
            request = queued.request
            blocked_s = self._constraints.starts_behind(ahead, request, now)
            if blocked_s is None:
                yield queued, None
                continue
            if schedule is None:
                sequences += request.cost
                yield queued, max(sequences / rate, blocked_s) if rate else None
                continue
            if number < _MAX_PREDICTED_REQUESTS:
                cost = request.cost
                self._place_passed(schedule, ahead)
                slots_s = lent.start_s(cost, sequences) if lent else freed.start_s(schedule, cost)
                self._place(schedule, request, ahead, blocked_s)
                sequences += cost
                each_s = slots_s
            else:
                each_s = (
                    None if slots_s is None else slots_s * (number + 1) / _MAX_PREDICTED_REQUESTS
                )
            if each_s is not None:
                each_s = max(each_s, blocked_s)
            if blocked_by is not None:
                each_s = _clear_s(each_s, request, blocked_by, now)
            yield queued, each_s

    def forecast(
        self,
        request: AdmissionRequest,
        blocked_by: Constraint | None,
        now: float,
    ) -> Forecast | None:
        """Predicts the course of a request that arrives now and is `blocked_by`. None: unknown."""
        service_s = self._service_times.service_s(request, joins=blocked_by is None)
        if service_s is None or request.cost > self._ledger.slots_total:
            return None
        if blocked_by is None and self._service_times.prompts.clears_at <= now:
            first_s = self._service_times.first_token_s(request)
            return Forecast(0.0, 1000 * (first_s or 0.0), 1000 * service_s)
        start = self.start(request, blocked_by, now)
        if start is None:
            return None
        alone_s = self._service_times.first_token_s(request) or 0.0
        first_s = start.slots_s if start.first_token_s is None else start.first_token_s
        return Forecast(
            1000 * start.slots_s, 1000 * first_s, 1000 * (first_s - alone_s + service_s)
        )


class Place(NamedTuple):
    """`position`: how many requests go before it. `starts_at`: when it gets its slots; None if
    that is unknown."""

    position: int
    starts_at: float | None


class Places:
    """The places of one engine's queued requests. To predict them visits the whole queue, so they
    are kept for a while: the longer the queue, the longer."""

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster
        self._places: dict[str, Place] = {}
        self._stale_at = float("-inf")

    def of(
        self, ticket: str, blocked_by: Constraint | None, now: float, *, away: bool
    ) -> Place | None:
        """Returns the place of a queued request a moment ago. None: it has arrived since then, or
        too many go before it.

        `blocked_by`: what the head of the queue waits for. `away`: nobody knows when the engine
        will take requests.
        """
        if now >= self._stale_at:
            self._places = self._predict(blocked_by, now, away=away)
            self._stale_at = now + _MAX_AGE_S + _MAX_AGE_S_PER_REQUEST * len(self._places)
        return self._places.get(ticket)

    def _predict(
        self, blocked_by: Constraint | None, now: float, *, away: bool
    ) -> dict[str, Place]:
        forecaster, places = self._forecaster, dict[str, Place]()
        for service_class in ServiceClass:
            if not forecaster.queues.size(service_class):
                continue
            for queued, start_s in forecaster.starts(service_class, blocked_by, now):
                if len(places) == _MAX_PLACES:
                    return places
                starts_at = None if start_s is None or away else now + start_s
                places[queued.ticket] = Place(len(places), starts_at)
        return places


def _clear_s(
    starts_in_s: float | None, request: AdmissionRequest, blocked_by: Constraint, now: float
) -> float | None:
    """Corrects the start of a request that would have its slots now, but is blocked by something
    other than slots: it starts when that clears without an event. None: unknown."""
    if starts_in_s is None or starts_in_s > 0 or blocked_by.lacks_slots:
        return starts_in_s
    at = blocked_by.clears_at(request, now)
    return None if at is None else max(0.0, at - now)
