"""Calls an engine: what this sidecar claims of its slots, and whether leases have ended there.

Knows one engine's address and its gate, not the engine's state.

Claims are sent where other sidecars want slots, too, one call at a time. A claim that stands is
sent again each REPEAT_S in any case: the engine may have ended it while this sidecar was not
looking.

The state stream reports the ends of leases. An end that was lost with a broken stream, or with a
request that never arrived, is found by asking the engine. A lease that no live request owns, which
an exception can leave behind, is revoked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Final

import aiohttp

from orch_sidecar.admission.claims import ClaimCalls
from orch_sidecar.admission.gate import Gate
from orch_sidecar.api.refusal import error_text
from vllm_plugin.contracts.lease_protocol import (
    CLAIMS_PATH,
    Claim,
    ClaimCall,
    claim_body,
    short_lease,
)

logger = logging.getLogger("orch.engine")

REPEAT_S: Final = 1.0
RECONCILE_EVERY_S: Final = 0.5
_RETRY_S: Final = 0.25
_TIMEOUT_S: Final = 3.0


class ClaimSender:
    """Keeps the engine's record of this sidecar's claim up to date."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        headers: Mapping[str, str],
        gate: Gate,
        child_pool: str | None = None,
    ) -> None:
        """`child_pool`: of the child sidecar that takes the engine's place."""
        self._session = session
        self._url = f"{url}{CLAIMS_PATH}{gate.instance}"
        self._params = {} if child_pool is None else {"pool": child_pool}
        self._headers = headers
        self._calls = ClaimCalls(gate.claims)
        self._changed = asyncio.Event()
        self._failed = False
        gate.claims.on_change = self._changed.set

    def reported(self, claim: Claim | None, waits: bool, number: int) -> None:
        """The engine reports what it has recorded, and of which call."""
        if self._calls.reported(claim, waits, number):
            self._changed.set()

    async def run(self) -> None:
        """Sends each change of the claim, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPEAT_S):
                    await self._changed.wait()
            again = not self._changed.is_set()
            self._changed.clear()
            call = self._calls.next(again=again)
            if call is None:
                continue
            try:
                await self._send(call)
            # A fault of one call must not keep the requests that are queued from their slots.
            except Exception as error:  # noqa: BLE001
                if not self._failed:
                    logger.warning("the engine did not take a claim: %s", error_text(error))
                self._failed = True
                self._calls.failed()
                self._changed.set()
                await asyncio.sleep(_RETRY_S)
            else:
                self._failed = False

    async def _send(self, call: ClaimCall) -> None:
        async with self._session.put(
            self._url,
            params=self._params,
            data=claim_body(call),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            allow_redirects=False,
            raise_for_status=True,
        ) as response:
            await response.read()


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
