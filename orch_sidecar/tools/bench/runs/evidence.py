"""Asks the engine for signed statements before and after a run, with a nonce of this run.

An endpoint that offers none, or fails to, costs the row its evidence and the run nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any, Final

from orch_sidecar.tools.bench.load.capabilities import fetch_json
from orch_sidecar.tools.bench.load.endpoint import Capabilities, Endpoint, EndpointError
from orch_sidecar.tools.bench.results.result import EvidenceDocument
from orch_sidecar.tools.facts.signing.evidence_file import Signed
from vllm_plugin.contracts.statement import (
    STATEMENT_TYPE,
    STATEMENTS_PATH,
    parse_envelope,
    sequence_of,
)

_NONCE_BYTES: Final = 32
# The engine signs one statement per second for long: others may have asked just before.
_ATTEMPTS: Final = 3
_AGAIN_AFTER_S: Final = 1.0

_NOT_OFFERED: Final = "the endpoint offers no signed statements"


class StatementsOfRun:
    """The statements of one run."""

    def __init__(self, endpoint: Endpoint, run: str, found: Capabilities | None) -> None:
        """`found`: the capabilities before the run, None if the endpoint has none."""
        self._endpoint = endpoint
        self._asked = {"run": run, "nonce": secrets.token_hex(_NONCE_BYTES)}
        self._before: Any = None
        # Other endpoints are not asked.
        features = None if found is None else found.entry.get("features")
        is_offered = isinstance(features, Mapping) and features.get("evidence") is True
        self._missing = "" if is_offered else _NOT_OFFERED

    async def begin(self) -> None:
        """Asks for the statement before the run."""
        if not self._missing:
            try:
                self._before = await self._ask()
            except EndpointError as error:
                self._missing = str(error)

    async def end(self) -> EvidenceDocument:
        """Asks for the statement after the run; returns the evidence, or why there is none."""
        if self._missing:
            return EvidenceDocument(missing=self._missing)
        try:
            before = self._before["statement"]
            since = sequence_of(parse_envelope(before, STATEMENT_TYPE))
            parts = dict(await self._ask(since=since))
            parts |= {"before": before, "after": parts.pop("statement"), **self._asked}
            known = {name: parts.get(name) for name in Signed.model_fields}
            return EvidenceDocument(signed=Signed.model_validate(known))
        except EndpointError as error:
            why = str(error)
        except (KeyError, ValueError) as error:
            why = f"the engine's statement is not one: {error}"
        return EvidenceDocument(missing=why)

    async def _ask(self, **more: int) -> Mapping[str, Any]:
        """Returns what the engine answers. Raises EndpointError."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                answer = await fetch_json(self._endpoint, STATEMENTS_PATH, self._asked | more)
                break
            except EndpointError:
                if not left:
                    raise
                await asyncio.sleep(_AGAIN_AFTER_S)
        if not isinstance(answer, dict):
            raise EndpointError(_NOT_OFFERED)
        return answer
