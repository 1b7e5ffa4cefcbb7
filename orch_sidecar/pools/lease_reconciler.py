"""Has every lease end: those whose end the engine has not reported, and those without an owner.

The state stream reports ends. What was lost with a stream that broke, or in a request that never
arrived, is found out here by asking the engine. So is a lease that no live request owns, which an
exception may leave behind: nobody else would give it back. Knows one engine's address and gate,
and not how the engine is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp

from orch_sidecar.admission.gate import Gate
from orch_sidecar.api.redaction import error_text, short_lease

logger = logging.getLogger("orch.engine")

LOOK_EVERY_S: Final = 0.5
_ANSWERS_WITHIN_S: Final = 3.0


class LeaseReconciler:
    """Spends leases whose requests are gone, until the engine says that they are over."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], gate: Gate
    ) -> None:
        self._session = session
        self._url = url
        self._headers = headers
        self._gate = gate
        self._unconfirmed: set[str] = set()  # closing at the last look, or overdue
        self._reported: set[str] = set()  # closing leases of which the log knows

    def overdue(self) -> None:
        """All that are closing now: their ends may have been reported while nobody listened."""
        self._unconfirmed.update(self._gate.core.ledger.closing())

    async def run(self, answers: Callable[[], bool]) -> None:
        """Until cancelled. `answers`: whether the engine can be asked now."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self._look(answers)
            # A fault of one look must not keep the leases of all later requests from their ends.
            except Exception:
                logger.exception("looking for leases that have to end failed")

    async def _look(self, answers: Callable[[], bool]) -> None:
        orphans = self._gate.reconcile()
        for lease in orphans:
            logger.error("lease %s: no live request owns it; revoking it", short_lease(lease))
        closing = set(self._gate.core.ledger.closing())
        overdue = sorted(closing & self._unconfirmed | set(orphans))
        self._unconfirmed = closing
        self._reported &= closing
        if answers():
            await self._revoke(overdue)

    async def _revoke(self, leases: list[str]) -> None:
        for lease in leases:
            try:
                if not await self._has_ended(lease):
                    continue
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                self._warn(lease, "its end could not be confirmed: %s", error_text(error))
                return  # the engine does not answer; the stream will say so, and this runs again
            except (aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
                # It says something else than it should of this one; the others may still end.
                self._warn(lease, "the engine's answer is none: %s", error_text(error))
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
            self._warn(lease, "still in the engine (%d)", response.status)
            return False

    def _warn(self, lease: str, text: str, detail: object) -> None:
        """Once for each lease."""
        if lease not in self._reported:
            self._reported.add(lease)
            logger.warning("lease %s: " + text, short_lease(lease), detail)
