"""Aborts responses that make no progress. Has no clock of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.wire.client_connection import ActiveResponse

logger = logging.getLogger("orch.watch")

_NOTHING_SEEN: Final = (0, 0), 0

# Responses that are looked at before the event loop runs again: a few tenths of a millisecond.
AT_ONCE: Final = 256


class StallWatchdog:
    """Aborts responses whose engine is silent, or whose client does not read."""

    def __init__(self, engine_silence_s: float, client_stall_s: float) -> None:
        self._engine_silence_s = engine_silence_s
        self._client_stall_s = client_stall_s
        # With the last progress, and in how many checks in a row it was the same.
        self._responses: dict[ActiveResponse, tuple[tuple[int, int], int]] = {}

    def configure(self, engine_silence_s: float, client_stall_s: float) -> None:
        """Applies other limits, to responses in progress, too."""
        self._engine_silence_s = engine_silence_s
        self._client_stall_s = client_stall_s

    def __len__(self) -> int:
        return len(self._responses)

    def add(self, response: ActiveResponse) -> None:
        self._responses.setdefault(response, _NOTHING_SEEN)

    def discard(self, response: ActiveResponse) -> None:
        self._responses.pop(response, None)

    def check(self, every_s: float) -> Iterator[None]:
        """Looks at all responses; to be called every `every_s` seconds.

        Yields now and then, for the event loop: thousands of responses take milliseconds.
        """
        for number, response in enumerate(list(self._responses), 1):
            try:
                self._look_at(response, every_s)
            # A response that cannot be ended must not keep the others from being checked.
            except Exception:
                logger.exception("a stalled response could not be ended")
            if number % AT_ONCE == 0:
                yield

    def _look_at(self, response: ActiveResponse, every_s: float) -> None:
        found = self._responses.get(response)
        if found is None:
            return  # it ended with one before it
        progress, (seen, idle_checks) = response.progress, found
        idle_checks = idle_checks + 1 if progress == seen else 0
        self._responses[response] = progress, idle_checks
        idle_s = idle_checks * every_s
        if response.paused and idle_s > self._client_stall_s:
            text = f"the client has read nothing for {self._client_stall_s:g} s"
            response.abort_client()
            response.fail(Refusal(Reason.CLIENT_STALLED, text))
        elif not response.paused and idle_s > self._engine_silence_s:
            text = f"the engine has sent nothing for {self._engine_silence_s:g} s"
            response.fail(Refusal(Reason.ENGINE_TIMEOUT, text))

    def end_all(self, refusal: Refusal) -> None:
        for response in list(self._responses):
            response.fail(refusal)
