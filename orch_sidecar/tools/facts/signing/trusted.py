"""The public keys of operators whose engines are believed, each for a time.

Pure. `orch key --evidence` makes an entry. A key that is retired stays, with an earlier
`not_after`: what it certified before remains verified.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Self

import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, RootModel, model_validator

from orch_sidecar.tools.facts.labels.documents import parsed_as
from vllm_plugin.contracts.statement import from_base64, key_id, to_base64


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
