"""Ends leases whose end the engine has not reported, and leases without an owner.

The state stream reports ends. An end that was lost with a broken stream, or with a request that
never arrived, is found by asking the engine. A lease that no live request owns, which an exception
can leave behind, is revoked. Knows one engine's address and its gate, not the engine's state.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import aiohttp

from orch_sidecar.admission.gate import Gate
from orch_sidecar.api.refusal import error_text
from vllm_plugin.contracts.lease_protocol import short_lease

logger = logging.getLogger("orch.engine")

RECONCILE_EVERY_S: Final = 0.5
_TIMEOUT_S: Final = 3.0


class LeaseReconciler:
    """Revokes the leases of requests that are gone, until the engine confirms their ends."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], gate: Gate
    ) -> None:
        self._session = session
        self._url = url
        self._headers = headers
        self._gate = gate
        self._overdue: set[str] = set()  # closing at the last look, or their ends may be lost
        self._logged: set[str] = set()

    def stream_restarted(self) -> None:
        """Asks for all closing leases soon: their ends may have been reported in between."""
        self._overdue.update(self._gate.ledger.closing())

    async def reconcile(self, *, engine_answers: bool) -> None:
        """Looks once for leases that have to end; asks the engine for them if it answers."""
        orphans = self._gate.reconcile()
        for lease in orphans:
            logger.error("lease %s: no live request owns it; revoking it", short_lease(lease))
        closing = set(self._gate.ledger.closing())
        overdue = sorted(closing & self._overdue | set(orphans))
        self._overdue = closing
        self._logged &= closing
        if engine_answers:
            await self._revoke(overdue)

    async def _revoke(self, leases: list[str]) -> None:
        for lease in leases:
            try:
                if not await self._has_ended(lease):
                    continue
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                self._warn(lease, "its end could not be confirmed: %s", error_text(error))
                return  # the engine does not answer: the others are asked for at the next look
            except (aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
                self._warn(lease, "the engine's answer is invalid: %s", error_text(error))
                continue
            self._gate.leases_ended([lease])

    async def _has_ended(self, lease: str) -> bool:
        async with self._session.delete(
            f"{self._url}/v1/capabilities/leases/{lease}",
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            allow_redirects=False,
        ) as response:
            if response.status == 200 and (await response.json())["ended"]:
                return True
            self._warn(lease, "still in the engine (%d)", response.status)
            return False

    def _warn(self, lease: str, text: str, detail: object) -> None:
        """Logs a warning, once for each lease."""
        if lease not in self._logged:
            self._logged.add(lease)
            logger.warning("lease %s: " + text, short_lease(lease), detail)
