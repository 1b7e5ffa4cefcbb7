"""API keys of clients: what a file of them says, which key a client presents, and whose it is.

Pure. The file has digests, never keys. A key is 256 bits of chance that `orch key` has drawn, so
nobody finds one by trying, and a fast hash keeps it as well as a slow one would. A password that
somebody thought of is not kept well by this; the file cannot tell them apart.

    - name: alice                 # in logs of what is reloaded, nowhere else
      sha256: 9f86d081884c7d65…   # of the key, in hexadecimal
      class: bulk                 # optional: no more than bulk is served
      concurrency: 8              # optional: so many sequences at once
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

# Ours have 48; longer ones are not even hashed.
MAX_KEY_BYTES: Final = 512
RANDOM_BYTES: Final = 32
PREFIX: Final = "orch-"  # by it, scanners for leaked secrets and people know what it is

# A Secret of Kubernetes holds no more.
MAX_FILE_BYTES: Final = 2**20

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$"
_SHA256: Final = r"^[0-9a-f]{64}$"
# A field of another name may be a key that was pasted where it does not belong.
_HARMLESS_FIELD: Final = re.compile(r"[A-Za-z0-9_-]{1,20}")
_SHOWN: Final = frozenset({"name", "class", "concurrency"})
_SHOWN_CHARACTERS: Final = 24  # half of one of our keys

# Stands for the digest of a key that nobody has: no digest is as short.
_NOBODYS: Final = b"\0"


class InvalidKeyFile(ValueError):
    """A file of keys that cannot be used. The message names entry, value and rule, and no key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One client's key, without the key.

    `bulk`: it is for bulk requests only. `concurrency`: sequences that may wait or run at once.
    """

    name: str
    digest: bytes
    bulk: bool = False
    concurrency: int | None = None


class _Entry(BaseModel):
    """An entry of the file."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str = Field(pattern=_NAME)
    sha256: str = Field(pattern=_SHA256)
    class_: Literal["bulk"] | None = Field(None, alias="class")
    concurrency: int | None = Field(None, ge=1)


class Keys:
    """The keys that are known."""

    def __init__(self, entries: Iterable[ApiKey]) -> None:
        self._by_digest = {each.digest: each for each in entries}

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._by_digest.values())

    def __len__(self) -> int:
        return len(self._by_digest)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._by_digest

    def of(self, key: bytes) -> ApiKey | None:
        """The entry of a key, None if there is none.

        Found by its digest, of which a client cannot choose so much as the first byte: the time
        that it takes says nothing of the keys that there are. The comparison is constant in time.
        """
        digest = hashlib.sha256(key).digest()
        found = self._by_digest.get(digest)
        same = hmac.compare_digest(digest, _NOBODYS if found is None else found.digest)
        return found if same else None


def sent(headers: Mapping[str, str]) -> str | None:
    """The header that a client's key is in: `Authorization` before `X-Api-Key`; None for none."""
    value = headers.get(AUTHORIZATION)
    return headers.get(X_API_KEY) if value is None else value


def bare(value: str) -> str:
    """The key in what was `sent`: without `Bearer`, for it may come as X-Api-Key another time."""
    scheme, _, rest = value.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else value


def octets(key: str) -> bytes:
    """A key's bytes as they came: header values that are not UTF-8 have surrogates in them."""
    return key.encode("utf-8", "surrogateescape")


def parse(text: str) -> Keys:
    """Reads the text of a file of keys. Raises InvalidKeyFile."""
    try:
        document = yaml.safe_load(text)
        repeated = _given_twice(yaml.compose(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark  # its message would quote the file
        place = "" if mark is None else f": line {mark.line + 1}, column {mark.column + 1}"
        raise InvalidKeyFile(f"is no YAML{place}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise InvalidKeyFile("is no YAML") from None
    if document is None or document == []:
        raise InvalidKeyFile("holds no key: to ask for none, take the file away")
    if not isinstance(document, list):
        raise InvalidKeyFile("must be a list of entries with name and sha256")
    if repeated is not None:
        raise InvalidKeyFile(f"line {repeated}: a field is given twice in one entry")
    entries = [_entry(number, each) for number, each in enumerate(document, 1)]
    for field in ("name", "digest"):
        seen: dict[Any, str] = {}
        for each in entries:
            value = getattr(each, field)
            if value in seen:
                what = f"name {value!r}" if field == "name" else f"sha256 of {seen[value]!r}"
                raise InvalidKeyFile(f"the {what} is given twice; each entry needs one of its own")
            seen[value] = each.name
    return Keys(entries)


def differences(old: Keys | None, new: Keys) -> str:
    """What became of the clients, in words without keys; empty if nothing did."""
    before = {each.name: each for each in old or ()}
    after = {each.name: each for each in new}
    changed = [name for name in before.keys() & after if before[name] != after[name]]
    parts = {"new": after.keys() - before, "gone": before.keys() - after, "changed": changed}
    return "; ".join(
        f"{what}: {', '.join(sorted(names))}" for what, names in parts.items() if names
    )


def new_key(chance: bytes) -> str:
    """A key made of `RANDOM_BYTES` random bytes."""
    assert len(chance) == RANDOM_BYTES
    return PREFIX + base64.urlsafe_b64encode(chance).rstrip(b"=").decode()


def entry_of(key: str, name: str, *, bulk: bool = False, concurrency: int | None = None) -> str:
    """The entry for a key, as text that a file may go on with. Raises InvalidKeyFile."""
    entry: dict[str, Any] = {"name": name, "sha256": hashlib.sha256(octets(key)).hexdigest()}
    if bulk:
        entry["class"] = "bulk"
    if concurrency is not None:
        entry["concurrency"] = concurrency
    _entry(1, entry)
    return yaml.safe_dump([entry], sort_keys=False)


def _entry(number: int, given: Any) -> ApiKey:
    if not isinstance(given, dict):
        raise InvalidKeyFile(f"entry {number}: must have fields: name and sha256")
    try:
        entry = _Entry.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = str(problem["loc"][0])
        if problem["type"] == "missing":
            value = "(absent)"
        elif field in _SHOWN:
            value = repr(problem["input"])[:_SHOWN_CHARACTERS]
        else:
            value = "(not shown)"
        if not _HARMLESS_FIELD.fullmatch(field):
            field = "a field (not shown)"
        rule = "must be 64 hexadecimal digits in lower case" if field == "sha256" else ""
        raise InvalidKeyFile(
            f"entry {number}: {field}: {value}: {rule or problem['msg']}"
        ) from None
    return ApiKey(
        entry.name, bytes.fromhex(entry.sha256), entry.class_ == "bulk", entry.concurrency
    )


def _given_twice(root: yaml.Node | None) -> int | None:
    """The line of an entry's field that is given twice: the last one would win in silence."""
    entries = root.value if isinstance(root, yaml.SequenceNode) else ()
    for entry in entries:
        seen = set()
        for field, _ in entry.value if isinstance(entry, yaml.MappingNode) else ():
            if isinstance(field.value, str):
                if field.value in seen:
                    return int(field.start_mark.line) + 1
                seen.add(field.value)
    return None
