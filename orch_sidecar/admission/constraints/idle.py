"""Decides how many idle requests run: in what the others leave, and so that these do not notice.

Pure: times are seconds of a monotonic clock. Idle requests have the slots that neither interactive
nor bulk requests use, wait for, or are expected to use. While there are interactive requests, two
things of idle ones delay their first tokens, and each may by a small share of what these take:

- their decodes: a prompt is read between the decodes of a batch, so the batch may grow by as much
  as makes a step with a part of a prompt longer by DECODES_SHARE;
- their prompts: a step that reads a part of one takes c seconds more, so a request that comes then
  waits for half of c more. Unless that part is the last, the idle request is cut; what is unread of
  its prompt then costs nothing. After MAX_CUTS it stays: each step that reads the other prompt
  reads a part of this one, too, as long as there are any. So a prompt that is read for s seconds
  meets a share s of each second's requests, and costs s times what these wait for. That much is
  earned in PROMPTS_SHARE of a first token's time. None is sent while another is unread.

The busier the engine is, the more requests wait behind one that is delayed: both are multiplied by
the part of its time that others leave (the Pollaczek-Khinchine formula).

Bulk requests wait for no first token, but each token takes them longer: by the decodes of idle
ones, and by their prompts, for none decodes while these are read. Beside bulk requests both may
take BULK_SHARE together of the time that interactive prompts leave, decodes half of that. All of it
follows from what the engine measures.
"""

from __future__ import annotations

from math import exp, inf, sqrt
from typing import ClassVar, Final

