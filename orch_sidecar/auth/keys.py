"""API keys of clients: the format of their file, and the lookup of the key in a request.

Pure. The file contains digests, never keys. A key has 256 random bits from `orch key` and cannot be
guessed, so a fast hash protects it as well as a slow one. It would not protect a password that a
person chose; the file cannot tell the difference.

    - name: alice                 # logged when keys are reloaded, nowhere else
      sha256: 9f86d081884c7d65…   # of the key, in hexadecimal
      class: bulk                 # optional: limits the key to bulk requests
      concurrency: 8              # optional: limits its sequences at once
      weight: 3                   # optional: its share beside other keys of the class; 1 by default
      tokens_per_minute: 100000   # optional: a budget of prompt and generated tokens
      requests_per_minute: 60     # optional: a budget of requests
      sidecar: true               # optional: it is a parent sidecar, which may claim slots
      gateway: true               # optional: it is a gateway, whose fairness ids count
      metrics: true               # optional: it may read what concerns all clients
      share_cache: team-a         # optional: shares the prefix cache with keys of this group
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orch_sidecar.api.headers import AUTHORIZATION, X_API_KEY

# Generated keys have 48; longer ones are not even hashed.
MAX_KEY_BYTES: Final = 512
RANDOM_BYTES: Final = 32
PREFIX: Final = "orch-"  # lets people and scanners for leaked secrets recognize a key

# The limit of a Kubernetes Secret.
MAX_FILE_BYTES: Final = 2**20

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$"
_SHA256: Final = r"^[0-9a-f]{64}$"
# A field of another name may be a key that was pasted into the wrong place.
_HARMLESS_FIELD: Final = re.compile(r"[A-Za-z0-9_-]{1,20}")
_SHOWN_FIELDS: Final = frozenset(
    {
        "name", "class", "concurrency", "weight", "tokens_per_minute", "requests_per_minute",
        "sidecar", "gateway", "metrics", "share_cache",
    }
)  # fmt: skip
_SHOWN_CHARACTERS: Final = 24  # half of a generated key

# Compared with where no digest is found; no digest is as short.
_NO_DIGEST: Final = b"\0"


class InvalidKeyFile(ValueError):
    """A key file that cannot be used. The message names entry, value and rule, but no key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The entry of a client's key, without the key itself.

    `bulk`: limited to bulk requests. `concurrency`: the most sequences that are queued or running.
    `weight`: its share of the slots beside other keys of a class. The budgets are per minute.
    `sidecar`, `gateway`, `metrics`: what it may say or read besides sending requests.
    `share_cache`: the group with which it shares the engines' prefix cache; None: with nobody.
    """

    name: str
    digest: bytes
    bulk: bool = False
    concurrency: int | None = None
    weight: float = 1.0
    tokens_per_minute: int | None = None
    requests_per_minute: int | None = None
    sidecar: bool = False
    gateway: bool = False
    metrics: bool = False
    share_cache: str | None = None

    @property
    def has_budget(self) -> bool:
        return self.tokens_per_minute is not None or self.requests_per_minute is not None


# Whoever asks at the operators' listener, which needs no key, and may read all.
OPERATOR: Final = ApiKey("operator", b"", metrics=True)


def owner_of(key: ApiKey | None) -> str:
    """Returns what tells the instances that a parent sidecar names from those of other keys."""
    return "" if key is None else key.digest.hex()


class _Entry(BaseModel):
    """An entry of the key file."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str = Field(pattern=_NAME)
    sha256: str = Field(pattern=_SHA256)
    class_: Literal["bulk"] | None = Field(None, alias="class")
    concurrency: int | None = Field(None, ge=1)
    weight: float = Field(1.0, ge=0.001, le=1000, allow_inf_nan=False)
    tokens_per_minute: int | None = Field(None, ge=1, le=10**12)
    requests_per_minute: int | None = Field(None, ge=1, le=10**9)
    sidecar: bool = False
    gateway: bool = False
    metrics: bool = False
    share_cache: str | None = Field(None, pattern=_NAME)


class Keys:
    """The known keys, by digest."""

    def __init__(self, entries: Iterable[ApiKey]) -> None:
        self._by_digest = {each.digest: each for each in entries}

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._by_digest.values())

    def __len__(self) -> int:
        return len(self._by_digest)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._by_digest

    def get(self, digest: bytes) -> ApiKey | None:
        return self._by_digest.get(digest)

    def find(self, key: bytes) -> ApiKey | None:
        """Returns the entry of a key; None if it is unknown.

        A client cannot choose the digest that is looked up, not even its first byte, so the time
        of the lookup reveals nothing about the known keys. The comparison takes constant time.
        """
        digest = hashlib.sha256(key).digest()
        found = self._by_digest.get(digest)
        same = hmac.compare_digest(digest, _NO_DIGEST if found is None else found.digest)
        return found if same else None


