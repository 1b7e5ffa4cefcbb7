"""Ends relays in which nothing moves. Knows relays and seconds, and no clock of its own."""

from __future__ import annotations

import logging
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.proxy.answering import Answering

logger = logging.getLogger("orch.watch")

_NOTHING_SEEN: Final = (0, 0), 0


class StallWatchdog:
    """Ends relays in which nothing moves: the engine is silent, or the client does not read."""

    def __init__(self, engine_silence_s: float, client_stall_s: float) -> None:
        self._engine_silence_s = engine_silence_s
        self._client_stall_s = client_stall_s
        # With the progress that was seen last, and how often in a row.
        self._relays: dict[Answering, tuple[tuple[int, int], int]] = {}

    def configure(self, engine_silence_s: float, client_stall_s: float) -> None:
        """Other limits, also for what runs."""
        self._engine_silence_s = engine_silence_s
        self._client_stall_s = client_stall_s

    def __len__(self) -> int:
        return len(self._relays)

    def add(self, relay: Answering) -> None:
        self._relays.setdefault(relay, _NOTHING_SEEN)

    def discard(self, relay: Answering) -> None:
        self._relays.pop(relay, None)

    def check(self, every_s: float) -> None:
        """To be called every `every_s` seconds: costs a relay nothing per chunk but a count."""
        for relay in list(self._relays):
            try:
                self._look_at(relay, every_s)
            # One that cannot be ended must not keep the others from being looked at.
            except Exception:
                logger.exception("an answer in which nothing moves could not be ended")

    def _look_at(self, relay: Answering, every_s: float) -> None:
        found = self._relays.get(relay)
        if found is None:
            return  # it went with one before it
        progress, (seen, idle_checks) = relay.progress, found
        idle_checks = idle_checks + 1 if progress == seen else 0
        self._relays[relay] = progress, idle_checks
        idle_s = idle_checks * every_s
        if relay.paused and idle_s > self._client_stall_s:
            text = f"the client has read nothing for {self._client_stall_s:g} s"
            relay.abort_client()
            relay.fail(Refusal(Reason.CLIENT_STALLED, text))
        elif not relay.paused and idle_s > self._engine_silence_s:
            text = f"the engine has sent nothing for {self._engine_silence_s:g} s"
            relay.fail(Refusal(Reason.ENGINE_TIMEOUT, text))

    def end_all(self, refusal: Refusal) -> None:
        for relay in list(self._relays):
            relay.fail(refusal)
