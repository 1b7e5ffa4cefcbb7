"""Refuses generating requests that come by no sidecar (the profile's `unleased: refuse`).

Pure. A lease proves nothing about its sender: `sidecar_key` does, and the engine's API key. vLLM
asks for that only below some paths; this rule asks for it wherever sequences are generated. An
engine without a key must listen where only its own host reaches it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache


class Unleased(StrEnum):
    """What an engine does with a generating request that carries no lease."""

    COUNT = "count"  # it runs, and is counted as foreign
    REFUSE = "refuse"


class EngineKeys:
    """The API keys of an engine; without any, everyone is known."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def know(self, authorization: str) -> bool:
        """Whether a value of the header Authorization has one of the keys."""
        if not self._digests:
            return True
        scheme, _, given = authorization.partition(" ")
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        known = [secrets.compare_digest(digest, each) for each in self._digests]
        return scheme.lower() == "bearer" and any(known)


def objection(host: str | None, uds: str | None, keys: EngineKeys) -> str | None:
    """Returns why an engine must not be started with this address under `unleased: refuse`.

    `host`: None is every address of the machine. `uds`: a Unix domain socket, used instead.
    """
    if keys or uds or (host is not None and is_loopback(host)):
        return None
    shown = "not given, that is every address" if host is None else repr(host)
    return (
        f"--host is {shown}, must be a loopback address such as 127.0.0.1, or --api-key must be "
        "given: the profile refuses requests that come by no sidecar (`unleased: refuse`), and "
        "without a key anyone could pretend to be one"
    )


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether only this machine has this address, as it is or within one of IPv6."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
