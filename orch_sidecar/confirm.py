"""Asks an engine for the leases whose end it should have told of by now.

Their ends are told by the state stream; what was lost with a stream that broke, or in a request
that never arrived, is found out here: nobody else gives those leases back. Knows one engine's
address and gate, and not how the engine is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp

from orch_sidecar.admission.gate import Gate

logger = logging.getLogger("orch.engine")

CONFIRM_EVERY_S: Final = 1.0
_ANSWERS_WITHIN_S: Final = 3.0


class Confirmation:
    """Spends leases whose requests are gone, until the engine says that they are over."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], gate: Gate
    ) -> None:
        self._session = session
        self._url = url
        self._headers = headers
        self._gate = gate
        self._unconfirmed: set[str] = set()

    def overdue(self) -> None:
        """All that are closing now: their ends may have been told while nobody listened."""
        self._unconfirmed.update(self._gate.core.ledger.closing())

    async def run(self, answers: Callable[[], bool]) -> None:
        """Until cancelled. `answers`: whether the engine can be asked now."""
        while True:
            await asyncio.sleep(CONFIRM_EVERY_S)
            closing = set(self._gate.core.ledger.closing())
            overdue = sorted(closing & self._unconfirmed)
            self._unconfirmed = closing
            if answers():
                await self._revoke(overdue)

    async def _revoke(self, leases: list[str]) -> None:
        for lease in leases:
            try:
                if not await self._has_ended(lease):
                    continue
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                logger.warning("lease %s: its end could not be confirmed: %r", lease[:24], error)
                return  # the engine does not answer; the stream will say so, and this runs again
            except (aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
                # It says something else than it should of this one; the others may still end.
                logger.warning("lease %s: the engine's answer is none: %r", lease[:24], error)
                continue
            self._gate.engine_ended([lease])

    async def _has_ended(self, lease: str) -> bool:
        async with self._session.delete(
            f"{self._url}/v1/capabilities/leases/{lease}",
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=_ANSWERS_WITHIN_S),
        ) as response:
            if response.status == 200 and (await response.json())["ended"]:
                return True
            logger.warning("lease %s: still in the engine (%d)", lease[:24], response.status)
            return False
