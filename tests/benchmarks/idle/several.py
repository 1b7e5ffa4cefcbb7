"""Several sidecars at one engine, in virtual time: requests come to them in turn.

Each knows of the others what the engine reports: how many sequences they have, how many of these
are of interactive requests, and whether requests wait at them. Between two reports it does not
know, as in reality; what finds no slot then waits in the engine, which has no more than it has.
It offers no slots, so that bulk work, which claims them, cannot be measured here.
"""

from __future__ import annotations

from collections.abc import Callable

from orch_sidecar.admission.types import Decision, EngineReport
from orch_sidecar.tools.simulate.engine import Engine
from orch_sidecar.tools.simulate.fronts import Admitted, Direct, Outcomes
from orch_sidecar.tools.simulate.traffic import Arrival


class Several(Direct):
    """The admissions of so many sidecars."""

    def __init__(self, sidecars: int, make: Callable[[Outcomes], Admitted], to: Outcomes) -> None:
        super().__init__(to)
        self._fronts = [make(to) for _ in range(sidecars)]
        for front in self._fronts:
            reports = front._controller.engine_reports

            def shared(
                report: EngineReport, now: float, of: Admitted = front, to: Reports = reports
            ) -> list[Decision]:
                return to(self._seen_by(of, report), now)

            front._controller.engine_reports = shared  # type: ignore[method-assign]

    def _seen_by(self, front: Admitted, report: EngineReport) -> EngineReport:
        own = front._controller
        others = [each._controller for each in self._fronts if each is not front]
        return report._replace(
            foreign=sum(each.ledger.leased for each in others),
            foreign_interactive=sum(each.ledger.interactive for each in others),
            scheduled=min(own.ledger.leased, report.scheduled or 0),
            sidecars=len(self._fronts),
            contended=any(each.queues.urgent for each in others),
        )

    def _of(self, number: int) -> Admitted:
        return self._fronts[number % len(self._fronts)]

    def arrive(self, number: int, arrival: Arrival, now: float) -> None:
        self._of(number).arrive(number, arrival, now)

    def ended(self, number: int, arrival: Arrival, now: float) -> None:
        self._of(number).ended(number, arrival, now)

    def aborted(self, number: int, now: float) -> None:
        self._of(number).aborted(number, now)

    def report(self, engine: Engine, now: float) -> None:
        for each in self._fronts:
            each.report(engine, now)

    def tick(self, now: float) -> None:
        for each in self._fronts:
            each.tick(now)

    def next_event(self, now: float) -> float | None:
        events = [each.next_event(now) for each in self._fronts]
        return min((at for at in events if at is not None), default=None)


Reports = Callable[[EngineReport, float], list[Decision]]
