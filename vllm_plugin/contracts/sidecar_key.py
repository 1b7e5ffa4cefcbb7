"""Decides whether a request comes from a sidecar of the engine.

Pure. Sidecars make up their instances and leases, so these prove nothing about their sender. An
engine with keys (ORCH_SIDECAR_KEY) knows those that send one of them. An engine without knows its
own host, as long as no proxy there forwards what others send.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from vllm_plugin.contracts.unleased import is_loopback

VARIABLE: Final = "ORCH_SIDECAR_KEY"
HEADER: Final = b"x-orch-sidecar-key"  # as ASGI has it
_OF_PROXIES: Final = re.compile(rb"forwarded|via|x-forwarded-.*")

NOT_A_SIDECAR: Final = (
    "this is for the sidecars of this engine only, which it knows by their key: set "
    f"{VARIABLE} to the same value for the engine and its sidecars. Without a key an engine knows "
    "sidecars on its own host only, with no proxy in between"
)


def parse_keys(text: str) -> list[str]:
    """Parses keys that are separated by commas: a sidecar sends the first, an engine accepts all.

    Raises ValueError, whose text does not contain them.
    """
    keys = text.split(",")
    if not all(re.fullmatch("[!-~]+", key) for key in keys):
        raise ValueError(
            f"{VARIABLE} (not shown) must be a key of printable ASCII characters without spaces, "
            "or several such keys with commas in between"
        )
    return keys


class SidecarKeys:
    """The keys by which an engine knows its sidecars; without any it knows its own host."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raises ValueError for invalid ones."""
        given = environ.get(VARIABLE)
        self._keys = [] if given is None else [key.encode() for key in parse_keys(given)]

    def know(self, scope: Mapping[str, Any]) -> bool:
        """Whether a request, as ASGI describes it, comes from a sidecar."""
        fields = scope["headers"]
        if not self._keys:
            return _is_local(scope) and not any(_OF_PROXIES.fullmatch(name) for name, _ in fields)
        given = next((value for name, value in fields if name == HEADER), b"")
        known = [secrets.compare_digest(given, key) for key in self._keys]
        return any(known)


def _is_local(scope: Mapping[str, Any]) -> bool:
    client, server = scope["client"], scope["server"]
    if client is None:
        # A Unix domain socket's peer has no address; nor has one of TCP that is gone again.
        return server is None or server[1] is None
    return is_loopback(client[0])