from orch_sidecar.admission.constraints.constraint import (
    POLL_S,
    UNLIMITED,
    Beside,
    Constraint,
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

# Of the mean time to an interactive first token: by how much each of both may prolong it. At the
# 95th percentile they are felt as a tenth at most. With a tenth for prompts, those of 3 000 tokens
# were felt as 0.115: few requests meet one that was cut too often, and wait long.
PROMPTS_SHARE: Final = 0.07
DECODES_SHARE: Final = 0.05
# Of the time in which bulk requests decode: what both may take of it. Prompts that are cut are
# counted whole, which makes up for what is lost of it in other ways.
BULK_SHARE: Final = 0.05
# Without an interactive request for so long there is nobody who could notice.
QUIET_S: Final = 60.0
# Over which interactive prompts are averaged; for how long what idle ones may cost is saved.
AVERAGE_S: Final = 30.0
SAVED_S: Final = 5.0
# A request that may not queue comes back after a moment, if at all: a parent sidecar's does.
KEPT_S: Final = 0.25
# So often a request is cut while its prompt is read, for one that came then.
MAX_CUTS: Final = 3


class InteractivePrompts:
    """What interactive requests of late had the engine read, from the ledger's counts."""

    def __init__(self, ledger: Ledger) -> None:
        self.last_at = -inf  # when the last one was seen
        self.tokens_per_s = 0.0
        self._requests_per_s = 0.0
        self._counted = (0, 0)  # requests, tokens
        self._at = 0.0
        self._ledger = ledger

    @property
    def mean(self) -> float:
        """Tokens of a prompt; 0 without any."""
        return self.tokens_per_s / self._requests_per_s if self._requests_per_s else 0.0

    def update(self, now: float) -> None:
        """Counts those that were granted since the last time, at most ten times a second."""
        ledger, passed_s = self._ledger, now - self._at
        if passed_s < UPDATE_EVERY_S:
            return
        requests, tokens = ledger.granted[INTERACTIVE], ledger.interactive_prompts
        new, new_tokens = requests - self._counted[0], tokens - self._counted[1]
        self._counted, self._at = (requests, tokens), now
        kept = exp(-passed_s / AVERAGE_S)
        self._requests_per_s = kept * self._requests_per_s + (1 - kept) * new / passed_s
        self.tokens_per_s = kept * self.tokens_per_s + (1 - kept) * new_tokens / passed_s
        if new or ledger.interactive or ledger.foreign_interactive:
            self.last_at = now


class Savings:
    """Seconds that idle prompts may cost others: earned at a rate, saved for SAVED_S."""

    def __init__(self) -> None:
        self._saved_s = 0.0
        self._at = 0.0

    def spend(self, seconds: float, rate: float, now: float) -> None:
        self._update(rate, now)
        self._saved_s -= seconds

    def ready_at(self, rate: float, now: float) -> float:
        """When they may be spent again: the last time may have spent more than there was."""
        self._update(rate, now)
        if self._saved_s >= 0:
            return now
        return now - self._saved_s / rate if rate else inf

    def _update(self, rate: float, now: float) -> None:
        saved_s = self._saved_s + max(0.0, now - self._at) * rate
        self._saved_s, self._at = min(saved_s, SAVED_S * rate), now


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
        self._chunk: int | None = None
        self._reads_two = False  # prompts, in a step
        self._kept = (0, -inf)  # slots for a request that was refused, and until when
        self._unread = 0  # sequences that the engine had yet to read by its last report
        self._delays = Savings()  # of interactive requests
        self._reading = Savings()  # beside bulk requests

    def reported(self, report: EngineReport, now: float) -> None:
        self._chunk, self._unread = report.chunk_tokens, report.prefilling
        self._reads_two = (report.step_tokens or 0) >= 2 * (report.chunk_tokens or inf)
        self.prompts.update(now)

    # Slots

    def room(self, service_class: ServiceClass, beside: Beside, now: float) -> int:
        """Slots of which no other request is expected to make use, within the batch that slows
        interactive ones down by no more than they may be."""
        if service_class is not IDLE:
            return UNLIMITED
        if self._others_wait():
            return -beside.idle
        bulk, demand = self._ledger.bulk + self._queues.cost(BULK), self._reserve.bulk
        expected = max(0, round(demand.update(now)) - bulk)
        free = self._ledger.slots_total - self._firm(beside, now) - expected - self._spare(now)
        return min(free, self._batch(self._firm(beside, now), now)) - beside.idle

    def _spare(self, now: float) -> int:
        """Slots that stay free for interactive requests beyond those that they have and wait for:
        the standard error of what they ask for. At most half of all: a single one is given back."""
        demand = self._reserve.interactive.update(now)
        return min(self._ledger.slots_total // 2, round(sqrt(demand)))

    def excess(self, beside: Beside, room: int, now: float) -> int:
        """Sequences of idle requests that have to leave, where they have this `room` by all
        constraints: those whose slots others wait for, or too many for what is expected by half of
        the slots that are to stay free. What is expected changes by one at any time, and what they
        have generated is lost."""
        slots_total = self._ledger.slots_total
        if self._others_wait():
            return beside.idle
        needed = self._firm(beside, now) + beside.idle - slots_total
        return max(0, needed, -room - max(1, self._spare(now) // 2))

    def keep_free(self, cost: int, now: float) -> None:
        """A request of another class was refused while idle ones run: it may come back."""
        self._kept = cost, now + KEPT_S

    def _others_wait(self) -> bool:
        """Whether requests wait at other sidecars, or for something else than a slot."""
        offers, queues = self._offers, self._queues
        if offers.contended or offers.parents_wait or offers.rejected:
            return True
        return queues.passed > queues.aside(IDLE).size

    def _firm(self, beside: Beside, now: float) -> int:
        """Sequences of other requests that run, wait, or are about to come back."""
        queues, (kept, until) = self._queues, self._kept
        firm = beside.taken + (kept if now < until else 0)
        return firm + queues.cost(INTERACTIVE) + queues.cost(BULK) if queues.urgent else firm

    def _batch(self, firm: int, now: float) -> int:
        """How many sequences of idle requests may run beside `firm` others."""
        has_readers = self._has_readers(now)
        if not has_readers and not self._ledger.bulk:
            return UNLIMITED
        step, rate = self._reserve.step_time, self._service_times.prompts.tokens_per_s
        if step is None:
            return 1
        base_ms = step.ms(max(1, firm))
        share = BULK_SHARE / 2 / self._offers.sidecars
        may_ms = base_ms / (1 - share) if self._ledger.bulk else inf
        if has_readers:
            mean, chunk = self.prompts.mean, self._chunk
            read = mean if chunk is None else min(chunk, mean)
            step_ms = base_ms + (1000 * read / rate if rate else 0.0)
            may_ms = min(may_ms, base_ms + DECODES_SHARE * self._part() * step_ms)
        low, high = 0, max(0, self._ledger.slots_total - firm)
        while low < high:  # the step time grows with the batch
            middle = (low + high + 1) // 2
            if step.ms(firm + middle) <= may_ms:
                low = middle
            else:
                high = middle - 1
        return low

    # Prompts

    def blocks(self, request: AdmissionRequest, beside: Beside, now: float) -> bool:
        return request.cost > self.room(IDLE, beside, now) or self._reads_at(now) > now

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        at = self._reads_at(now)
        return min(at, now + POLL_S) if at > now else now + POLL_S  # it lacks room

    def granted(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        if self._has_readers(now):
            self._delays.spend(self._delay_s(request), self._earned(), now)
        if self._ledger.bulk and (rate := self._service_times.prompts.tokens_per_s):
            self._reading.spend(request.prompt_tokens / rate, self._left_by_decodes(), now)

    def is_in_the_way(self, lease: Lease, request: AdmissionRequest, now: float) -> bool:
        """Whether the next step reads the prompt of an idle request that an interactive one came
        after, and that has not been cut so often that it stays."""
        if request.reclaimed >= MAX_CUTS or not self._has_readers(now):
            return False
        left = self._service_times.prompts.left_of(lease, now)
        # One that was just sent waits for the end of a step.
        step_s = self._service_times.first_token_s(AdmissionRequest(IDLE)) or 0.0
        return left > (self._chunk or 0) or (left > 0 and now - lease.granted_at < step_s)

    def cut(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        """An idle request is cut: nobody waits for what is unread of its prompt."""
        if request.prompt_tokens and self._has_readers(now):
            left = self._service_times.prompts.left_of(lease, now) / request.prompt_tokens
            self._delays.spend(-min(1.0, left) * self._delay_s(request), self._earned(), now)

    def _delay_s(self, request: AdmissionRequest) -> float:
        """Seconds by which an idle prompt delays the requests of each second."""
        rate, chunk = self._service_times.prompts.tokens_per_s, self._chunk
        read_s = self._service_times.first_token_s(request) or 0.0
        if not rate or not request.prompt_tokens:
            return read_s * read_s / 2
        tokens = min(chunk or inf, request.prompt_tokens)
        steps, beside = request.prompt_tokens / tokens, 0.0
        if request.reclaimed >= MAX_CUTS:
            # Of its steps, in the mean half are left; no more are met than the other prompt takes.
            met = min(steps, self.prompts.mean / tokens) if self._reads_two else steps
            beside = met - met * met / (2 * steps)
        return read_s * tokens / rate * (0.5 + beside)

    def _reads_at(self, now: float) -> float:
        """When an idle prompt may be sent."""
        at = self._reading.ready_at(self._left_by_decodes(), now) if self._ledger.bulk else now
        if not self._has_readers(now):
            return at
        at = max(at, self._service_times.prompts.clears_at)
        if self._unread:
            at = max(at, now + POLL_S)  # the next report says when
        return max(at, self._delays.ready_at(self._earned(), now))

    def _earned(self) -> float:
        """Seconds of delay by idle prompts that are earned in a second."""
        smallest = AdmissionRequest(INTERACTIVE, prompt_tokens=int(self.prompts.mean))
        first_token_s = self._service_times.first_token_s(smallest) or 0.0
        return PROMPTS_SHARE * self._part() * first_token_s

    def _left_by_decodes(self) -> float:
        """The part of the engine's time that idle prompts may have beside bulk requests."""
        step, firm = self._reserve.step_time, max(1, self._ledger.firm)
        taken = 0.0 if step is None else 1 - step.ms(firm) / step.ms(firm + self._ledger.idle)
        return max(0.0, BULK_SHARE - taken) * (1 - self._reads()) / self._offers.sidecars

    def _part(self) -> float:
        """The part of the engine's time that the other requests leave: what delays a first token
        delays those behind it, too. Of several sidecars at the engine each has an equal part."""
        step = self._reserve.step_time
        used, most = self._reserve.interactive.slots, self._ledger.slots_total
        decodes = 1.0 if step is None else used / most * step.ms(most) / step.ms(round(used) or 1)
        return (1 - self._reads()) * (1 - min(1.0, decodes)) / self._offers.sidecars

    def _reads(self) -> float:
        """The part of its time that the engine reads interactive prompts."""
        rate = self._service_times.prompts.tokens_per_s
        return min(1.0, self.prompts.tokens_per_s / rate) if rate else 0.0

    def _has_readers(self, now: float) -> bool:
        """Whether there are interactive requests, or were of late."""
        if self._ledger.interactive or self._queues.size(INTERACTIVE):
            return True
        return now - self.prompts.last_at < QUIET_S

    def text(self) -> str:
        return "a moment at which no other request is expected to use the slot"
