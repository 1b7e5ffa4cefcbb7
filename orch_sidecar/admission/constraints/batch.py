"""Decides how many sequences run at once, from the SLOs and the measured time per token.

Pure. A batch b keeps an SLO while k * fit(b) is within it: fit is the engine's own measurement of
decode-only steps, t0 + c * b^alpha, and k is the factor of real traffic (prompts between the
decodes, long contexts, a shared machine), measured over the last seconds. A batch that the engine
has not run yet is approached by doubling. An SLO that is null bounds nothing. Nor does one that
even a single sequence misses: fewer sequences would not help, so only the SLO of the first token
decides, and without that the throughput, which grows with the batch (alpha is at most 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final

from orch_sidecar.admission.constraints.constraint import (
    POLL_S,
    UNLIMITED,
    Constraint,
    Occupancy,
    Scope,
)
from orch_sidecar.admission.constraints.slot_offers import SlotOffers
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.types import AdmissionRequest, StepTime
from vllm_plugin.contracts.profile import INTERACTIVE, AdmissionRules, ClassRules, ServiceClass

# The first batch of an unknown engine; any engine worth batching keeps the SLO with it.
FIRST_BATCH: Final = 8
# A fit is trusted up to this multiple of the largest batch that the engine has run.
EXTRAPOLATION_FACTOR: Final = 2
# A smaller change of a limit is noise of the measurement.
DEAD_BAND: Final = 0.1
# So is a smaller difference between the steps of two batches: where twice the sequences cost no
# more than that, they are worth more than a step that may not even be shorter.
FIT_NOISE: Final = 0.1
# The share of the SLO left for what the step time does not include: the queue, the network, a
# slow step.
SLO_MARGIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """The current limits, in sequences.

    `interactive`: interactive sequences at once. `bulk`: the batch of all classes up to which
    bulk and idle requests may fill the engine. `mixed`: the same while there is interactive
    traffic. `measured`: the step time is known. `out_of_reach`: the SLO per token of interactive
    requests, which no batch keeps.
    """

    interactive: int
    bulk: int
    mixed: int
    measured: bool
    out_of_reach: bool = False

    def batch(self, service_class: ServiceClass) -> int:
        return self.interactive if service_class is ServiceClass.INTERACTIVE else self.bulk


def limits_for(
    rules: AdmissionRules,
    slots_total: int,
    step_time: StepTime | None,
    batch_seen: int = 0,
    bulk_prompts: float = 0.0,
    before: Limits | None = None,
) -> Limits:
    """Computes the limits of an engine with `slots_total` slots.

    `batch_seen`: the largest batch that the engine has run. `bulk_prompts`: the share of bulk
    requests in recent prompts. What these add to the time per token is a reason for fewer bulk
    prompts (`prefill`), not for fewer streams. `before`: the limits so far, if they are of the same
    rules and slots.
    """
    interactive, bulk = rules.of(ServiceClass.INTERACTIVE), rules.bulk
    k = 1.0
    if step_time is not None:
        batch_seen = max(batch_seen, step_time.largest)
        k = max(1.0, step_time.traffic * (1 - step_time.prompt_share * bulk_prompts))

    def batch(of_class: ClassRules, step_ms: float | None) -> int:
        fitting_ms = None if step_ms is None else step_ms / k
        return _batch(of_class, fitting_ms, slots_total, step_time, batch_seen)

    def misses(step_ms: float | None, share: float = 1.0) -> bool:
        """Whether a single sequence takes longer than this share of `step_ms`."""
        if step_ms is None or step_time is None:
            return False
        return k * step_time.ms(1) > share * step_ms

    interactive_ms, bulk_ms = _step_ms(interactive, step_time), _step_ms(bulk, step_time)
    # A first token takes the rest of the current step, and the next one.
    first_ms = interactive.ttft_p95_ms
    two_steps_ms = None if first_ms is None else first_ms * (1 - SLO_MARGIN) / 2
    was_out_of_reach = before is not None and before.out_of_reach
    out_of_reach = misses(interactive_ms, 1 - DEAD_BAND if was_out_of_reach else 1.0)
    if out_of_reach:
        interactive_ms = inf if two_steps_ms is None or misses(two_steps_ms) else two_steps_ms
    of_bulk = batch(bulk, inf if misses(bulk_ms) else bulk_ms)
    mixed = min(batch(bulk, interactive_ms), batch(bulk, two_steps_ms), of_bulk)
    of_interactive = batch(interactive, interactive_ms)
    if before is not None:
        of_interactive = _steady(of_interactive, before.interactive, slots_total)
        of_bulk = _steady(of_bulk, before.bulk, slots_total)
        mixed = min(_steady(mixed, before.mixed, slots_total), of_bulk)
    return Limits(
        interactive=of_interactive,
        bulk=of_bulk,
        mixed=mixed,
        measured=step_time is not None and step_time.good,
        out_of_reach=out_of_reach,
    )


def _step_ms(rules: ClassRules, step_time: StepTime | None) -> float | None:
    """Returns the longest step within the SLO per token, of which a step may generate several."""
    tpot_ms = rules.tpot_p95_ms
    if tpot_ms is None or step_time is None:
        return tpot_ms
    return tpot_ms * step_time.tokens


def _batch(
    rules: ClassRules,
    step_ms: float | None,
    slots_total: int,
    step_time: StepTime | None,
    batch_seen: int,
) -> int:
    """Returns the largest batch with a step of at most `step_ms`, within the profile's bounds and
    the slots."""
    most = min(rules.batch.most or slots_total, slots_total)
    if step_ms is None:
        return most
    least = min(rules.batch.least, most)
    low = least
    high = longest = min(most, max(least, FIRST_BATCH, EXTRAPOLATION_FACTOR * batch_seen))
    if step_time is None:
        return high
    while low < high:  # the step time grows with the batch
        middle = (low + high + 1) // 2
        if step_time.ms(middle) <= step_ms:
            low = middle
        else:
            high = middle - 1
    same_ms = (1 + FIT_NOISE) * step_time.ms(low)
    while low < longest and step_time.ms(2 * low) <= same_ms:
        low = min(2 * low, longest)
    return low


def _steady(batch: int, before: int, slots_total: int) -> int:
    """Returns the batch, or the one before if that is as good."""
    same = abs(batch - before) <= DEAD_BAND * before and batch < slots_total
    return before if same and before <= slots_total else batch


Traffic = Callable[[float, ServiceClass], bool]


class BatchLimit(Constraint):
    """Admits no more sequences than keep the SLO of the time per token.

    Interactive requests count only each other. The others may fill what the bulk SLO allows; while
    interactive requests run or are expected, only what the interactive SLO allows, because bulk
    ones keep their slots for long. Interactive sequences of other sidecars count like this one's.
    Each sidecar may have its equal share in any case, so that none is kept out by others that
    refill their places first: until these have ended, there are too many.
    """

    reason: ClassVar[str] = "batch"
    scope: ClassVar[Scope] = Scope.CLASS
    wastes_slots: ClassVar[bool] = True

    def __init__(
        self, limits: Limits, ledger: Ledger, offers: SlotOffers, traffic: Traffic
    ) -> None:
        """`traffic`: whether there is interactive traffic now, as requests of a class see it."""
        self.limits = limits
        self._ledger = ledger
        self._offers = offers
        self._traffic = traffic

    def room(self, service_class: ServiceClass, occupancy: Occupancy, now: float) -> int:
        limits, total = self.limits, self._ledger.slots_total
        if service_class is not INTERACTIVE:
            alone = occupancy.due or not self._traffic(now, service_class)
            limit = limits.bulk if alone else limits.mixed
            return UNLIMITED if limit >= total else limit - occupancy.taken_for(service_class)
        limit, others = limits.interactive, self._ledger.foreign_interactive
        if limit >= total:
            return UNLIMITED
        room = limit - occupancy.interactive - others
        return max(room, limit // self._offers.sidecars - occupancy.interactive) if others else room

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        if request.service_class is INTERACTIVE and (
            not occupancy.interactive or self.limits.interactive >= self._ledger.slots_total
        ):
            return False  # it is alone, so that waiting would not help
        return request.cost > self.room(request.service_class, occupancy, now)

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        return now + POLL_S

    def text(self) -> str:
        return "a smaller batch: a larger one would break the SLO of the time per token"
