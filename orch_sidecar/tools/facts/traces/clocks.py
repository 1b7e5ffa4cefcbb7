"""Compares the clocks of sidecar and engine, by the requests that both of them timed.

Pure. A sequence lies within its request. Hosts that keep their clocks by NTP differ by some
milliseconds, which is as long as the pause between two runs.
"""

from __future__ import annotations

from orch_sidecar.tools.facts.traces.requests import Outcome
from orch_sidecar.tools.facts.traces.scenarios import Scenario


def engine_ahead_ns(scenario: Scenario) -> int:
    """Returns by how much the engine's clock is ahead of the sidecar's at least, negative behind.

    It is the smallest difference by which all sequences lie within their requests; 0 where none
    is needed, or there is none.
    """
    ahead: list[int] = []
    behind: list[int] = []
    for request in scenario.ended(Outcome.SERVED):
        for each in request.sequences:
            ahead.append(each.end_ns - request.closed_ns)
            behind.append(each.start_ns - request.start_ns)
    least, most = max(ahead, default=0), min(behind, default=0)
    if least > most:
        return 0
    return least if least > 0 else min(most, 0)
