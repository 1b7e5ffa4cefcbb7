"""Idle requests of which a set number runs at once, to compare what is learned with.

`python -m tests.benchmarks.idle.by_hand FILE ...` is `orch ...` with the number that FILE has now;
while it has none, what is learned holds. They are cut for others' slots as ever.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from orch_sidecar import cli
from orch_sidecar.admission.constraints import rules
from orch_sidecar.admission.constraints.idle import IdleRoom
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease

_READ_EVERY_S: Final = 0.2


class ByHand(IdleRoom):
    """The room for `many` idle requests at once, whatever is measured; None: as is learned."""

    many: int | None = None

    def _batch(self, others: int, now: float) -> int:
        return super()._batch(others, now) if self.many is None else self.many

    def is_in_the_way(self, lease: Lease, request: AdmissionRequest, now: float) -> bool:
        return self.many is None and super().is_in_the_way(lease, request, now)

    def _prompt_fits_at(self, now: float) -> float:
        return super()._prompt_fits_at(now) if self.many is None else now


class FromFile(ByHand):
    """The same, with the number that a file has."""

    path = Path()
    _read_at = 0.0

    def reported(self, report: EngineReport, now: float) -> None:
        super().reported(report, now)
        if now - self._read_at > _READ_EVERY_S:
            self._read_at, text = now, self.path.read_text()
            self.many = int(text) if text else None


if __name__ == "__main__":
    FromFile.path = Path(sys.argv.pop(1))
    setattr(rules, "IdleRoom", FromFile)  # noqa: B010 (for mypy a type cannot be assigned)
    cli.main()
