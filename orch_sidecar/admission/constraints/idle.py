"""Decides how many idle requests run: only in what the others leave, and unnoticed by them.

Pure: times are seconds of a monotonic clock. Idle requests have the slots that neither interactive
nor bulk requests use, wait for, or are expected to use. Idle requests delay the first tokens of
interactive ones in two ways, and each may add a small share to the time of a first token:

- by decodes: a prompt is read between the decodes of a batch, so the batch may grow until a step
  that reads a part of a prompt is longer by DECODES_SHARE;
- by prompts: a step that reads a part of one takes c seconds more, so an interactive request that
  arrives during it waits c / 2 longer on average. Then the idle request is cut, unless the part was
  the last, and the unread rest of its prompt costs nothing. After MAX_CUTS it is no longer cut,
  and each step that reads the interactive prompt reads a part of the idle one, too, while any is
  left. So a prompt that is read for s seconds meets a share s of each second's requests, and costs
  s times the delay of each. PROMPTS_SHARE of the time of a first token pays for it. No idle prompt
  is sent while another prompt is unread.

The busier the engine is, the more requests wait behind one that is delayed: both shares are
multiplied by the part of its time that others leave (the Pollaczek-Khinchine formula).

Bulk requests wait for no first token, but idle ones slow down each of their tokens: by decodes, and
by prompts, because nothing decodes while these are read. Beside bulk requests both together may
take BULK_SHARE of the time that interactive prompts leave, decodes at most half of that. All of
this is computed from what the engine measures.
"""

from __future__ import annotations

from math import exp, inf, sqrt
from typing import ClassVar, Final

from orch_sidecar.admission.constraints.constraint import (
    POLL_S,
    UNLIMITED,
    Constraint,
    Occupancy,
    Scope,
)
from orch_sidecar.admission.constraints.reserve import InteractiveReserve
from orch_sidecar.admission.constraints.slot_offers import SlotOffers
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.demand import UPDATE_EVERY_S
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, ServiceClass

# The shares by which idle prompts and decodes may prolong the mean time to an interactive first
# token: together at most a tenth at the 95th percentile.
PROMPTS_SHARE: Final = 0.07
DECODES_SHARE: Final = 0.05
# The share that both may take of the time in which bulk requests decode. Prompts that are cut count
# whole, which makes up for losses that are not counted.
BULK_SHARE: Final = 0.15
# One interactive request in fifty finds no free slot, and waits until an engine has aborted an idle
# one: for a step.
SPARE_ERRORS: Final = 2.0
# After so long without an interactive request nobody could notice a delay.
QUIET_S: Final = 60.0
# The period over which interactive prompts are averaged, and that over which the allowance for idle
# ones can be saved up.
AVERAGING_S: Final = 30.0
MAX_SAVED_S: Final = 5.0
# For so long a slot is kept for a refused request to come back: a parent sidecar's does.
KEEP_FREE_S: Final = 0.25
# How often the prompt of an idle request may be cut for an interactive one.
MAX_CUTS: Final = 3


class InteractivePrompts:
    """The recent rate of interactive prompts, from the ledger's counts."""

    def __init__(self, ledger: Ledger) -> None:
        self.last_at = -inf  # when the last one was seen
        self.tokens_per_s = 0.0
        self._requests_per_s = 0.0
        self._counted = (0, 0)  # requests, tokens
        self._updated_at = 0.0
        self._ledger = ledger

    @property
    def mean(self) -> float:
        """The mean tokens of a prompt; 0 without any."""
        return self.tokens_per_s / self._requests_per_s if self._requests_per_s else 0.0

    def update(self, now: float) -> None:
        """Counts the prompts that were granted since the last update, at most ten times a
        second."""
        ledger, passed_s = self._ledger, now - self._updated_at
        if passed_s < UPDATE_EVERY_S:
            return
        requests, tokens = ledger.granted[INTERACTIVE.rank], ledger.interactive_prompts
        new, new_tokens = requests - self._counted[0], tokens - self._counted[1]
        self._counted, self._updated_at = (requests, tokens), now
        kept = exp(-passed_s / AVERAGING_S)
        self._requests_per_s = kept * self._requests_per_s + (1 - kept) * new / passed_s
        self.tokens_per_s = kept * self.tokens_per_s + (1 - kept) * new_tokens / passed_s
        if new or ledger.interactive or ledger.foreign_interactive:
            self.last_at = now


class DelayBudget:
    """The seconds that idle prompts may cost others: earned at a rate, saved for MAX_SAVED_S."""

    def __init__(self) -> None:
        self._saved_s = 0.0
        self._updated_at = 0.0

    def spend(self, seconds: float, rate: float, now: float) -> None:
        self._update(rate, now)
        self._saved_s -= seconds

    def ready_at(self, rate: float, now: float) -> float:
        """Returns when the budget will no longer be overdrawn."""
        self._update(rate, now)
        if self._saved_s >= 0:
            return now
        return now - self._saved_s / rate if rate else inf

    def _update(self, rate: float, now: float) -> None:
        saved_s = self._saved_s + max(0.0, now - self._updated_at) * rate
        self._saved_s, self._updated_at = min(saved_s, MAX_SAVED_S * rate), now


