"""What an engine does to an admission: it reports, restarts, fails and confirms ends."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from orch_sidecar.admission.types import EngineReport
from tests.orch_sidecar.admission.examples import STALE, ended
from tests.orch_sidecar.admission.happenings import KNOWN, PICK, RULES, SLOTS
from tests.orch_sidecar.admission.machine import Checked


class EngineEvents(Checked):
    """The rules of the engine; those of requests, time and the operator are in subclasses."""

    @initialize(rules=st.sampled_from(RULES), slots=SLOTS, known=KNOWN)
    def begin(self, rules: Any, slots: int | None, known: dict[str, Any]) -> None:
        self.take_up(rules)
        self.preemptions = self.disturbed = 0
        if slots is not None:
            self.report(EngineReport("e0", slots, **known))

    @property
    def is_calm(self) -> bool:
        """Whether requests came since the last thing after which little goes on."""
        return self.serial > self.disturbed + 20

    @rule(known=KNOWN, slots=SLOTS, preempted=st.sampled_from((0, 0, 0, 1)))
    def engine_reports(self, known: dict[str, Any], slots: int | None, preempted: int) -> None:
        engine = self.model.engine
        self.preemptions += preempted
        slots = slots or engine.slots_total or 4
        self.report(
            EngineReport(engine.epoch or "e0", slots, preemptions_total=self.preemptions, **known)
        )

    # Rarely, because little goes on after it.
    @precondition(lambda self: self.is_calm)
    @rule(known=KNOWN, slots=SLOTS)
    def engine_restarts(self, known: dict[str, Any], slots: int | None) -> None:
        self.disturbed = self.serial
        self.model.out.clear()
        self.model.closing.clear()
        self.model.unread = False
        self.report(EngineReport(self.model.engine.epoch + "'", slots or 4, **known))

    def report(self, report: EngineReport) -> None:
        model = self.model
        before, model.engine, model.unavailable = model.engine, report, None
        model.measure(before)
        too_large = {
            ticket
            for ticket, waits in model.waiting.items()
            if waits.request.cost > report.slots_total
        }
        self.take(self.core.engine_reports(report, model.now), too_large)

    @precondition(lambda self: self.is_calm)
    @rule()
    def engine_unavailable(self) -> None:
        self.disturbed = self.serial
        self.core.engine_unavailable(STALE, self.model.now)
        self.model.unavailable = STALE

    @precondition(lambda self: self.is_calm and self.model.engine.epoch)
    @rule()
    def engine_has_an_unknown_lease(self) -> None:
        self.serial += 1
        self.core.ledger.adopt(f"adopted{self.serial}", 1)
        self.model.out[f"adopted{self.serial}"] = None
        self.model.closing.add(f"adopted{self.serial}")

    @precondition(lambda self: self.model.out)
    @rule(picks=st.lists(PICK, min_size=1, max_size=4, unique=True))
    def engine_ended(self, picks: list[int]) -> None:
        leases = list(dict.fromkeys(self.pick(self.model.out, pick) for pick in picks))
        for lease in leases:
            self.model.end(lease)
            self.take(ended(self.core, [lease, lease, "unknown"], self.model.now))