def credential(headers: Mapping[str, str]) -> str | None:
    """Returns the header with the client's key, `Authorization` before `X-Api-Key`; or None."""
    value = headers.get(AUTHORIZATION)
    return headers.get(X_API_KEY) if value is None else value


def without_scheme(value: str) -> str:
    """Returns the key in a `credential`: without `Bearer`, as it would be in `X-Api-Key`."""
    scheme, _, rest = value.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else value


def key_bytes(key: str) -> bytes:
    """Returns the bytes of a key as received: where they are not UTF-8, it contains surrogates."""
    return key.encode("utf-8", "surrogateescape")


def parse(text: str) -> Keys:
    """Parses the text of a key file. Raises InvalidKeyFile."""
    try:
        document = yaml.safe_load(text)
        repeated = _repeated_field(yaml.compose(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark  # its message would quote the file
        place = "" if mark is None else f": line {mark.line + 1}, column {mark.column + 1}"
        raise InvalidKeyFile(f"is not valid YAML{place}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise InvalidKeyFile("is not valid YAML") from None
    if document is None or document == []:
        raise InvalidKeyFile("contains no key: to serve requests without keys, unset api_keys_file")
    if not isinstance(document, list):
        raise InvalidKeyFile("must be a list of entries with name and sha256")
    if repeated is not None:
        raise InvalidKeyFile(f"line {repeated}: an entry must not have the same field twice")
    entries = [_entry(number, each) for number, each in enumerate(document, 1)]
    for field in ("name", "digest"):
        seen: dict[Any, int] = {}
        for number, each in enumerate(entries, 1):
            value = getattr(each, field)
            if value in seen:  # without the name: everybody may read why keys are not reloaded
                same = f"entry {number}: the same {field.replace('digest', 'sha256')} as of entry"
                raise InvalidKeyFile(f"{same} {seen[value]}: it must be different in each entry")
            seen[value] = number
    return Keys(entries)


def differences(old: Keys | None, new: Keys) -> str:
    """Returns which clients are new, removed or changed, as text; empty if none are."""
    before = {each.name: each for each in old or ()}
    after = {each.name: each for each in new}
    changed = [name for name in before.keys() & after if before[name] != after[name]]
    parts = {"new": after.keys() - before, "removed": before.keys() - after, "changed": changed}
    return "; ".join(
        f"{what}: {', '.join(sorted(names))}" for what, names in parts.items() if names
    )


def new_key(random_bytes: bytes) -> str:
    """Returns a key of `RANDOM_BYTES` random bytes."""
    assert len(random_bytes) == RANDOM_BYTES
    return PREFIX + base64.urlsafe_b64encode(random_bytes).rstrip(b"=").decode()


def entry_of(key: str, name: str, *, bulk: bool = False, **fields: float | str | None) -> str:
    """Returns the entry of a key as text to append to a key file. Raises InvalidKeyFile.

    `fields`: further ones of an entry, None where one is absent.
    """
    entry: dict[str, Any] = {"name": name, "sha256": hashlib.sha256(key_bytes(key)).hexdigest()}
    if bulk:
        entry["class"] = "bulk"
    entry |= {field: value for field, value in fields.items() if value is not None}
    _entry(1, entry)
    return yaml.safe_dump([entry], sort_keys=False)


def _entry(number: int, given: Any) -> ApiKey:
    if not isinstance(given, dict):
        raise InvalidKeyFile(f"entry {number}: must be a mapping with name and sha256")
    try:
        entry = _Entry.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = str(problem["loc"][0])
        if problem["type"] == "missing":
            value = "(absent)"
        elif field in _SHOWN_FIELDS:
            value = repr(problem["input"])[:_SHOWN_CHARACTERS]
        else:
            value = "(not shown)"
        if not _HARMLESS_FIELD.fullmatch(field):
            field = "a field (not shown)"
        rule = "must be 64 hexadecimal digits in lower case" if field == "sha256" else ""
        raise InvalidKeyFile(
            f"entry {number}: {field}: {value}: {rule or problem['msg']}"
        ) from None
    fields = entry.model_dump(exclude={"sha256", "class_"})
    return ApiKey(digest=bytes.fromhex(entry.sha256), bulk=entry.class_ == "bulk", **fields)


def _repeated_field(root: yaml.Node | None) -> int | None:
    """Returns the line of a repeated field: YAML would silently use the last one. None: no such."""
    entries = root.value if isinstance(root, yaml.SequenceNode) else ()
    for entry in entries:
        seen = set()
        for field, _ in entry.value if isinstance(entry, yaml.MappingNode) else ():
            if isinstance(field.value, str):
                if field.value in seen:
                    return int(field.start_mark.line) + 1
                seen.add(field.value)
    return None
