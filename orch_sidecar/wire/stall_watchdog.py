"""Aborts responses that make no progress. Has no clock of its own.

How long an engine may be silent is a setting, or is derived from its state: an engine that reports
may be reading long prompts; one that has stopped reporting counts as hung after a multiple of the
time of its steps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.wire.client_connections import ActiveResponse, ClientConnections

logger = logging.getLogger("orch.watch")

# The progress of a response at the last check, and at how many in a row it was the same.
_Seen = tuple[tuple[int, int], int]

# Responses that are checked before the event loop runs again: a few tenths of a millisecond.
RESPONSES_PER_TURN: Final = 256


class StallWatchdog:
    """Aborts responses whose engine is silent, or whose client does not read: those of the
    listeners' connections, and the parts of divided ones."""

    def __init__(self, engine_silence_s: float | None, client_stall_s: float) -> None:
        self._engine_silence_s = engine_silence_s
        self._client_stall_s = client_stall_s
        self._listeners: list[ClientConnections] = []
        self._parts: dict[ActiveResponse, None] = {}
        self._seen: dict[ActiveResponse, _Seen] = {}

    def configure(self, engine_silence_s: float | None, client_stall_s: float) -> None:
        """Applies other limits, to responses in progress, too."""
        self._engine_silence_s = engine_silence_s
        self._client_stall_s = client_stall_s

    def watch(self, listener: ClientConnections) -> None:
        """Watches the responses of these connections from now on."""
        self._listeners.append(listener)

    def responses(self) -> list[ActiveResponse]:
        """Returns the responses that are watched now."""
        return [each for of in self._listeners for each in of.responses()] + [*self._parts]

    def add(self, part: ActiveResponse) -> None:
        """Watches a response that is part of another, and has no connection of its own."""
        self._parts[part] = None

    def discard(self, part: ActiveResponse) -> None:
        self._parts.pop(part, None)

    def check(self, every_s: float) -> Iterator[None]:
        """Checks all responses; to be called every `every_s` seconds.

        Yields now and then, for the event loop: thousands of responses take milliseconds.
        """
        seen, self._seen = self._seen, {}
        for number, response in enumerate(self.responses(), 1):
            try:
                self._check_one(response, seen.get(response, ((0, 0), 0)), every_s)
            # A response that cannot be ended must not keep the others from being checked.
            except Exception:
                logger.exception("a stalled response could not be ended")
            if number % RESPONSES_PER_TURN == 0:
                yield

    def _check_one(self, response: ActiveResponse, before: _Seen, every_s: float) -> None:
        limit = response.silence_limit_s
        if limit is None:
            return  # it ended together with one that was checked before
        progress, (seen, idle_checks) = response.progress, before
        idle_checks = idle_checks + 1 if progress == seen else 0
        self._seen[response] = progress, idle_checks
        idle_s = idle_checks * every_s
        if response.paused and idle_s > self._client_stall_s:
            text = f"the client has read nothing for {self._client_stall_s:g} s"
            response.abort_client()
            response.fail(Refusal(Reason.CLIENT_STALLED, text))
        elif not response.paused:
            configured_s = self._engine_silence_s
            if idle_s > (limit_s := limit() if configured_s is None else configured_s):
                text = f"the engine has sent nothing for {limit_s:.3g} s"
                response.fail(Refusal(Reason.ENGINE_TIMEOUT, text))

    def end_all(self, refusal: Refusal) -> None:
        for response in self.responses():
            response.fail(refusal)
