"""Aborts responses that make no progress. Has no clock of its own.

How long an engine may be silent is a setting, or follows from what is known of it: while its state
is heard of it may read long prompts, and one that is not heard of any more is taken for hung after
several times what its steps take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.pool import LONGEST_SILENCE_S
from orch_sidecar.wire.client_connection import ActiveResponse

logger = logging.getLogger("orch.watch")

# The seconds for which an engine may be silent, as of now.
SilenceLimit = Callable[[], float]
_Seen = tuple[tuple[int, int], int, SilenceLimit | None]

# Responses that are looked at before the event loop runs again: a few tenths of a millisecond.
AT_ONCE: Final = 256


class StallWatchdog:
    """Aborts responses whose engine is silent, or whose client does not read."""

    def __init__(self, engine_silence_s: float | None, client_stall_s: float) -> None:
        self._engine_silence_s = engine_silence_s
        self._client_stall_s = client_stall_s
        # With the last progress, in how many checks in a row it was the same, and the limit.
        self._responses: dict[ActiveResponse, _Seen] = {}

    def configure(self, engine_silence_s: float | None, client_stall_s: float) -> None:
        """Applies other limits, to responses in progress, too."""
        self._engine_silence_s = engine_silence_s
        self._client_stall_s = client_stall_s

    def __len__(self) -> int:
        return len(self._responses)

    def add(self, response: ActiveResponse, limit: SilenceLimit | None = None) -> None:
        """`limit`: of the engine that sends it; without one it is the longest."""
        self._responses[response] = (0, 0), 0, limit

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
        progress, (seen, idle_checks, limit) = response.progress, found
        idle_checks = idle_checks + 1 if progress == seen else 0
        self._responses[response] = progress, idle_checks, limit
        idle_s = idle_checks * every_s
        if response.paused and idle_s > self._client_stall_s:
            text = f"the client has read nothing for {self._client_stall_s:g} s"
            response.abort_client()
            response.fail(Refusal(Reason.CLIENT_STALLED, text))
        elif not response.paused and idle_s > (limit_s := self._silence_s(limit)):
            text = f"the engine has sent nothing for {limit_s:.3g} s"
            response.fail(Refusal(Reason.ENGINE_TIMEOUT, text))

    def _silence_s(self, limit: SilenceLimit | None) -> float:
        if self._engine_silence_s is not None:
            return self._engine_silence_s
        return LONGEST_SILENCE_S if limit is None else limit()

    def end_all(self, refusal: Refusal) -> None:
        for response in list(self._responses):
            response.fail(refusal)
