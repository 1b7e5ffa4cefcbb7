"""The public keys of operators whose engines are believed, each for a time.

Pure. `orch key --evidence` makes an entry. A key that is retired stays, with an earlier
`not_after`: what it certified before remains verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from vllm_plugin.contracts.dsse import InvalidEnvelope, from_base64, to_base64
from vllm_plugin.contracts.statement import key_id


class InvalidTrustedKeys(ValueError):
    """The file of trusted keys breaks a rule; the message names the entry, field and rule."""


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """An operator's public key (32 bytes), valid from `not_before` to `not_after`."""

    name: str
    public: bytes
    not_before: datetime
    not_after: datetime

    def is_valid_at(self, unix_s: float) -> bool:
        return self.not_before.timestamp() <= unix_s <= self.not_after.timestamp()


TrustedKeys = Mapping[str, TrustedKey]  # by their ids


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    id: str
    public_key: str
    not_before: AwareDatetime
    not_after: AwareDatetime


def entry_of(name: str, public: bytes, not_before: datetime, not_after: datetime) -> str:
    """Returns an entry as text to append to the file of trusted keys."""
    entry = {
        "name": name,
        "id": key_id(public),
        "public_key": to_base64(public),
        "not_before": _text(not_before),
        "not_after": _text(not_after),
    }
    return yaml.safe_dump([entry], sort_keys=False)


def parse_trusted(text: str) -> TrustedKeys:
    """Parses a file of trusted keys. Raises InvalidTrustedKeys."""
    try:
        document: Any = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidTrustedKeys(f"is not valid YAML: {error}") from None
    if not isinstance(document, list) or not document:
        raise InvalidTrustedKeys("must be a list of keys, as `orch key --evidence` prints them")
    found: dict[str, TrustedKey] = {}
    for number, each in enumerate(document, 1):
        key = _key(number, each)
        identity = key_id(key.public)
        if identity in found:
            raise InvalidTrustedKeys(
                f"key {number} ({key.name}): the id {identity} occurs twice: change the validity "
                "of the first entry instead"
            )
        found[identity] = key
    return found


def _key(number: int, given: object) -> TrustedKey:
    try:
        entry = _Entry.model_validate(given)
        public = from_base64("public_key", entry.public_key)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"])) or "the entry"
        raise InvalidTrustedKeys(f"key {number}: {place}: {problem['msg']}") from None
    except InvalidEnvelope as error:
        raise InvalidTrustedKeys(f"key {number}: {error}") from None
    if len(public) != 32 or entry.id != key_id(public):
        raise InvalidTrustedKeys(
            f"key {number} ({entry.name}): id is {entry.id}: it must be the SHA-256 of a public "
            "key of 32 bytes"
        )
    if entry.not_after <= entry.not_before:
        raise InvalidTrustedKeys(f"key {number} ({entry.name}): not_after must be after not_before")
    return TrustedKey(entry.name, public, entry.not_before, entry.not_after)


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