class IdleRoom(Constraint):
    """The room of idle requests."""

    reason: ClassVar[str] = "idle"
    scope: ClassVar[Scope] = Scope.CLASS
    absolute: ClassVar[bool] = True
    classes: ClassVar[tuple[ServiceClass, ...]] = (IDLE,)

    def __init__(
        self,
        ledger: Ledger,
        queues: Queues,
        service_times: ServiceTimes,
        reserve: InteractiveReserve,
        offers: SlotOffers,
    ) -> None:
        self.prompts = InteractivePrompts(ledger)
        self._ledger = ledger
        self._queues = queues
        self._service_times = service_times
        self._reserve = reserve
        self._offers = offers
        self._chunk_tokens: int | None = None
        self._reads_two_prompts = False  # in a step
        self._kept_free = (0, -inf)  # slots for a refused request, and until when
        self._unread = 0  # sequences whose prompts the engine had yet to read at its last report
        self._delay_budget = DelayBudget()  # for delays of interactive requests
        self._reading_budget = DelayBudget()  # for delays of bulk requests

    def reported(self, report: EngineReport, now: float) -> None:
        self._chunk_tokens, self._unread = report.chunk_tokens, report.prefilling
        self._reads_two_prompts = (report.step_tokens or 0) >= 2 * (report.chunk_tokens or inf)
        self.prompts.update(now)

    # Slots

    def room(self, service_class: ServiceClass, occupancy: Occupancy, now: float) -> int:
        """Returns the slots that no other request is expected to use, within the batch that slows
        interactive requests down by no more than allowed."""
        if service_class is not IDLE:
            return UNLIMITED
        if self._others_wait():
            return -occupancy.idle
        bulk, demand = self._ledger.bulk + self._queues.cost(BULK), self._reserve.bulk
        expected = max(0, round(demand.expect(now)) - bulk)
        others = self._other_sequences(occupancy, now)
        free = self._ledger.slots_total - others - expected - self._spare_slots(now)
        return min(free, self._batch(others, now)) - occupancy.idle

    def _spare_slots(self, now: float) -> int:
        """Returns how many slots stay free for interactive requests beyond those that they have and
        wait for: SPARE_ERRORS standard errors of their demand, and at most half of all slots."""
        demand = self._reserve.interactive.expect(now)
        return min(self._ledger.slots_total // 2, round(SPARE_ERRORS * sqrt(demand)))

    def excess(self, occupancy: Occupancy, room: int, now: float) -> int:
        """Returns the sequences of idle requests that have to leave, where all constraints together
        give them this `room`: those whose slots others wait for, or those that take more than half
        of the slots that should stay free. Not each of them at once: the expectation changes by one
        all the time, and what they have generated is lost."""
        slots_total = self._ledger.slots_total
        if self._others_wait():
            return occupancy.idle
        needed = self._other_sequences(occupancy, now) + occupancy.idle - slots_total
        return max(0, needed, -room - max(1, self._spare_slots(now) // 2))

    def keep_free(self, cost: int, now: float) -> None:
        """Keeps slots for a request of another class that was refused while idle ones run."""
        self._kept_free = cost, now + KEEP_FREE_S

    def _others_wait(self) -> bool:
        """Whether requests wait at other sidecars, or for something other than a slot."""
        offers, queues = self._offers, self._queues
        if offers.contended or offers.parents_wait or offers.was_rejected:
            return True
        return queues.aside_count > queues.aside(IDLE).size

    def _other_sequences(self, occupancy: Occupancy, now: float) -> int:
        """Returns the sequences of other requests that run, wait, or are about to come back."""
        queues, (kept, until) = self._queues, self._kept_free
        others = occupancy.taken + (kept if now < until else 0)
        return others + queues.cost(INTERACTIVE) + queues.cost(BULK) if queues.urgent else others

    def _batch(self, others: int, now: float) -> int:
        """Returns how many sequences of idle requests may run beside the `others`."""
        has_readers = self._has_readers(now)
        if not has_readers and not self._ledger.bulk:
            return UNLIMITED
        step, rate = self._reserve.step_time, self._service_times.prompts.tokens_per_s
        if step is None:
            return 1
        base_ms = step.ms(max(1, others))
        share = BULK_SHARE / 2 / self._offers.sidecars
        allowed_ms = base_ms / (1 - share) if self._ledger.bulk else inf
        if has_readers:
            mean, chunk = self.prompts.mean, self._chunk_tokens
            read = mean if chunk is None else min(chunk, mean)
            step_ms = base_ms + (1000 * read / rate if rate else 0.0)
            longer_ms = DECODES_SHARE * self._time_left_share() * step_ms
            allowed_ms = min(allowed_ms, base_ms + longer_ms)
        low, high = 0, max(0, self._ledger.slots_total - others)
        while low < high:  # the step time grows with the batch
            middle = (low + high + 1) // 2
            if step.ms(others + middle) <= allowed_ms:
                low = middle
            else:
                high = middle - 1
        return low

    # Prompts

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        return request.cost > self.room(IDLE, occupancy, now) or self._prompt_fits_at(now) > now

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        at = self._prompt_fits_at(now)
        return min(at, now + POLL_S) if at > now else now + POLL_S  # it lacks room

    def granted(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        if self._has_readers(now):
            self._delay_budget.spend(self._delay_s(request), self._delay_allowance(), now)
        if self._ledger.bulk and (rate := self._service_times.prompts.tokens_per_s):
            self._reading_budget.spend(request.prompt_tokens / rate, self._reading_allowance(), now)

    def is_in_the_way(self, lease: Lease, request: AdmissionRequest, now: float) -> bool:
        """Whether the next step reads a part of an idle prompt although an interactive request has
        arrived after it, and the idle one may still be cut."""
        if request.reclaimed >= MAX_CUTS or not self._has_readers(now):
            return False
        left = self._service_times.prompts.unread_of(lease, now)
        # A prompt that was just sent waits for the end of a step.
        step_s = self._service_times.first_token_s(AdmissionRequest(IDLE)) or 0.0
        return left > (self._chunk_tokens or 0) or (left > 0 and now - lease.granted_at < step_s)

    def cut(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        """Gives back what the unread part of a prompt would have cost: its request is cut."""
        if request.prompt_tokens and self._has_readers(now):
            left = self._service_times.prompts.unread_of(lease, now) / request.prompt_tokens
            saved_s = min(1.0, left) * self._delay_s(request)
            self._delay_budget.spend(-saved_s, self._delay_allowance(), now)

    def _delay_s(self, request: AdmissionRequest) -> float:
        """Returns the seconds by which an idle prompt delays the requests of each second."""
        rate, chunk = self._service_times.prompts.tokens_per_s, self._chunk_tokens
        read_s = self._service_times.first_token_s(request) or 0.0
        if not rate or not request.prompt_tokens:
            return read_s * read_s / 2
        tokens = min(chunk or inf, request.prompt_tokens)
        steps, shared_steps = request.prompt_tokens / tokens, 0.0
        if request.reclaimed >= MAX_CUTS:
            # Half of its steps are left on average; the other prompt meets no more than it has.
            met = min(steps, self.prompts.mean / tokens) if self._reads_two_prompts else steps
            shared_steps = met - met * met / (2 * steps)
        return read_s * tokens / rate * (0.5 + shared_steps)

    def _prompt_fits_at(self, now: float) -> float:
        """Returns when an idle prompt may be sent."""
        at, budget = now, self._reading_budget
        if self._ledger.bulk:
            at = budget.ready_at(self._reading_allowance(), now)
        if not self._has_readers(now):
            return at
        at = max(at, self._service_times.prompts.clears_at)
        if self._unread:
            at = max(at, now + POLL_S)  # the next report says when
        return max(at, self._delay_budget.ready_at(self._delay_allowance(), now))

    def _delay_allowance(self) -> float:
        """Returns by how many seconds idle prompts may delay interactive requests each second."""
        smallest = AdmissionRequest(INTERACTIVE, prompt_tokens=int(self.prompts.mean))
        first_token_s = self._service_times.first_token_s(smallest) or 0.0
        return PROMPTS_SHARE * self._time_left_share() * first_token_s

    def _reading_allowance(self) -> float:
        """Returns the share of the engine's time that idle prompts may take from bulk requests."""
        step, others = self._reserve.step_time, max(1, self._ledger.non_idle)
        taken = 0.0 if step is None else 1 - step.ms(others) / step.ms(others + self._ledger.idle)
        return max(0.0, BULK_SHARE - taken) * (1 - self._reading_share()) / self._offers.sidecars

    def _time_left_share(self) -> float:
        """Returns the share of the engine's time that the other requests leave: what delays a first
        token delays those behind it, too. Several sidecars at an engine have equal parts of it."""
        step = self._reserve.step_time
        used, most = self._reserve.interactive.slots_for_idle, self._ledger.slots_total
        decodes = 1.0 if step is None else used / most * step.ms(most) / step.ms(round(used) or 1)
        return (1 - self._reading_share()) * (1 - min(1.0, decodes)) / self._offers.sidecars

    def _reading_share(self) -> float:
        """Returns the share of its time in which the engine reads interactive prompts."""
        rate = self._service_times.prompts.tokens_per_s
        return min(1.0, self.prompts.tokens_per_s / rate) if rate else 0.0

    def _has_readers(self, now: float) -> bool:
        """Whether there are interactive requests, or were some recently."""
        if self._ledger.interactive or self._queues.size(INTERACTIVE):
            return True
        return now - self.prompts.last_at < QUIET_S

    def text(self) -> str:
        return "a moment at which no other request is expected to use the slot"
