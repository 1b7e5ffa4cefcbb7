"""Asks the engine for signed statements before and after a run, with a nonce of this run.

An endpoint that offers none, or fails to, costs the row its evidence and the run nothing.
"""

from __future__ import annotations

import asyncio
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

NONCE_BYTES: Final = 32
# The engine signs one statement per second for long: others may have asked just before.
_ATTEMPTS: Final = 3
_AGAIN_AFTER_S: Final = 1.0

_NOT_OFFERED: Final = "the endpoint offers no signed statements"

# What the engine answers, or why there is no answer.
Answer = Mapping[str, Any] | str


async def statement_before(
    endpoint: Endpoint, asked: Mapping[str, Any], found: Capabilities | None
) -> Answer:
    """Returns the answer to what is `asked` of the run, its name and nonce; endpoints that offer no
    statements are not asked. `found`: the capabilities before the run, None without any."""
    features = None if found is None else found.entry.get("features")
    is_offered = isinstance(features, Mapping) and features.get("evidence") is True
    return await _statement(endpoint, asked) if is_offered else _NOT_OFFERED


async def evidence_after(
    endpoint: Endpoint, asked: Mapping[str, Any], before: Answer
) -> EvidenceDocument:
    """Asks for the statement after the run; returns the evidence, or why there is none."""
    if isinstance(before, str):
        return EvidenceDocument(missing=before)
    try:
        since = sequence_of(parse_envelope(before["statement"], STATEMENT_TYPE))
        after = await _statement(endpoint, {**asked, "since": since})
        if isinstance(after, str):
            return EvidenceDocument(missing=after)
        parts = {**after, **asked, "before": before["statement"], "after": after["statement"]}
        known = {name: parts.get(name) for name in Signed.model_fields}
        return EvidenceDocument(signed=Signed.model_validate(known))
    except (KeyError, ValueError) as error:
        return EvidenceDocument(missing=f"the engine's statement is not one: {error}")


async def _statement(endpoint: Endpoint, asked: Mapping[str, Any]) -> Answer:
    why = _NOT_OFFERED
    for left in reversed(range(_ATTEMPTS)):
        try:
            answer = await fetch_json(endpoint, STATEMENTS_PATH, asked)
            return answer if isinstance(answer, dict) else _NOT_OFFERED
        except EndpointError as error:
            why = str(error)
            await asyncio.sleep(_AGAIN_AFTER_S if left else 0.0)
    return why
