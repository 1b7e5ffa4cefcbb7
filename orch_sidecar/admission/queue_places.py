"""Predicts the place of each queued request, and when it gets its slots.

Pure: times are seconds of a monotonic clock. A prediction visits the whole queue, so it is reused
for a while: the longer the queue, the longer.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from orch_sidecar.admission.controller import AdmissionController
from vllm_plugin.contracts.profile import ServiceClass

# How old a prediction may be, and how much older for each queued request, which costs microseconds.
_MAX_AGE_S: Final = 0.1
_MAX_AGE_S_PER_REQUEST: Final = 1e-4
# Requests behind these keep the place and the prediction of their arrival.
_MAX_PLACES: Final = 16_384


class Place(NamedTuple):
    """`position`: how many requests go before it. `starts_at`: when it gets its slots; None if
    that is unknown."""

    position: int
    starts_at: float | None


class Places:
    """The places of one engine's queued requests."""

    def __init__(self, controller: AdmissionController) -> None:
        self._controller = controller
        self._places: dict[str, Place] = {}
        self._stale_at = float("-inf")

    def of(self, ticket: str, now: float) -> Place | None:
        """Returns the place of a queued request a moment ago. None: it has arrived since then, or
        too many go before it."""
        if now >= self._stale_at:
            self._places = self._predict(now)
            self._stale_at = now + _MAX_AGE_S + _MAX_AGE_S_PER_REQUEST * len(self._places)
        return self._places.get(ticket)

    def _predict(self, now: float) -> dict[str, Place]:
        controller, places = self._controller, dict[str, Place]()
        blocked_by = controller.blocked_by
        away = controller.unavailable is not None
        for service_class in ServiceClass:
            if not controller.queues.size(service_class):
                continue
            for queued, start_s in controller.forecaster.starts(service_class, blocked_by, now):
                if len(places) == _MAX_PLACES:
                    return places
                starts_at = None if start_s is None or away else now + start_s
                places[queued.ticket] = Place(len(places), starts_at)
        return places
