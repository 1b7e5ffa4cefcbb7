"""The evidence of one run: what the engine signed, and what only the client measured.

Pure. The file is named by the SHA-256 of its bytes, and a row names it in its note `evidence`.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from orch_sidecar.tools.facts.labels.documents import parse_json, parsed_as
from orch_sidecar.tools.facts.tables.notes import EVIDENCE
from orch_sidecar.tools.facts.tables.row import Row
from orch_sidecar.tools.facts.tables.table import row_fields
from vllm_plugin.contracts.statement import HASH

SUFFIX: Final = ".json"
_NOTE: Final = re.compile(rf"; {EVIDENCE}=sha256:([0-9a-f]{{64}})\Z")


# A SHA-256 in hexadecimal.
Hash = Annotated[str, Field(pattern=f"^{HASH.pattern}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Signed(_Part):
    """What an engine signed about a run, as it answered. `leaves`: its finished sequences between
    the two statements, `between`: digests of other statements."""

    run: str
    nonce: str | None
    public_key: str
    certificate: dict[str, Any] | None
    before: dict[str, Any]
    after: dict[str, Any]
    between: list[Hash]
    leaves: list[str]


class ClientMeasured(_Part):
    """What only the client saw. `row`: the fields of the row, without its note of the evidence."""

    row: list[str]
    result: dict[str, Any]


class EvidenceFile(_Part):
    """The content of the file."""

    schema_version: Literal["orch.evidence/1"] = "orch.evidence/1"
    signed: Signed
    client_measured: ClientMeasured


def evidence_of(signed: Signed, row: Row, result: dict[str, Any]) -> tuple[bytes, Row]:
    """Returns the evidence of a row as bytes, and the row that names it."""
    measured = ClientMeasured(row=list(row_fields(row)), result=result)
    document = EvidenceFile(signed=signed, client_measured=measured).model_dump(mode="json")
    content = json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    note = f"{EVIDENCE}=sha256:{digest(content)}"
    return content, replace(row, scenario_notes=f"{row.scenario_notes}; {note}")


def digest(content: bytes) -> str:
    """Returns the name of a file with this content, without its suffix."""
    return hashlib.sha256(content).hexdigest()


def named_by(row: Row) -> tuple[Row, str | None]:
    """Returns a row without its note of the evidence, and the digest in that; None without one."""
    found = _NOTE.search(row.scenario_notes)
    if found is None:
        return row, None
    return replace(row, scenario_notes=row.scenario_notes[: found.start()]), found[1]


def parse_evidence(content: bytes) -> EvidenceFile:
    """Parses a file. Raises ValueError."""
    return parsed_as(EvidenceFile, parse_json(content, "the file: "), "the file: ")
