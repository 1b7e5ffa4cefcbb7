"""Sends an engine what this sidecar claims of its slots, where other sidecars want them, too.

One call at a time. A claim that stands is sent again each REPEAT_S in any case: the engine may have
ended it while this sidecar was not looking. Knows one engine's address and its gate, not the
engine's state.
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
from vllm_plugin.contracts.lease_protocol import CLAIMS_PATH, Claim, ClaimCall, claim_body

logger = logging.getLogger("orch.engine")

REPEAT_S: Final = 1.0
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
        self._gate = gate
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
