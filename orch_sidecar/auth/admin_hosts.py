"""Checks by which host name the operators' listener is called, against DNS rebinding.

Pure. A web page can let its own name resolve to the loopback address; a browser then treats the
listener there as the page's own server and sends no `Origin`. The page cannot change `Host`, which
is its name. So only the names of the loopback and the configured names are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from orch_sidecar.api.refusal import Reason, Refusal

_SHOWN_CHARACTERS: Final = 80


class AdminHosts:
    """The host names and addresses by which the operators' listener may be called."""

    def __init__(self, configured: Iterable[str]) -> None:
        """`configured`: besides those of the loopback, without a port. An IPv6 address may be in
        brackets, as in a URL, or not, as an address to listen on."""
        self._configured = frozenset(
            _name(f"[{each}]" if _is_ipv6(each) else each) for each in configured
        )

    def check(self, hosts: list[str]) -> Refusal | None:
        """Returns the refusal of a request with these `Host` fields; None if it is accepted."""
        name = _name(hosts[0]) if len(hosts) == 1 else ""
        if name and (name in self._configured or _is_loopback(name)):
            return None
        shown = ", ".join(hosts)[:_SHOWN_CHARACTERS]
        return Refusal(
            Reason.FORBIDDEN,
            f"the Host {shown!r} is not allowed on the operators' listener: call it by a loopback "
            "name or by admin_host, or add the name to admin_allowed_hosts "
            "(ORCH_ADMIN_ALLOWED_HOSTS)",
        )


def _name(host: str) -> str:
    """Returns the name or address in a `Host` field; empty if there is none."""
    try:
        return (urlsplit(f"//{host.strip()}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host).version == 6
    except ValueError:
        return False


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
