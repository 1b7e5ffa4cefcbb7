"""Decides whether the engine has time for another bulk or idle prompt beside interactive requests.

Pure: times are seconds of a monotonic clock. Counts are tokens.
"""

from __future__ import annotations

from typing import ClassVar, Final

from orch_sidecar.admission.constraints.batch import BatchLimit, Traffic
from orch_sidecar.admission.constraints.constraint import (
    POLL_S,
    Ahead,
    Constraint,
    Occupancy,
    Scope,
)
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease, StepTime
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, AdmissionRules, ServiceClass

# By how much the prefill of bulk prompts may delay interactive requests: a quarter of what their
# queue leaves of the SLO of their first token, and never so long that a reader would notice.
STALL_SHARE: Final = 0.25
MAX_STALL_S: Final = 0.5
# While bulk prompts make the time per token miss its SLO, that delay is halved with each fit of the
# engine (one a second), down to one prompt at a time; then it recovers within 15 s.
PACE_DECREASE: Final = 0.5
PACE_INCREASE: Final = 1.2
MIN_PACE: Final = 1 / 16
# The share of the counted prompts that is forgotten with each fit.
FORGOTTEN_SHARE: Final = 0.1


class PrefillBudget:
    """The tokens of bulk prompts that the engine has been sent and has yet to prefill.

    They drain at the engine's measured rate; while that is unknown, one prompt is sent at a time.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.tokens_per_s: float | None = None
        self._ledger = ledger
        self._sent_tokens = 0.0
        self._updated_at = 0.0
        self._pace = 1.0  # the share of the allowed delay that is used
        self._bulk_tokens = self._interactive_tokens = 0.0  # of recent prompts
        self._counted = 0  # the ledger's count of interactive prompt tokens at the last fit

    @property
    def bulk_prompts(self) -> float:
        """The share of bulk requests in the tokens of recent prompts."""
        since = self._ledger.interactive_prompts - self._counted
        tokens = self._bulk_tokens + self._interactive_tokens + since
        return self._bulk_tokens / tokens if tokens else 0.0

    def begin_epoch(self) -> None:
        """The engine restarted, with nothing to prefill."""
        self._sent_tokens = 0.0

    def reported(self, report: EngineReport, leased: int) -> None:
        """The engine reported how fast it prefills one prompt between the decodes of `leased`
        sequences."""
        rate, chunk, step_time = (
            report.prefill_tokens_per_s,
            report.chunk_tokens,
            report.step_time,
        )
        if rate is not None and chunk is not None and step_time is not None and step_time.good:
            rate = chunk / (step_time.ms(max(1, leased)) / 1000 + chunk / rate)
        self.tokens_per_s = rate

    def measured(self, step_time: StepTime | None, tpot_ms: float | None, leased: int) -> None:
        """The engine compared its time per token with its fit: fewer bulk prompts are sent if they
        make `leased` sequences miss the SLO."""
        since = self._ledger.interactive_prompts - self._counted
        self._counted += since
        self._interactive_tokens = (self._interactive_tokens + since) * (1 - FORGOTTEN_SHARE)
        self._bulk_tokens *= 1 - FORGOTTEN_SHARE
        if step_time is None or tpot_ms is None:
            self._pace = 1.0
            return
        token_ms = step_time.traffic * step_time.token_ms(max(1, leased))
        of_bulk = step_time.prompt_share * self.bulk_prompts
        missed = token_ms > tpot_ms >= token_ms * (1 - of_bulk)
        self._pace = (
            max(MIN_PACE, self._pace * PACE_DECREASE)
            if missed
            else min(1.0, self._pace * PACE_INCREASE)
        )

    def granted(self, tokens: float, now: float) -> None:
        """A bulk request was granted a lease."""
        self._sent_tokens = self._unread_tokens(now) + tokens
        self._updated_at = now
        self._bulk_tokens += tokens

    def released(self) -> None:
        """A bulk request ended: while the rate is unknown, only this shows that it was
        prefilled."""
        if self.tokens_per_s is None:
            self._sent_tokens = 0.0

    def fits(self, tokens: float, stall_s: float, now: float) -> bool:
        """Whether a prompt may be sent beside interactive requests. A single one always may, unless
        `stall_s` is 0."""
        if stall_s <= 0:
            return False
        left = self._unread_tokens(now)
        rate = self.tokens_per_s
        return left <= 0 or (rate is not None and left + tokens <= rate * stall_s * self._pace)

    def fits_at(self, tokens: float, stall_s: float, now: float) -> float | None:
        """Returns when the prompt will fit, at the latest; None: the rate is unknown, or `stall_s`
        is 0."""
        rate = self.tokens_per_s
        if rate is None or stall_s <= 0:
            return None
        left = self._unread_tokens(now)
        return now + min(left, max(0.0, left + tokens - rate * stall_s * self._pace)) / rate

    def fits_in_s(self, ahead: float, tokens: float, stall_s: float, now: float) -> float:
        """Returns the seconds until a prompt fits behind `ahead` tokens of others; 0: unknown."""
        rate = self.tokens_per_s
        if rate is None:
            return 0.0
        spare = min(0.0, tokens - rate * stall_s * self._pace)
        return max(0.0, self._unread_tokens(now) + ahead + spare) / rate

    def _unread_tokens(self, now: float) -> float:
        drained = (now - self._updated_at) * (self.tokens_per_s or 0.0)
        return max(0.0, self._sent_tokens - drained)


def stall_s(ttft_p95_ms: float | None, waits_s: float) -> float:
    """Returns how long bulk prompts may occupy the engine, given the SLO of interactive requests.

    `waits_s`: the predicted wait of the next interactive request. Where the queue uses up the SLO,
    it is 0, and no bulk prompt is sent until the queue is shorter.
    """
    if ttft_p95_ms is None:
        return MAX_STALL_S
    return min(MAX_STALL_S, STALL_SHARE * max(0.0, ttft_p95_ms / 1000 - waits_s))


class PrefillLimit(Constraint):
    """Limits bulk prompts, while there is interactive traffic, to what is read in a moment."""

    reason: ClassVar[str] = "prefill"
    scope: ClassVar[Scope] = Scope.CLASS
    classes: ClassVar[tuple[ServiceClass, ...]] = (BULK, IDLE)

    def __init__(
        self,
        rules: AdmissionRules,
        ledger: Ledger,
        queues: Queues,
        service_times: ServiceTimes,
        batch: BatchLimit,
        traffic: Traffic,
    ) -> None:
        """`traffic`: whether there is interactive traffic now, as requests of a class see it."""
        self.rules = rules
        self.budget = PrefillBudget(ledger)
        self._ledger = ledger
        self._queues = queues
        self._service_times = service_times
        self._batch = batch
        self._traffic = traffic

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        if occupancy.due or not self._traffic(now, request.service_class):
            return False
        return not self.budget.fits(request.prompt_tokens, self._stall_s(), now)

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        at = self.budget.fits_at(request.prompt_tokens, self._stall_s(), now)
        return now + POLL_S if at is None else min(max(at, now + 1e-3), now + POLL_S)

    def starts_in_s(self, request: AdmissionRequest, ahead: Ahead, now: float) -> float | None:
        if request.service_class is not BULK or not self._traffic(now, BULK):
            return 0.0
        prompt, before = request.prompt_tokens, ahead.prompt_tokens
        return self.budget.fits_in_s(before, prompt, self._stall_s(), now)

    def reloaded(self, rules: AdmissionRules) -> None:
        self.rules = rules

    def begin_epoch(self) -> None:
        self.budget.begin_epoch()

    def reported(self, report: EngineReport, now: float) -> None:
        self.budget.reported(report, self._ledger.leased)

    def granted(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        self.budget.granted(request.prompt_tokens, now)

    def ended(self, request: AdmissionRequest, now: float) -> None:
        self.budget.released()

    def text(self) -> str:
        return "the engine to read the prompts that it has"

    def _stall_s(self) -> float:
        return stall_s(self.rules.of(INTERACTIVE).ttft_p95_ms, self._interactive_wait_s())

    def _interactive_wait_s(self) -> float:
        """Returns the predicted wait of the next interactive request: the work queued before it by
        the measured step time and output lengths, over the sequences that run at once; 0: unknown.
        """
        head = self._queues.head(INTERACTIVE)
        if head is None:
            return 0.0
        service_s = self._service_times.service_s(head.request)
        most = max(1, self._batch.limits.interactive)
        return 0.0 if service_s is None else self._queues.cost(INTERACTIVE) * service_s / most
