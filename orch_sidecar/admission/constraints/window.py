"""Decides when bulk requests wait for each other, to start as one batch in an idle engine.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

from math import exp
from typing import Final

from orch_sidecar.admission.constraints.batch import Limits
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest
from vllm_plugin.profile import ClassRules, ServiceClass

_BULK: Final = ServiceClass.BULK

# An exponential average over 250 to 500 ms follows a burst, and outlives the gaps within it.
AVERAGE_S: Final = 0.4


class ArrivalRate:
    """Requests per second, by an exponential moving average."""

    one: Final = 1 / AVERAGE_S  # the contribution of an arrival at its moment

    def __init__(self) -> None:
        self._rate = 0.0
        self._at = 0.0

    def arrived(self, now: float) -> None:
        self._rate = self._rate * exp((self._at - now) / AVERAGE_S) + self.one
        self._at = now

    def per_second(self, now: float) -> float:
        return self._rate * exp((self._at - now) / AVERAGE_S)


class BatchWindow:
    """The window in which the bulk requests of a batch gather. At most one is open.

    `rules` are those of the bulk class.
    """

    def __init__(self, ledger: Ledger, queues: Queues, service_times: ServiceTimes) -> None:
        self.count = 0  # windows opened since the start
        self.seconds = 0.0  # their total duration
        self.until: float | None = None  # None: no window is open
        self._from = 0.0
        self._ledger = ledger
        self._queues = queues
        self._service_times = service_times
        self._arrivals = ArrivalRate()

    def arrived(self, now: float) -> None:
        """A bulk request arrived, whatever its outcome."""
        self._arrivals.arrived(now)

    def opens(
        self, request: AdmissionRequest, rules: ClassRules, limits: Limits, now: float
    ) -> bool:
        """Opens a window if a bulk request that could start now should wait for others.

        Only if the engine is idle, and at least one other is expected within the window.
        """
        if self._ledger.leased or self._ledger.foreign:
            return False
        window_s = limits.window_ms / 1000
        if self._queues.size(_BULK) >= rules.queue_capacity:
            return False
        # The average includes the request itself.
        expected = self._arrivals.per_second(now) - self._arrivals.one
        if (
            expected * window_s < 1
            or request.cost >= limits.bulk
            or self._patience_s(request, rules) <= window_s
        ):
            return False
        self.close(now)
        self.count += 1
        self._from, self.until = now, now + window_s
        return True

    def closes_for(self, request: AdmissionRequest, rules: ClassRules, now: float) -> bool:
        """Closes a window that is over, or that a bulk request cannot wait for. True: it did."""
        until = self.until
        if until is None or now < until < now + self._patience_s(request, rules):
            return False
        self.close(now)
        return True

    def blocks(self, rules: ClassRules, limits: Limits, now: float) -> bool:
        """Whether bulk requests wait for the window to end or their batch to be complete."""
        if self.until is None or now >= self.until:
            return False
        queues = self._queues
        return queues.cost(_BULK) < limits.bulk and queues.size(_BULK) < rules.queue_capacity

    def close(self, now: float) -> None:
        """Closes the window, if one is open."""
        until, self.until = self.until, None
        if until is not None:  # its requests may all have left before
            self.seconds += max(0.0, min(now, until) - self._from)

    def _patience_s(self, request: AdmissionRequest, rules: ClassRules) -> float:
        """How long a bulk request can wait for its slot; negative if it is too late already."""
        if not request.may_queue:
            return 0.0
        waits_s = [rules.max_wait_s]
        if request.max_wait_ms is not None:
            waits_s.append(request.max_wait_ms / 1000)
        first_token_s = self._service_times.first_token_s(request) or 0.0
        for each in (request.deadline_ms, rules.ttft_p95_ms):
            if each is not None:
                waits_s.append(each / 1000 - first_token_s)
        return min(waits_s)
