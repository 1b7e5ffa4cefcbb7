"""Decides how many idle requests run: in what the others leave, and so that these do not notice.

Pure: times are seconds of a monotonic clock. Idle requests have the slots that neither interactive
nor bulk requests use, wait for, or are expected to use. While there are interactive requests, two
things of idle ones delay their first tokens, and each may by a small share of what these take:

- their decodes: a prompt is read between the decodes of a batch, so the batch may grow by as much
  as makes a step with a part of a prompt longer by SLOWED_SHARE;
- their prompts: a request that comes while one is read waits for the rest of that step, and the
  idle request is cut; after MAX_CUTS it stays, and is waited for. So a prompt that is read for s
  seconds meets a share s of each second's requests, which wait for half of r, of the step or of the
  prompt. It costs s * r / 2, and that much is earned in SLOWED_SHARE of a first token's time. None
  is sent while another is unread.

The busier the engine is, the more requests wait behind one that is delayed: both are multiplied by
the part of its time that others leave (the Pollaczek-Khinchine formula). All of it follows from
what the engine measures.
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
from orch_sidecar.admission.constraints.demand import UPDATE_EVERY_S
from orch_sidecar.admission.constraints.reserve import InteractiveReserve
from orch_sidecar.admission.constraints.slot_offers import SlotOffers
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, ServiceClass

# Of the time to an interactive first token: by how much each of both may prolong it.
SLOWED_SHARE: Final = 0.1
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
        self._kept = (0, -inf)  # slots for a request that was refused, and until when
        self._unread = 0  # sequences that the engine had yet to read by its last report
        self._saved = 0.0  # seconds of delay that idle prompts may cost
        self._saved_at = 0.0

    def reported(self, report: EngineReport, now: float) -> None:
        self._chunk, self._unread = report.chunk_tokens, report.prefilling
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
        if not self._has_readers(now):
            return UNLIMITED
        step, rate = self._reserve.step_time, self._service_times.prompts.tokens_per_s
        if step is None:
            return 1
        chunk = self.prompts.mean if self._chunk is None else min(self._chunk, self.prompts.mean)
        base_ms = step.ms(max(1, firm))
        may_ms = base_ms + self._share() * (base_ms + (1000 * chunk / rate if rate else 0.0))
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
        if request.cost > self.room(IDLE, beside, now):
            return True
        return self._has_readers(now) and self._reads_at(now) > now

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        at = self._reads_at(now) if self._has_readers(now) else now
        return min(at, now + POLL_S) if at > now else now + POLL_S  # it lacks room

    def granted(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        if self._has_readers(now):
            self._save(now)
            first_token_s, step = self._service_times.first_token_s, self._chunk
            rest_s = read_s = first_token_s(request) or 0.0
            if step is not None and request.reclaimed < MAX_CUTS:
                tokens = min(step, request.prompt_tokens)
                rest_s = first_token_s(AdmissionRequest(IDLE, prompt_tokens=tokens)) or 0.0
            self._saved -= read_s * rest_s / 2

    def is_in_the_way(self, lease: Lease, request: AdmissionRequest, now: float) -> bool:
        """Whether the engine reads the prompt of an idle request that an interactive one came
        after, and that has not been cut so often that it stays."""
        if request.reclaimed >= MAX_CUTS or not self._has_readers(now):
            return False
        return self._service_times.prompts.is_unread(lease, now)

    def _reads_at(self, now: float) -> float:
        """When an idle prompt may be sent."""
        self._save(now)
        at, earned = self._service_times.prompts.clears_at, self._earned()
        if self._unread:
            at = max(at, now + POLL_S)  # the next report says when
        if self._saved < 0:
            at = max(at, now - self._saved / earned if earned else inf)
        return at

    def _save(self, now: float) -> None:
        earned = self._earned()
        saved = self._saved + max(0.0, now - self._saved_at) * earned
        self._saved, self._saved_at = min(saved, SAVED_S * earned), now

    def _earned(self) -> float:
        """Seconds of delay by idle prompts that are earned in a second."""
        smallest = AdmissionRequest(INTERACTIVE, prompt_tokens=int(self.prompts.mean))
        return self._share() * (self._service_times.first_token_s(smallest) or 0.0)

    def _share(self) -> float:
        """By how much a first token may take longer, less what those behind it wait for that:
        multiplied by the part of the engine that the other requests leave. Of several sidecars at
        the engine each has an equal part of that."""
        rate, step = self._service_times.prompts.tokens_per_s, self._reserve.step_time
        reads = min(1.0, self.prompts.tokens_per_s / rate) if rate else 0.0
        used, most = self._reserve.interactive.slots, self._ledger.slots_total
        decodes = 1.0 if step is None else used / most * step.ms(most) / step.ms(round(used) or 1)
        left = (1 - reads) * (1 - min(1.0, decodes))
        return SLOWED_SHARE / self._offers.sidecars * left

    def _has_readers(self, now: float) -> bool:
        """Whether there are interactive requests, or were of late."""
        if self._ledger.interactive or self._queues.size(INTERACTIVE):
            return True
        return now - self.prompts.last_at < QUIET_S

    def text(self) -> str:
        return "a moment at which no other request is expected to use the slot"
