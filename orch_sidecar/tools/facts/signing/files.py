"""The files of a verification: the evidence of one run, and the keys of operators that are trusted.

Pure. Evidence is named by the SHA-256 of its bytes, and a row names it in its note `evidence`. A
retired key stays, with an earlier `not_after`: what it certified before remains verified.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, RootModel, model_validator

from orch_sidecar.tools.facts.labels.documents import parsed_as
from orch_sidecar.tools.facts.tables.notes import EVIDENCE
from orch_sidecar.tools.facts.tables.row import Row
from orch_sidecar.tools.facts.tables.table import row_fields
from vllm_plugin.contracts.statement import HASH, from_base64, key_id, to_base64

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


class TrustedKey(BaseModel):
    """An operator's public key, valid from `not_before` to `not_after`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    id: str
    public_key: str
    not_before: AwareDatetime
    not_after: AwareDatetime

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if len(self.public) != _KEY_BYTES or self.id != key_id(self.public):
            raise ValueError(
                f"id is {self.id}: it must be the SHA-256 of a public key of {_KEY_BYTES} bytes"
            )
        if self.not_after <= self.not_before:
            raise ValueError("not_after must be after not_before")
        return self

    @property
    def public(self) -> bytes:
        """The key itself. Raises InvalidEnvelope."""
        return from_base64("public_key", self.public_key)

    def is_valid_at(self, unix_s: float) -> bool:
        return self.not_before.timestamp() <= unix_s <= self.not_after.timestamp()


class _Entries(RootModel[list[TrustedKey]]):
    root: list[TrustedKey] = Field(min_length=1)


TrustedKeys = Mapping[str, TrustedKey]  # by their ids
_KEY_BYTES: Final = 32


def entry_of(name: str, public: bytes, not_before: datetime, not_after: datetime) -> str:
    """Returns an entry as text to append to the file of trusted keys."""
    entry = TrustedKey(
        name=name,
        id=key_id(public),
        public_key=to_base64(public),
        not_before=not_before,
        not_after=not_after,
    )
    return yaml.safe_dump([entry.model_dump(mode="json")], sort_keys=False)


def parse_trusted(text: str) -> TrustedKeys:
    """Parses a file of trusted keys. Raises ValueError, which names the entry, field and rule."""
    try:
        stated = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"is not valid YAML: {' '.join(str(error).split())}") from None
    keys = parsed_as(_Entries, stated, "must be keys, as `orch key --evidence` prints them: ").root
    if again := [name for name, count in Counter(key.id for key in keys).items() if count > 1]:
        raise ValueError(f"the id {again[0]} occurs twice: change the validity of the first entry")
    return {key.id: key for key in keys}
