"""Sends an engine what this sidecar claims of its slots, where other sidecars want them, too.

One call at a time, so that claims arrive in order; the engine reports what it keeps, and the claim
is sent again if that differs. A claim that stands is sent again each REPEAT_S in any case: the
engine may have ended it while this sidecar was not looking. Knows one engine's address and its
gate, not the engine's state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Final

import aiohttp

from orch_sidecar.admission.gate import Gate
from orch_sidecar.api.redaction import error_text
from vllm_plugin.lease_protocol import CLAIMS_PATH, Claim, claim_body

logger = logging.getLogger("orch.engine")

REPEAT_S: Final = 1.0
_RETRY_S: Final = 0.25
_TIMEOUT_S: Final = 3.0


class ClaimSender:
    """Keeps the engine's record of this sidecar's claim up to date."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], gate: Gate
    ) -> None:
        self._session = session
        self._url = f"{url}{CLAIMS_PATH}{gate.instance}"
        self._headers = headers
        self._gate = gate
        self._recorded: Claim | None = None  # by the engine
        self._sending = False
        self._changed = asyncio.Event()
        self._failed = False
        gate.on_claim = self._changed.set

    def reported(self, claim: Claim | None) -> None:
        """The engine reports what it has recorded."""
        if self._sending:
            return  # the report may be older
        self._recorded = claim
        if claim != self._gate.claim:
            self._changed.set()

    async def run(self) -> None:
        """Sends each change of the claim, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPEAT_S):
                    await self._changed.wait()
            changed = self._changed.is_set()
            self._changed.clear()
            claim = self._gate.claim
            if claim is None:
                self._gate.offers.settle()
            if claim == self._recorded and (changed or claim is None):
                continue
            self._sending = True
            try:
                await self._send(claim)
            # A fault of one call must not keep the requests that are queued from their slots.
            except Exception as error:  # noqa: BLE001
                if not self._failed:
                    logger.warning("the engine did not take a claim: %s", error_text(error))
                self._failed = True
                self._changed.set()
                await asyncio.sleep(_RETRY_S)
            else:
                self._recorded, self._failed = claim, False
            finally:
                self._sending = False

    async def _send(self, claim: Claim | None) -> None:
        async with self._session.put(
            self._url,
            data=claim_body(claim, self._gate.offers.taken),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            raise_for_status=True,
        ) as response:
            await response.read()
