"""KV budgets for tests, with the ledgers that they read."""

from __future__ import annotations

from orch_sidecar.admission.constraints.kv_cache import KvBudget
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.types import EngineReport, KvNeed
from tests.orch_sidecar.admission.examples import bulk, kv_of
from vllm_plugin.contracts.kv_cache import KvCache


class LeasedBudget(KvBudget):
    """A KV budget whose requests have leases in a ledger of its own."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        super().__init__(self.ledger, ServiceTimes(self.ledger))

    def begin_epoch(self) -> None:
        self.ledger.begin_epoch("e2")
        super().begin_epoch()

    def grant(self, need: KvNeed, now: float, sequences: int = 1) -> None:
        request = bulk(sequences)
        request.kv = need
        lease_id = f"lease {self.ledger.grants}"
        self.granted(self.ledger.grant(lease_id, request, now), request, now)

    def released(self, need: KvNeed) -> None:
        """Releases the last lease with this need."""
        leases = reversed(list(self.ledger.all()))
        self.ledger.release(next(lease.id for lease in leases if lease.kv == need), 0.0)

    def reports(
        self,
        cache: KvCache,
        usage: float,
        preemptions: int,
        now: float,
        *,
        unread: int = 0,
        unbegun: int = 0,
        foreign: int = 0,
    ) -> None:
        report = EngineReport(
            "e1",
            8,
            foreign,
            kv=cache,
            kv_usage=usage,
            preemptions_total=preemptions,
            prefilling=unread,
            waiting=unbegun,
        )
        self.reported(report, now)


def budget_of(blocks: int, usage: float = 0.0, preemptions: int = 0) -> LeasedBudget:
    kv = LeasedBudget()
    kv.reports(kv_of(blocks), usage, preemptions, 0.0)
    return kv


def need(prompt: int, output: int | None = 0, reading: int = 0) -> KvNeed:
    return KvNeed(prompt, reading, output)


def limit(kv: KvBudget, now: float) -> int:
    """The largest output that fits into what is now an empty cache."""
    fitting = [tokens for tokens in range(0, 1001, 5) if kv.fits(need(0, tokens), now)]
    return fitting[-1]
