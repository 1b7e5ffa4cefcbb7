"""Decides who an engine knows the sender of a request for: a sidecar of its own, or a client.

Pure. Sidecars make up their instances and leases, so these prove nothing about their sender. An
engine with keys (ORCH_SIDECAR_KEY) knows the sidecars that send one of them. An engine without
knows its own host, as long as no proxy there forwards what others send.

With the profile's `unleased: refuse` an engine takes generating requests by its sidecars only, and
with its API key, if it has one. vLLM asks for that only below some paths; this rule asks for it
wherever sequences are generated. An engine without a key must then listen where only its own host
reaches it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

SIDECAR_KEY_VARIABLE: Final = "ORCH_SIDECAR_KEY"
SIDECAR_KEY_HEADER: Final = b"x-orch-sidecar-key"  # as ASGI has it
_OF_PROXIES: Final = re.compile(rb"forwarded|via|x-forwarded-.*")

NOT_A_SIDECAR: Final = (
    "this is for the sidecars of this engine only, which it knows by their key: set "
    f"{SIDECAR_KEY_VARIABLE} to the same value for the engine and its sidecars. Without a key an "
    "engine knows sidecars on its own host only, with no proxy in between"
)


def parse_keys(text: str) -> list[str]:
    """Parses keys that are separated by commas: a sidecar sends the first, an engine accepts all.

    Raises ValueError, whose text does not contain them.
    """
    keys = text.split(",")
    if not all(re.fullmatch("[!-~]+", key) for key in keys):
        raise ValueError(
            f"{SIDECAR_KEY_VARIABLE} (not shown) must be a key of printable ASCII characters "
            "without spaces, or several such keys with commas in between"
        )
    return keys


class SidecarKeys:
    """The keys by which an engine knows its sidecars; without any it knows its own host."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raises ValueError for invalid ones."""
        given = environ.get(SIDECAR_KEY_VARIABLE)
        self._keys = [] if given is None else [key.encode() for key in parse_keys(given)]

    def know(self, scope: Mapping[str, Any]) -> bool:
        """Whether a request, as ASGI describes it, comes from a sidecar."""
        fields = scope["headers"]
        if not self._keys:
            return _is_local(scope) and not any(_OF_PROXIES.fullmatch(name) for name, _ in fields)
        given = next((value for name, value in fields if name == SIDECAR_KEY_HEADER), b"")
        known = [secrets.compare_digest(given, key) for key in self._keys]
        return any(known)


def _is_local(scope: Mapping[str, Any]) -> bool:
    client, server = scope["client"], scope["server"]
    if client is None:
        # A Unix domain socket's peer has no address; nor has one of TCP that is gone again.
        return server is None or server[1] is None
    return is_loopback(client[0])


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
