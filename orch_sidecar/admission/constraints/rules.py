"""Whether a request may go now, and what for it waits if not.

Pure: times are seconds of a monotonic clock. The rules, in the order in which they are looked at:

- slot: leased + foreign + cost stay within the slots that the engine reported. Always.
- window: the engine is idle and bulk requests come so often that it pays to begin together.
- batch: not more sequences than keep the SLO of the time per token (`limits`). Interactive
  requests count among themselves; bulk ones may fill what the bulk SLO allows, and only what
  the interactive one allows while there is interactive traffic: some waits or runs, or came in
  the last 10 s, because what bulk requests take now they keep for long.
- reserve: a share of the slots is the interactive requests' while there is interactive traffic:
  what they have, and a few more that stay free for the next to come, up to the share. So the
  rest of it is lent, and all of it without such traffic.
- prefill: while there is interactive traffic, no more bulk prompts are given to the engine than
  it reads in a moment.
- kv: the KV cache holds all leases to their ends.

A request that is alone in the engine is never held by batch, reserve or KV: nothing would come
of waiting. A bulk request that interactive traffic has delayed for long enough (`aged`) is held
neither by the interactive SLO of the batch nor by prefill; but the reserve is not its own, however
long it waits: what interactive requests take within it delays no bulk request. Only one that needs
more slots than are left beside the reserve is delayed by it, and gets it in the end.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from orch_sidecar.admission.constraints.aging import DelayClock
from orch_sidecar.admission.constraints.arrivals import ArrivalRate
from orch_sidecar.admission.constraints.batch import Limits, limits_for
from orch_sidecar.admission.constraints.kv_cache import KvBudget, KvNeed
from orch_sidecar.admission.constraints.prefill import PrefillBudget, stall_s
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import RunningRequest, ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, EngineReport
from vllm_plugin.profile import AdmissionRules, ServiceClass

_INTERACTIVE, _BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK

# Of the interactive share, stays free for the next to come. Each free slot costs tokens: one of
# 16 or three of 64 cost less than a twentieth. Without any, the next one waits for a bulk request
# to end.
SPARE_SHARE: Final = 0.2
# Interactive traffic that paused for so long has no claim on its reserve any more.
CLAIM_S: Final = 10.0
# A shrunk KV limit grows back, and interactive claims run out, without a word from anybody.
_LOOK_S: Final = 0.25


class BlockedBy(StrEnum):
    """What the first of those who wait waits for."""

    SLOT = "slot"
    BATCH = "batch"
    RESERVE = "reserve"
    KV = "kv"
    PREFILL = "prefill"
    WINDOW = "window"
    PAUSE = "pause"  # one was turned away below a moment ago


class AdmissionConstraints:
    """What requests take from each other."""

    def __init__(
        self, rules: AdmissionRules, ledger: Ledger, queues: Queues, outlook: ServiceTimes
    ) -> None:
        self.rules = rules
        self.limits: Limits = limits_for(rules, 0, None)
        self.kv = KvBudget()
        self.clock = DelayClock()
        self.interactive = 0  # sequences that have leases
        self.bulk = 0
        self.windows = 0  # opened since the start
        self.windows_s = 0.0  # for how long they have held requests, all together
        self._ledger = ledger
        self._queues = queues
        self._outlook = outlook
        self._prefill = PrefillBudget()
        self._arrivals = ArrivalRate()  # of bulk requests
        self._interactive_at = float("-inf")  # when one last came or ended
        self._window_from = 0.0
        self._window_until: float | None = None

    # What happens.

    def begin_epoch(self) -> None:
        self.kv.begin_epoch()
        self._prefill.begin_epoch()
        self.interactive = self.bulk = 0

    def reported(self, report: EngineReport, now: float) -> None:
        scheduled = report.scheduled
        coming = 0 if scheduled is None else max(0, self._ledger.leased - scheduled)
        self._prefill.tokens_per_s = self._reading_rate(report)
        known = not report.foreign and self._ledger.leases() == len(self._outlook.runs)
        self.kv.reported(
            report.kv,
            report.kv_usage,
            report.preemptions_total,
            now,
            unread=report.prefilling + coming,
            unbegun=report.waiting + coming if known else None,
            needs=((run.need, run.ask.cost) for run in self._outlook.runs.values()),
        )

    def arrived(self, ask: AdmissionRequest, now: float) -> None:
        """A request came, whatever becomes of it."""
        if ask.service_class is _BULK:
            self._arrivals.arrived(now)
        else:
            self._interactive_at = now

    def granted(self, run: RunningRequest, now: float) -> None:
        ask = run.ask
        if ask.service_class is _BULK:
            self.bulk += ask.cost
            self._prefill.granted(ask.prompt_tokens, now)
        else:
            self.interactive += ask.cost
        self.kv.granted(run.need, now)
        if self._window_until is not None:
            self._end_window(now)

    def released(self, run: RunningRequest, now: float) -> None:
        ask = run.ask
        self.kv.released(run.need)
        if ask.service_class is _BULK:
            self.bulk -= ask.cost
            self._prefill.settled()
        else:
            self._interactive_at = now
            self.interactive -= ask.cost

    # What may be.

    def hold(
        self, ask: AdmissionRequest, need: KvNeed, now: float, *, aged: bool = False
    ) -> BlockedBy | None:
        """Why a request cannot go now; None: it can. `need`: as `need` returns it."""
        ledger, cost = self._ledger, ask.cost
        taken = ledger.leased + ledger.foreign
        if taken + cost > ledger.slots_total:
            return BlockedBy.SLOT
        if not taken:
            return BlockedBy.WINDOW if self._gathers(ask, now) else None
        if ask.service_class is _INTERACTIVE:
            mine = self.interactive
            if mine and mine + cost > self.limits.interactive:
                return BlockedBy.BATCH
        else:
            held = self._hold_bulk(ask, taken, now, aged)
            if held is not None:
                return held
        return None if self.kv.fits(need, now) else BlockedBy.KV

    def need(self, ask: AdmissionRequest) -> KvNeed:
        """What a request will take of the KV cache."""
        each = self._outlook.lengths.expected(ask.service_class, ask.max_tokens)
        return self.kv.need(ask.prompt_tokens, each, ask.cost)

    def _hold_bulk(
        self, ask: AdmissionRequest, taken: int, now: float, aged: bool
    ) -> BlockedBy | None:
        if taken + ask.cost > self.limits.bulk:
            return BlockedBy.BATCH
        lendable = self._lendable(now)
        if taken - self.interactive + ask.cost > lendable and not (aged and ask.cost > lendable):
            return BlockedBy.RESERVE
        if aged:
            return None
        if self._interactive_traffic(now):
            if taken + ask.cost > self.limits.mixed:
                return BlockedBy.BATCH
            if not self._prefill.fits(ask.prompt_tokens, self._stall_s(), now):
                return BlockedBy.PREFILL
        return None

    def opens_window(self, ask: AdmissionRequest, now: float) -> bool:
        """Whether a bulk request that could begin now had better wait for others to come.

        Only if the engine is idle, and at least one other is expected within the window.
        """
        if ask.service_class is not _BULK or self._ledger.leased or self._ledger.foreign:
            return False
        window_s = self.limits.window_ms / 1000
        if self._queues.size(_BULK) >= self.rules.bulk.queue_capacity:
            return False  # nowhere to wait
        # The request itself is in the average already.
        expected = self._arrivals.per_second(now) - self._arrivals.one
        if (
            expected * window_s < 1
            or ask.cost >= self.limits.bulk
            or self._patience_s(ask) <= window_s
        ):
            return False
        self._end_window(now)
        self.windows += 1
        self._window_from, self._window_until = now, now + window_s
        return True

    def ends_window(self, ask: AdmissionRequest, now: float) -> bool:
        """Ends a window that is over, or whose end this request may not wait for. True: it did."""
        until = self._window_until
        if until is None or ask.service_class is not _BULK:
            return False
        if now < until < now + self._patience_s(ask):
            return False
        self._end_window(now)
        return True

    def bulk_capacity(self, now: float) -> int:
        """Sequences of both classes at once, as far as bulk requests may fill them now."""
        ledger, interactive = self._ledger, self.interactive
        most = self.limits.mixed if self._interactive_traffic(now) else self.limits.bulk
        return min(most, self._lendable(now) + interactive, ledger.slots_total)

    def turn_clock(self, now: float) -> None:
        """Keeps the delay of bulk requests; to be called before and after what changes it."""
        if not self._queues.size(_BULK):
            self.clock.turn(now, 0.0)
            return
        ledger = self._ledger
        # What interactive requests take within their share delays nobody: it is theirs. Nor do
        # the smaller batch and the reading one by one, as long as bulk has the rest of them.
        alone = min(self.limits.mixed, ledger.slots_total - ledger.foreign) - self._reserved()
        left = self.bulk_capacity(now) - ledger.foreign - self.interactive
        head = self._queues.head(_BULK)
        # One that needs more than bulk's own is held by them alone, and would be for ever.
        too_large = head is not None and head.ask.cost > max(left, alone)
        stopped = too_large and self._interactive_traffic(now)
        taken = 1.0 if stopped else 1 - max(0, left) / max(1, alone)
        self.clock.turn(now, min(1.0, max(0.0, taken)))

    def eases_at(self, hold: BlockedBy, now: float) -> float | None:
        """When the first of those who wait may go although nothing else happens."""
        if hold is BlockedBy.WINDOW:
            return self._window_until
        if hold in (BlockedBy.KV, BlockedBy.RESERVE, BlockedBy.BATCH):
            return now + _LOOK_S
        bulk = self._queues.head(_BULK)
        if hold is BlockedBy.PREFILL and bulk is not None:
            at = self._prefill.fits_at(bulk.ask.prompt_tokens, self._stall_s(), now)
            return now + _LOOK_S if at is None else min(max(at, now + 1e-3), now + _LOOK_S)
        return None

    def _end_window(self, now: float) -> None:
        until, self._window_until = self._window_until, None
        if until is not None:  # nobody may have been left whom its end could let go
            self.windows_s += max(0.0, min(now, until) - self._window_from)

    def _gathers(self, ask: AdmissionRequest, now: float) -> bool:
        if self._window_until is None or ask.service_class is not _BULK:
            return False
        full = self._queues.size(_BULK) >= self.rules.bulk.queue_capacity
        return now < self._window_until and self._queues.cost(_BULK) < self.limits.bulk and not full

    def _patience_s(self, ask: AdmissionRequest) -> float:
        """How long a bulk request may wait for its slot; negative if it comes too late already."""
        if not ask.may_queue:
            return 0.0
        rules = self.rules.bulk
        waits_s = [rules.max_wait_s]
        if ask.max_wait_ms is not None:
            waits_s.append(ask.max_wait_ms / 1000)
        first_token_s = self._outlook.first_token_s(ask) or 0.0
        for each in (ask.deadline_ms, rules.ttft_p95_ms):
            if each is not None:
                waits_s.append(each / 1000 - first_token_s)
        return min(waits_s)

    def _lendable(self, now: float) -> int:
        """Slots that bulk requests and foreign sequences may have together."""
        slots, reserved = self._ledger.slots_total, self._reserved()
        if not reserved or not self._interactive_traffic(now):
            return slots
        in_use = self.interactive + self._queues.cost(_INTERACTIVE)
        return slots - min(reserved, in_use + max(1, int(SPARE_SHARE * reserved)))

    def _reserved(self) -> int:
        """The slots that are interactive requests' by right."""
        return int(self.rules.reserved_share * self._ledger.slots_total)

    def _reading_rate(self, report: EngineReport) -> float | None:
        """Tokens per second of one prompt, between the tokens of those who decode."""
        rate, chunk = report.prefill_tokens_per_s, report.chunk_tokens
        if rate is None or chunk is None or report.step_time is None:
            return rate
        step_s = report.step_time.ms(max(1, self._ledger.leased)) / 1000
        return chunk / (step_s + chunk / rate)

    def _interactive_traffic(self, now: float) -> bool:
        return self.interactive > 0 or now - self._interactive_at < CLAIM_S

    def _stall_s(self) -> float:
        return stall_s(self.rules.of(_INTERACTIVE).ttft_p95_ms)
