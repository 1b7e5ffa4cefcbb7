"""Times out the reading of a stream that delivers nothing useful, even if bytes arrive."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

# The last part of the limit, in which data is read that arrived while the event loop was blocked.
_CATCH_UP_S: Final = 0.1


class StreamTimeout:
    """A context manager whose body times out `limit_s` seconds after the last `reset`.

    Raises TimeoutError then. Its only timer checks the age of the last reset, so that a reset is
    cheap.
    """

    def __init__(self, limit_s: float) -> None:
        self._quiet_s = max(0.0, limit_s - _CATCH_UP_S)
        self._loop = asyncio.get_running_loop()
        self._scope = asyncio.timeout(None)
        self._reset_at = 0.0
        self._is_catching_up = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expired(self) -> bool:
        return self._scope.expired()

    def reset(self) -> None:
        """Restarts the limit: something useful has arrived."""
        self._reset_at = self._loop.time()
        self._is_catching_up = False

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        self.reset()
        self._timer = self._loop.call_later(self._quiet_s, self._check)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._timer is not None
        self._timer.cancel()
        await self._scope.__aexit__(kind, error, traceback)

    def _check(self) -> None:
        rest_s = self._reset_at + self._quiet_s - self._loop.time()
        if rest_s > 0:
            self._timer = self._loop.call_later(rest_s, self._check)
        elif not self._is_catching_up:
            self._is_catching_up = True
            self._timer = self._loop.call_later(_CATCH_UP_S, self._check)
        else:
            self._scope.reschedule(self._loop.time())
