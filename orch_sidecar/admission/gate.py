"""The asyncio shell around the admission core: a future per waiting request, one timer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Final

from orch_sidecar.admission.ask import Ask, EngineReport, Queued
from orch_sidecar.admission.core import Admission
from orch_sidecar.admission.decision import Decision
from orch_sidecar.admission.ledger import Lease
from orch_sidecar.reasons import Refusal
from vllm_plugin.profile import AdmissionRules

_BLOCK_BYTES: Final = 4096


class Gate:
    """Performs the core's decisions. Lives on one event loop."""

    def __init__(self, core: Admission) -> None:
        self.core = core
        # Tells this sidecar's leases from those of another, or of itself before a restart.
        self.instance = os.urandom(8).hex()
        # Who is told that something changed; nobody, while there is no tier above.
        self.changed: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[str, asyncio.Future[Lease | Refusal]] = {}
        self._decided: dict[str, asyncio.Future[Lease | Refusal]] = {}  # not yet taken notice of
        self._timer: asyncio.TimerHandle | None = None
        self._random: list[str] = []  # to be used, each once

    def new_id(self, cost: int) -> str:
        """An id for a request, and for the lease that it may get."""
        if not self._random:
            block = os.urandom(_BLOCK_BYTES).hex()  # the system is asked once for many
            self._random = [block[at : at + 32] for at in range(0, len(block), 32)]
        return f"{self.instance}.{self._random.pop()}.{cost}"

    def ask(self, request: str, ask: Ask) -> Lease | Refusal | Queued:
        """Asks for slots. Queued: `wait` for what becomes of it."""
        outcome = self.core.arrive(request, ask, self._loop.time())
        if type(outcome) is Queued:
            self._waiters[request] = self._loop.create_future()
        if self.core.displaced or self._waiters:
            self._perform(self.core.take_displaced())
        elif self.changed is not None:
            self.changed()
        return outcome

    def turned_away(self, retry_after_ms: float) -> None:
        """A request was turned away below; to be said before its lease is released."""
        self.core.turned_away(retry_after_ms / 1000, self._loop.time())

    def put_back(self, request: str, ask: Ask, since_s: float) -> Queued | Refusal:
        """It was turned away below: it waits again, before all that came later.

        `since_s`: the loop's time when it first asked, from which its time limits count.
        """
        outcome = self.core.put_back(request, ask, since_s, self._loop.time())
        if isinstance(outcome, Queued):
            self._waiters[request] = self._loop.create_future()
            self._perform([])
        return outcome

    async def wait(self, request: str) -> Lease | Refusal:
        """What becomes of a queued request.

        Cancellation leaves the queue, or gives an unused lease back.
        """
        waiter = self._waiters.get(request) or self._decided[request]
        try:
            return await waiter
        except asyncio.CancelledError:
            if request in self._waiters:
                self._perform(self.core.leave(request, self._loop.time()))
            else:  # it was decided meanwhile: nobody takes that lease
                self.release(request, served=False)
            raise
        finally:
            self._waiters.pop(request, None)
            self._decided.pop(request, None)

    def refuse(self, request: str, refusal: Refusal) -> bool:
        """Ends the wait of a request from outside. False: it does not wait (any more)."""
        if request not in self._waiters:
            return False
        self._decide(request, refusal)
        self._perform(self.core.leave(request, self._loop.time()))
        return True

    def release(
        self, lease_id: str, output_tokens: int | None = None, *, served: bool = True
    ) -> None:
        """The engine's answer has ended; `output_tokens` if it did so of itself.

        `served`: the engine had the request, and did not turn it away.
        """
        decisions = self.core.release(lease_id, self._loop.time(), output_tokens, served=served)
        if decisions or self._waiters or self.changed is not None:
            self._perform(decisions)

    def abandon(self, lease_id: str) -> None:
        """The answer was cut short; the engine has to confirm the end of the lease."""
        self.core.abandon(lease_id)

    def engine_reports(self, report: EngineReport) -> None:
        self._perform(self.core.engine_reports(report, self._loop.time()))

    def engine_unavailable(self, refusal: Refusal) -> None:
        self.core.engine_unavailable(refusal)
        self.tell()

    def engine_ended(self, leases: Iterable[str]) -> None:
        self._perform(self.core.engine_ended(leases, self._loop.time()))

    def dismiss(self, refusal: Refusal) -> None:
        """Refuses all who are still queued."""
        self._perform(self.core.dismiss(refusal))

    def reload(self, rules: AdmissionRules) -> None:
        """Other rules, for what comes from now on."""
        self._perform(self.core.replace_rules(rules, self._loop.time()))

    def drain(self) -> None:
        """Refuses whoever comes from now on."""
        self.core.drain()
        self.tell()

    def resume(self) -> None:
        """Takes requests again."""
        self.core.resume()
        self.tell()

    def tell(self) -> None:
        """Something changed that a tier above would see."""
        if self.changed is not None:
            self.changed()

    def _perform(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self._decide(decision.request, decision.outcome)
        if self._waiters:
            self._set_timer()
        if self.changed is not None:
            self.changed()

    def _decide(self, request: str, outcome: Lease | Refusal) -> None:
        waiter = self._decided[request] = self._waiters.pop(request)
        if not waiter.done():
            waiter.set_result(outcome)

    def _set_timer(self) -> None:
        """One timer, for whatever is next."""
        at = self.core.next_event(self._loop.time())
        timer = self._timer
        if timer is not None:
            if at is None or timer.when() <= at + 1e-3:
                return  # it may be early: it looks, and is set anew
            timer.cancel()
        self._timer = None if at is None else self._loop.call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._perform(self.core.tick(self._loop.time()))
