"""When a probe's results change a container's state. Pure: results in, verdicts out."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.k8s.runner.schema.container import Probe


@dataclass(frozen=True, slots=True)
class Result:
    """What one call of a probe said."""

    ok: bool
    detail: str


@dataclass(slots=True)
class Tally:
    """Counts results in a row, as the kubelet's probe worker does.

    `passing` is what the container is held for. It changes to true after successThreshold
    successes in a row and to false after failureThreshold failures in a row, not before.
    """

    probe: Probe
    passing: bool
    last: Result | None = None
    due_s: float = 0.0  # when the next call is due, on the caller's clock
    _in_a_row: int = field(default=0, init=False)

    def add(self, result: Result) -> bool:
        """Counts one result; true when it settled the question, so that `passing` holds now."""
        same = self.last is not None and self.last.ok == result.ok
        self._in_a_row = self._in_a_row + 1 if same else 1
        self.last = result
        needed = self.probe.success_threshold if result.ok else self.probe.failure_threshold
        if self._in_a_row < needed:
            return False
        self.passing = result.ok
        return True
