"""Asks the engine for signed statements before and after a run, with a nonce of this run.

An endpoint that offers none, or fails to, costs the row its evidence and the run nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any, Final

from orch_sidecar.api.headers import X_ORCH_POOL
from orch_sidecar.tools.bench.load.capabilities import Capabilities
from orch_sidecar.tools.bench.load.endpoint import EndpointError
from orch_sidecar.tools.bench.plan import Plan
from orch_sidecar.tools.bench.results.result import EvidenceDocument
from orch_sidecar.tools.facts.signing.evidence_file import Signed
from vllm_plugin.contracts.dsse import InvalidEnvelope, parse_envelope
from vllm_plugin.contracts.statement import STATEMENT_TYPE, STATEMENTS_PATH, sequence_of

_NONCE_BYTES: Final = 32
# The engine signs one statement per second for long: others may have asked just before.
_ATTEMPTS: Final = 3
_AGAIN_AFTER_S: Final = 1.0

NOT_OFFERED: Final = "the endpoint offers no signed statements"


class StatementsOfRun:
    """The statements of one run."""

    def __init__(self, plan: Plan, run: str, found: Capabilities | None) -> None:
        """`found`: the capabilities before the run, None if the endpoint has none."""
        self._plan = plan
        self._run = run
        self._nonce = secrets.token_hex(_NONCE_BYTES)
        self._before: Mapping[str, Any] | None = None
        self._missing = "" if _offered(found) else NOT_OFFERED

    async def begin(self) -> None:
        """Asks for the statement before the run."""
        if not self._missing:
            self._before = await self._ask({})

    async def end(self) -> EvidenceDocument:
        """Asks for the statement after the run; returns the evidence, or why there is none."""
        after = None
        if self._before is not None:
            try:
                since = sequence_of(parse_envelope(self._before["statement"], STATEMENT_TYPE))
            except (KeyError, InvalidEnvelope, ValueError) as error:
                self._missing = f"the statement before the run is not one: {error}"
            else:
                after = await self._ask({"since": since})
        if self._before is None or after is None:
            return EvidenceDocument(missing=self._missing)
        try:
            signed = Signed(
                run=self._run,
                nonce=self._nonce,
                public_key=after["public_key"],
                certificate=after["certificate"],
                before=self._before["statement"],
                after=after["statement"],
                between=after["between"],
                leaves=after["leaves"],
            )
        except (KeyError, ValueError) as error:
            return EvidenceDocument(missing=f"the engine's statement is not one: {error}")
        return EvidenceDocument(signed=signed)

    async def _ask(self, more: Mapping[str, int]) -> Mapping[str, Any] | None:
        body = {"run": self._run, "nonce": self._nonce, **more}
        pool = self._plan.pool
        fields = None if pool is None else {str(X_ORCH_POOL): pool}
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_AGAIN_AFTER_S)
            try:
                answer = await self._plan.endpoint.fetch_json(STATEMENTS_PATH, body, fields)
            except EndpointError as error:
                self._missing = str(error)
                continue
            if isinstance(answer, dict):
                return answer
            self._missing = NOT_OFFERED
            break
        return None


def _offered(found: Capabilities | None) -> bool:
    """Returns whether the engine states that it signs: other endpoints are not asked."""
    features = None if found is None else found.entry.get("features")
    return isinstance(features, Mapping) and features.get("evidence") is True
